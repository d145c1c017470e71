"""What a module is for: attention, ffn, norm, ... from its place in the tree, its class, its
children and what ran in it, for any architecture. No model is known by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracer.analyzers.facts.modules import ModuleTree
from tracer.analyzers.intervals import NONE
from tracer.events import Trace

# Roles of a module of its own. "layer" is a repeated block that holds attention or a mixer;
# "container" is everything that only passes on.
BLOCK_ROLES = ("attention", "mixer", "ffn", "embedding", "lm_head", "loss", "sampling")


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.I)


_ROPE = _words(r"rotary", r"(^|_)rope($|_)", r"rotemb", r"alibi", r"relative_attention_bias")
_NORM = _words(r"layer_?norm", r"rms_?norm", r"(^|_)norm(_|\d|$)", r"(batch|group|instance)norm")
_NORM_NAME = _words(r"norm", r"^ln(_|\d|$)", r"_ln$", r"^ln")
_EMBEDDING = _words(r"embedding(s|bag)?$", r"^embed(_tokens|_positions|_in|s)?$", r"^w[tp]e$")
_HEAD = _words(
    r"^lm_head$", r"^embed_out$", r"^output_layer$", r"^output_projection$", r"^proj_out$",
    r"^classifier$", r"^score$", r"^cls$", r"predictions?$", r"^unembed", r"^logits?(_|$|proc)",
    r"^qa_outputs$", r"^vocab_head$", r"^(mlm|nsp|rtd|ctc|prediction|pretraining)_?head",
    r"(LM|MLM|Prediction|Pretraining|Classification)Heads?$",
)  # fmt: skip
_ATTENTION = _words(r"attn", r"attention", r"m[hlq]a$", r"gqa$")
_MIXER = _words(
    r"mamba", r"mixer$", r"(^|_)ssm(_|$)", r"ssd", r"rwkv", r"retention", r"hyena", r"h3",
    r"gated_?delta", r"delta_?net", r"linear_?attn", r"short_?conv", r"temporal_block",
    r"recurrent_?block", r"griffin", r"time_?mix", r"fourier_?(transform|mix)",
)  # fmt: skip
_FFN = _words(
    r"mlp", r"ffn", r"feed_?forward", r"moe", r"expert", r"intermediate$", r"^ff(_|\d|$)",
    r"dense_?relu_?dense", r"swiglu", r"gated_?linear", r"channel_?mix", r"layerff",
)  # fmt: skip
# What is an FFN whatever family of models it is named after.
_FEED = _words(r"mlp", r"ffn", r"feed_?forward", r"channel_?mix")
# What makes the scale and the shift of a norm from a condition.
_MODULATION = _words(r"modulation", r"ada_?ln", r"ada_?(layer_?|rms_?|group_?)?norm")
_DROPOUT = _words(r"drop_?out", r"drop_?path", r"stochastic_?depth")
_MIXES_OR_FEEDS = _words(_ATTENTION.pattern, _MIXER.pattern, _FFN.pattern, r"layer$", r"block$")
_ROUTER = _words(r"router", r"^gate$", r"gating", r"topk_?router", r"^wg$")
_MOE = _words(r"moe")
_EXPERT = _words(r"experts?(\d|$|_)", r"expert")
_ACTIVATION = _words(
    r"^(new|fast|quick|laplace|clipped|accurate|pytorch)?_?(gelu|silu|relu|swish|mish|tanh"
    r"|sigmoid|gelutanh|geluactivation|siluactivation|leakyrelu|prelu|elu)\w*$",
    r"activation$", r"^act(_fn|ivation(_fn)?)?$", r"andmul$",
)  # fmt: skip
_LOSS = _words(r"loss", r"criterion", r"cross_?entropy")
_SAMPLER = _words(r"sampler", r"sampling")
_ADAPTER = _words(r"^lora_", r"^(lokr|hada|vera|oft|boft|ia3)_", r"^adapters?$", r"_adapter$")
_LINEAR = _words(r"linear", r"^conv1d$", r"^dense$", r"projection$", r"lora_[ab]")
_CONVOLUTION = _words(r"conv(transpose)?[123]d")
_ATTENTION_LINEAR = _words(
    r"^[qkvo](_?proj)?$", r"^w[qkvo]$", r"qkv", r"query", r"^key", r"value", r"c_attn", r"kv_",
    r"out_proj", r"^o_", r"in_proj",
)  # fmt: skip
_FFN_LINEAR = _words(
    r"^fc_?\d", r"^linear_?\d", r"^w[123]$", r"gate_proj", r"up_proj", r"down_proj", r"h_to_4h",
    r"4h_to_h", r"c_fc", r"lin[12]$",
)  # fmt: skip


# What a single word outside any tree can say, the surest first.
_ROLE_WORDS = (
    ("rope", _ROPE),
    ("norm", _NORM),
    ("norm", _NORM_NAME),
    ("lm_head", _HEAD),
    ("mixer", _MIXER),
    ("attention", _ATTENTION),
    ("attention", _ATTENTION_LINEAR),
    ("router", _ROUTER),
    ("experts", _EXPERT),
    ("ffn", _FFN),
    ("ffn", _FFN_LINEAR),
    ("loss", _LOSS),
    ("sampling", _SAMPLER),
    ("embedding", _EMBEDDING),
)


@dataclass(frozen=True)
class Roles:
    """`own`: the role of each module. `block`: the row of the innermost enclosing module whose
    role decides the group of what runs in it; -1 for none."""

    own: list[str]
    block: list[int]


def find_roles(tree: ModuleTree, core_rows: Iterable[int] = ()) -> Roles:
    """Give each module its role. `core_rows`: modules in which an attention core itself ran."""
    children = tree.children()
    own = [_named_role(tree, row, children) for row in range(len(tree.paths))]
    cores = list(core_rows)
    _whole_norms(tree, own)
    _whole_attention(tree, own)
    _only_called_attention(tree, own, children, cores)
    _attention_by_evidence(tree, own, children, cores)
    _ffn_by_place(tree, own, children)
    if not any(role in ("attention", "mixer") for role in own):
        _no_transformer(tree, own, children)
    _ends_by_place(tree, own)
    _adapters(tree, own, children)
    return Roles(own, [_block_of(tree, own, row) for row in range(len(tree.paths))])


def _adapters(tree: ModuleTree, own: list[str], children: list[list[int]]) -> None:
    """What is trained beside a frozen linear layer, told apart from it."""
    for row, path in enumerate(tree.paths):
        leaf = not children[row] and own[row] in ("linear", "container")
        if leaf and any(_ADAPTER.search(word) for word in path.split(".")):
            own[row] = "adapter"


def role_of_words(name: str) -> str:
    """The role that a free name gives away ("layers.0.self_attn", "moe block"); "" for none."""
    for word in reversed(re.split(r"[^A-Za-z0-9_]+", name)):
        for role, pattern in _ROLE_WORDS:
            if word and pattern.search(word):
                return role
    return ""


def with_saved_roles(roles: Roles, tree: ModuleTree, trace: Trace) -> Roles:
    """The same, with the roles that modules had where a graph was captured: more of them ran."""
    saved = trace.table("captured_modules")
    known = dict(zip(saved["path"].astype(str), saved["role"].astype(str), strict=True))
    if not known:
        return roles
    own = [known.get(path, role) for path, role in zip(tree.paths, roles.own, strict=True)]
    return Roles(own, [_block_of(tree, own, row) for row in range(len(tree.paths))])


def _last(tree: ModuleTree, row: int) -> str:
    """The last word of the path that is not a number."""
    words = [word for word in tree.paths[row].split(".") if not word.isdigit()]
    return words[-1] if words else ""


def _named_role(tree: ModuleTree, row: int, children: list[list[int]]) -> str:
    name, kind = _last(tree, row), tree.types[row]
    numbered = tree.paths[row].rpartition(".")[2].isdigit()
    leaf = not children[row]
    if _ROPE.search(kind) or (leaf and _ROPE.search(name)):
        return "rope"
    if leaf and _DROPOUT.search(kind):
        return "container"
    if leaf and (_NORM.search(kind) or _NORM_NAME.search(name)):
        return "norm"
    if _MODULATION.search(_own_word(kind)) or _MODULATION.search(name):
        return "norm"
    if _NORM.search(name) and not _MIXES_OR_FEEDS.search(kind):
        return "norm"
    if leaf and _ACTIVATION.search(kind):
        return "activation"
    if _LOSS.search(kind):
        return "loss"
    if _SAMPLER.search(kind):
        return "sampling"
    if _EMBEDDING.search(kind) or (_EMBEDDING.search(name) and not _LINEAR.search(kind)):
        return "embedding"
    if leaf and _ACTIVATION.search(name):
        return "activation"
    if numbered and not _EXPERT.search(name) and (not leaf or _CONVOLUTION.search(kind)):
        name = ""  # layers.3 is not what its list is called
    return _block_role(tree, row, name, kind, children)


def _block_role(tree: ModuleTree, row: int, name: str, kind: str, children: list[list[int]]) -> str:
    linear = bool(_LINEAR.search(kind)) and not children[row]
    if not _inside_layer(tree, row) and (_HEAD.search(name) or _HEAD.search(kind)):
        return "lm_head"
    if linear:
        return "linear"
    if _holds_layers(tree, row, children) or _holds_mixing(tree, row, children):
        return "container"
    if _is_mixer(name, kind):
        return "mixer"
    if _ATTENTION.search(name) or _ATTENTION.search(_own_word(kind)):
        return "attention"
    if _ROUTER.search(name) or _ROUTER.search(kind):
        return "router"
    if _EXPERT.search(name) or _EXPERT.search(kind) or (_MOE.search(kind) and not children[row]):
        return "experts"
    if _FFN.search(name) or _FFN.search(kind):
        return "ffn"
    return "linear" if _LINEAR.search(kind) else "container"


def _is_mixer(name: str, kind: str) -> bool:
    """By its class, or by its name where the class says nothing else. RwkvFeedForward is none."""
    feeds = _FEED.search(kind) and not kind.lower().endswith("mixer")
    if _MIXER.search(_own_word(kind)):
        return not feeds
    return _MIXER.search(name) is not None and not _only_called_mixer(name, kind)


def _only_called_mixer(name: str, kind: str) -> bool:
    """Hybrid models call every block of a layer its mixer; the class tells which one it is."""
    other = _FFN.search(kind) or _ATTENTION.search(kind)
    return name.endswith("mixer") and bool(other) and not _MIXER.search(kind)


def _own_word(kind: str) -> str:
    """A class named after a layer or a model is no block, whatever else it is called."""
    return "" if re.search(r"(Layer|Block|Model|Encoder|Decoder|LM|Stack)$", kind) else kind


def _inside_layer(tree: ModuleTree, row: int) -> bool:
    return any(word.isdigit() for word in tree.paths[row].split("."))


def _holds_layers(tree: ModuleTree, row: int, children: list[list[int]]) -> bool:
    """Whether numbered grandchildren or children with attention of their own lie inside, at any
    depth: then it is a model, a stack of layers or a layer, and not one block."""
    kinds = {tree.types[child] for child in children[row]}
    numbered = [c for c in children[row] if tree.paths[c].rpartition(".")[2].isdigit()]
    if len(numbered) > 1 and len({tree.types[c] for c in numbered}) <= 3:
        return any(
            _ATTENTION.search(tree.types[g]) or _MIXER.search(tree.types[g])
            for c in numbered
            for g in children[c]
        )
    attention = [k for k in kinds if _ATTENTION.search(k) and not _NORM.search(k)]
    feed = [k for k in kinds if _FFN.search(k)]
    if attention and feed:
        return True
    return any(_holds_layers(tree, child, children) for child in children[row])


def _holds_mixing(tree: ModuleTree, row: int, children: list[list[int]]) -> bool:
    """Whether what is called a layer holds a block that mixes tokens: whatever it is named after,
    it is not that block."""
    if _own_word(tree.types[row]):
        return False
    words = [_own_word(tree.types[kid]) for kid in children[row]]
    return any(_MIXER.search(word) or _ATTENTION.search(word) for word in words)


def _whole_norms(tree: ModuleTree, own: list[str]) -> None:
    """What lies inside a norm makes its scale and shift, and belongs to it."""
    for row in range(len(own)):
        if any(own[ancestor] == "norm" for ancestor in tree.ancestors(row)[1:]):
            own[row] = "norm"


def _whole_attention(tree: ModuleTree, own: list[str]) -> None:
    """What lies inside an attention block belongs to it: no class name makes it an FFN there."""
    for row, role in enumerate(own):
        around = {own[ancestor] for ancestor in tree.ancestors(row)[1:]}
        if role in ("ffn", "experts", "router") and "attention" in around:
            own[row] = "container"


def _only_called_attention(
    tree: ModuleTree, own: list[str], children: list[list[int]], core_rows: list[int]
) -> None:
    """Convolutions without a linear layer, in which no attention core ran, are no attention,
    whatever the program calls them."""
    cores = {ancestor for row in core_rows for ancestor in tree.ancestors(row)}
    for row, role in enumerate(own):
        if role != "attention" or not children[row] or row in cores:
            continue
        if _has_convolution(tree, children, row) and not _has_linear(own, children, row):
            own[row] = "container"


def _has_convolution(tree: ModuleTree, children: list[list[int]], row: int) -> bool:
    found = _CONVOLUTION.search(tree.types[row]) is not None
    return found or any(_has_convolution(tree, children, kid) for kid in children[row])


def _attention_by_evidence(
    tree: ModuleTree, own: list[str], children: list[list[int]], core_rows: Iterable[int]
) -> None:
    """An attention core ran in a module that no name gives away: the module is attention, or the
    first around it that has linear layers; where those of an FFN are among them, it is a layer, as
    is one that holds an attention block (a fused form of the whole layer ran)."""
    for row in core_rows:
        around = tree.ancestors(row)
        if any(own[a] in ("attention", "mixer") for a in around):
            continue
        for candidate in around:
            if any(own[c] in ("attention", "mixer") for c in children[candidate]):
                break
            if any(own[c] == "linear" for c in children[candidate]):
                whole = _parted(tree, own, children, candidate)
                own[candidate] = "layer" if whole else "attention"
                break


def _parted(tree: ModuleTree, own: list[str], children: list[list[int]], row: int) -> bool:
    """Whether linear layers written side by side are an attention's and an FFN's; each then has
    its role. Their names tell, or the norm that stands between them, or that some make a
    perceptron of their own."""
    kids = children[row]
    perceptrons = [kid for kid in kids if _is_perceptron(own, children, kid)]
    linears = [kid for kid in kids if own[kid] == "linear"]
    feed = [k for k in linears if _FFN_LINEAR.search(_last(tree, k))]
    if perceptrons:
        feed = [*perceptrons, *(feed if len(feed) < len(linears) else [])]
    elif len(feed) in (0, len(linears)):
        feed = _behind_norm(tree, linears, [kid for kid in kids if own[kid] == "norm"])
    for kid in [*linears, *perceptrons] if feed else ():
        own[kid] = "ffn" if kid in feed else "attention"
    return bool(feed)


def _is_perceptron(own: list[str], children: list[list[int]], row: int) -> bool:
    """A block that no name gives away, of two linear layers or more with an activation."""
    if own[row] not in ("container", "ffn"):
        return False
    inside = [own[kid] for kid in children[row]]
    return own[row] == "ffn" or (inside.count("linear") >= 2 and "activation" in inside)


def _behind_norm(tree: ModuleTree, linears: list[int], norms: list[int]) -> list[int]:
    """The linear layers that run behind a norm which two or more of them, that of the attention's
    result among these, and nothing else of theirs run before; none where no norm parts them so."""
    first = tree.first_event
    for norm in sorted(norms, key=lambda row: int(first[row])):
        before = [k for k in linears if int(first[k]) < int(first[norm])]
        behind = [k for k in linears if int(first[k]) > int(first[norm])]
        if len(before) >= 2 and len(behind) >= 2:
            return behind
    return []


def _ffn_by_place(tree: ModuleTree, own: list[str], children: list[list[int]]) -> None:
    """Beside an attention block, whatever else has linear layers is the layer's FFN."""
    for row, kids in enumerate(children):
        if own[row] not in ("container", "ffn", "attention"):
            continue
        mixing = [k for k in kids if own[k] in ("attention", "mixer")]
        if not mixing or own[row] == "attention":
            continue
        own[row] = "layer"
        for kid in kids:
            if own[kid] == "linear":
                own[kid] = "attention" if _is_attention_linear(tree, kid) else "ffn"
            elif own[kid] == "container" and _has_linear(own, children, kid):
                own[kid] = "ffn"
        if any(own[kid] == "ffn" for kid in kids):
            _activations_between(own, kids)


