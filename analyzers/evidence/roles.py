"""What a module is for: attention, ffn, norm, ... from its place in the tree, its class, its
children and what ran in it, for any architecture. No model is known by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tracer.analyzers.evidence.role_places import Places, Seen
from tracer.analyzers.evidence.role_words import (
    ACTIVATION,
    ADAPTER,
    ATTENTION,
    CONVOLUTION,
    DROPOUT,
    EMBEDDING,
    EXPERT,
    FEED,
    FFN,
    FFN_LINEAR,
    HEAD,
    LINEAR,
    LOSS,
    MIXER,
    MIXES_OR_FEEDS,
    MODULATION,
    MOE,
    NORM,
    NORM_NAME,
    RESIDUAL,
    ROPE,
    ROUTER,
    SAMPLER,
    last_word,
)
from tracer.analyzers.facts.modules import ModuleTree
from tracer.analyzers.intervals import NONE
from tracer.events import Trace

# Roles of a module of its own. "layer" is a repeated block that holds attention or a mixer;
# "container" is everything that only passes on.
BLOCK_ROLES = (
    "attention",
    "mixer",
    "ffn",
    "residual",
    "embedding",
    "lm_head",
    "loss",
    "sampling",
)
_NOTHING_SEEN = Seen()


@dataclass(frozen=True)
class Roles:
    """`own`: the role of each module. `block`: the row of the innermost enclosing module whose
    role decides the group of what runs in it; -1 for none."""

    own: list[str]
    block: list[int]


def find_roles(tree: ModuleTree, seen: Seen = _NOTHING_SEEN) -> Roles:
    """Give each module its role, by names and by what was seen to run in it."""
    children = tree.children()
    own = [_named_role(tree, row, children) for row in range(len(tree.paths))]
    places = Places(tree, own, children, seen)
    places.alone_by_evidence()
    _whole_norms(tree, own)
    _whole_attention(tree, own)
    _only_called_attention(tree, own, children, seen.cores)
    places.attention_by_evidence()
    _whole_attention(tree, own)
    places.ffn_by_place()
    places.like_their_class()
    if not any(role in ("attention", "mixer") for role in own):
        _no_transformer(tree, own, children)
    _whole_norms(tree, own)
    places.ends_by_place()
    places.norms_of_unknown()
    _adapters(tree, own, children)
    return Roles(own, [_block_of(tree, own, row) for row in range(len(tree.paths))])


def _adapters(tree: ModuleTree, own: list[str], children: list[list[int]]) -> None:
    """What is trained beside a frozen linear layer, told apart from it."""
    for row, path in enumerate(tree.paths):
        leaf = not children[row] and own[row] in ("linear", "container")
        if leaf and any(ADAPTER.search(word) for word in path.split(".")):
            own[row] = "adapter"


def with_saved_roles(roles: Roles, tree: ModuleTree, trace: Trace) -> Roles:
    """The same, with the roles that modules had where a graph was captured: more of them ran."""
    saved = trace.table("captured_modules")
    known = dict(zip(saved["path"].astype(str), saved["role"].astype(str), strict=True))
    if not known:
        return roles
    own = [known.get(path, role) for path, role in zip(tree.paths, roles.own, strict=True)]
    return Roles(own, [_block_of(tree, own, row) for row in range(len(tree.paths))])


def _named_role(tree: ModuleTree, row: int, children: list[list[int]]) -> str:
    name, kind = last_word(tree, row), tree.types[row]
    numbered = tree.paths[row].rpartition(".")[2].isdigit()
    leaf = not children[row]
    if ROPE.search(kind) or (leaf and ROPE.search(name)):
        return "rope"
    if leaf and DROPOUT.search(kind):
        return "container"
    if leaf and (NORM.search(kind) or NORM_NAME.search(name)):
        return "norm"
    if MODULATION.search(_own_word(kind)) or MODULATION.search(name):
        return "mixer" if _has_convolution(tree, children, row) else "norm"
    if NORM.search(name) and not MIXES_OR_FEEDS.search(kind) and not _is_model(tree, row, children):
        return "norm"
    if RESIDUAL.search(kind):
        return "residual"
    if leaf and ACTIVATION.search(kind):
        return "activation"
    if LOSS.search(kind):
        return "loss"
    if SAMPLER.search(kind):
        return "sampling"
    if EMBEDDING.search(kind) or (EMBEDDING.search(name) and not LINEAR.search(kind)):
        return "embedding"
    if leaf and ACTIVATION.search(name):
        return "activation"
    if numbered and not EXPERT.search(name) and (not leaf or CONVOLUTION.search(kind)):
        name = ""  # layers.3 is not what its list is called
    return _block_role(tree, row, name, kind, children)


def _block_role(tree: ModuleTree, row: int, name: str, kind: str, children: list[list[int]]) -> str:
    linear = bool(LINEAR.search(kind)) and not children[row]
    if not _inside_layer(tree, row) and (HEAD.search(name) or HEAD.search(kind)):
        return "lm_head"
    if linear:
        return "linear"
    if _holds_layers(tree, row, children) or _holds_mixing(tree, row, children):
        return "container"
    if _is_mixer(name, kind):
        return "mixer"
    if ATTENTION.search(name) or ATTENTION.search(_own_word(kind)):
        return "attention"
    if ROUTER.search(name) or ROUTER.search(kind):
        return "router"
    if EXPERT.search(name) or EXPERT.search(kind) or (MOE.search(kind) and not children[row]):
        return "experts"
    if FFN.search(name) or FFN.search(kind):
        return "ffn"
    return "linear" if LINEAR.search(kind) else "container"


def _is_mixer(name: str, kind: str) -> bool:
    """By its class, or by its name where the class says nothing else. RwkvFeedForward is none."""
    feeds = FEED.search(kind) and not kind.lower().endswith("mixer")
    if MIXER.search(_own_word(kind)):
        return not feeds
    return MIXER.search(name) is not None and not _only_called_mixer(name, kind)


def _only_called_mixer(name: str, kind: str) -> bool:
    """Hybrid models call every block of a layer its mixer; the class tells which one it is."""
    other = FFN.search(kind) or ATTENTION.search(kind)
    return name.endswith("mixer") and bool(other) and not MIXER.search(kind)


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
            ATTENTION.search(tree.types[g]) or MIXER.search(tree.types[g])
            for c in numbered
            for g in children[c]
        )
    attention = [k for k in kinds if ATTENTION.search(k) and not NORM.search(k)]
    feed = [k for k in kinds if FFN.search(k)]
    if attention and feed:
        return True
    return any(_holds_layers(tree, child, children) for child in children[row])


def _is_model(tree: ModuleTree, row: int, children: list[list[int]]) -> bool:
    """Whether layers lie inside: a model may be called after its norms."""
    return bool(children[row]) and _holds_layers(tree, row, children)


def _holds_mixing(tree: ModuleTree, row: int, children: list[list[int]]) -> bool:
    """Whether what is called a layer holds a block that mixes tokens: whatever it is named after,
    it is not that block."""
    if _own_word(tree.types[row]):
        return False
    words = [_own_word(tree.types[kid]) for kid in children[row]]
    return any(MIXER.search(word) or ATTENTION.search(word) for word in words)


def _whole_norms(tree: ModuleTree, own: list[str]) -> None:
    """What lies inside a norm makes its scale and shift, and belongs to it."""
    for row in range(len(own)):
        if any(own[ancestor] == "norm" for ancestor in tree.ancestors(row)[1:]):
            own[row] = "norm"


def _whole_attention(tree: ModuleTree, own: list[str]) -> None:
    """What lies inside an attention block belongs to it: no class name makes it an FFN there, and
    a table of embeddings is one of positions."""
    for row, role in enumerate(own):
        around = {own[ancestor] for ancestor in tree.ancestors(row)[1:]}
        if role in ("ffn", "experts", "router", "embedding") and "attention" in around:
            own[row] = "rope" if role == "embedding" else "container"


def _only_called_attention(
    tree: ModuleTree, own: list[str], children: list[list[int]], core_rows: Iterable[int]
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
    found = CONVOLUTION.search(tree.types[row]) is not None
    return found or any(_has_convolution(tree, children, kid) for kid in children[row])


def _no_transformer(tree: ModuleTree, own: list[str], children: list[list[int]]) -> None:
    """Without attention anywhere, a plain multilayer perceptron is no transformer's FFN."""
    for row, role in enumerate(own):
        inside = [last_word(tree, child) for child in children[row]]
        if role == "ffn" and not any(FFN_LINEAR.search(name) for name in inside):
            own[row] = "container"


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