def _activations_between(own: list[str], kids: list[int]) -> None:
    """An activation that a layer itself calls is that between the linear layers of its FFN."""
    for kid in kids:
        if own[kid] == "activation":
            own[kid] = "ffn"


def _ends_by_place(tree: ModuleTree, own: list[str]) -> None:
    """A linear layer outside all layers makes the logits when it runs after them, and embeds what
    comes in when it runs before."""
    layers = [int(tree.first_event[row]) for row, role in enumerate(own) if role == "layer"]
    seen = [event for event in layers if event != NONE]
    if not seen:
        return
    for row, role in enumerate(own):
        event = int(tree.first_event[row])
        around = [own[a] for a in tree.ancestors(row)[1:]]
        if role == "linear" and event != NONE and set(around) <= {"container"}:
            own[row] = "lm_head" if event > max(seen) else "embedding"


def _no_transformer(tree: ModuleTree, own: list[str], children: list[list[int]]) -> None:
    """Without attention anywhere, a plain multilayer perceptron is no transformer's FFN."""
    for row, role in enumerate(own):
        inside = [_last(tree, child) for child in children[row]]
        if role == "ffn" and not any(_FFN_LINEAR.search(name) for name in inside):
            own[row] = "container"


def _is_attention_linear(tree: ModuleTree, row: int) -> bool:
    name = _last(tree, row)
    return bool(_ATTENTION_LINEAR.search(name)) and not _FFN_LINEAR.search(name)


def _has_linear(own: list[str], children: list[list[int]], row: int) -> bool:
    return own[row] == "linear" or any(_has_linear(own, children, c) for c in children[row])


def _block_of(tree: ModuleTree, own: list[str], row: int) -> int:
    """Experts and routers stand for the FFN around them."""
    for candidate in tree.ancestors(row):
        if own[candidate] in (*BLOCK_ROLES, "experts", "router"):
            return candidate
        if own[candidate] in ("layer",):
            return NONE
    return NONE
