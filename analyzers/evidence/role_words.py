"""Words in names and classes of modules that tell what they are for. No model is known by name."""

from __future__ import annotations

import re

from tracer.analyzers.facts.modules import ModuleTree


def _words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.I)


ROPE = _words(r"rotary", r"(^|_)rope($|_)", r"rotemb", r"alibi", r"relative_attention_bias")
NORM = _words(r"layer_?norm", r"rms_?norm", r"(^|_)norm(_|\d|$)", r"(batch|group|instance)norm")
NORM_NAME = _words(r"norm", r"^ln(_|\d|$)", r"_ln$", r"^ln")
EMBEDDING = _words(r"embedding(s|bag)?$", r"^embed(_tokens|_positions|_in|s)?$", r"^w[tp]e$")
HEAD = _words(
    r"^lm_head$", r"^embed_out$", r"^output_layer$", r"^output_projection$", r"^proj_out$",
    r"^classifier$", r"^score$", r"^cls$", r"predictions?$", r"^unembed", r"^logits?(_|$|proc)",
    r"^qa_outputs$", r"^vocab_head$", r"^(mlm|nsp|rtd|ctc|prediction|pretraining)_?head",
    r"(LM|MLM|Prediction|Pretraining|Classification)Heads?$",
)  # fmt: skip
ATTENTION = _words(r"attn", r"attention", r"m[hlq]a$", r"gqa$")
MIXER = _words(
    r"mamba", r"mixer$", r"(^|_)ssm(_|$)", r"ssd", r"rwkv", r"retention", r"hyena", r"h3",
    r"gated_?delta", r"delta_?net", r"linear_?attn", r"short_?conv", r"temporal_block",
    r"recurrent_?block", r"griffin", r"time_?mix", r"fourier_?(transform|mix)",
)  # fmt: skip
FFN = _words(
    r"mlp", r"ffn", r"feed_?forward", r"moe", r"expert", r"intermediate$", r"^ff(_|\d|$)",
    r"dense_?relu_?dense", r"swiglu", r"gated_?linear", r"channel_?mix", r"layerff",
)  # fmt: skip
# What is an FFN whatever family of models it is named after.
FEED = _words(r"mlp", r"ffn", r"feed_?forward", r"channel_?mix")
# What makes the scale and the shift of a norm from a condition.
MODULATION = _words(r"modulation", r"ada_?ln", r"ada_?(layer_?|rms_?|group_?)?norm")
# What keeps several residual streams, or learns how the one is added to.
RESIDUAL = _words(r"hyper_?connection", r"^alt_?up", r"altup$", r"laurel")
DROPOUT = _words(r"drop_?out", r"drop_?path", r"stochastic_?depth")
MIXES_OR_FEEDS = _words(ATTENTION.pattern, MIXER.pattern, FFN.pattern, r"layer$", r"block$")
ROUTER = _words(r"router", r"^gate$", r"gating", r"topk_?router", r"^wg$")
MOE = _words(r"moe")
EXPERT = _words(r"experts?(\d|$|_)", r"expert")
ACTIVATION = _words(
    r"^(new|fast|quick|laplace|clipped|accurate|pytorch)?_?(gelu|silu|relu|swish|mish|tanh"
    r"|sigmoid|gelutanh|geluactivation|siluactivation|leakyrelu|prelu|elu)\w*$",
    r"activation$", r"^act(_fn|ivation(_fn)?)?$", r"andmul$",
)  # fmt: skip
# A word of its own: the two letters of "Yolos" and the next word's first are none.
LOSS = re.compile(r"Loss|LOSS|(?:^|_)loss|[Cc]riterion|[Cc]ross_?[Ee]ntropy")
# Of tokens; what makes fewer or more places of a sequence or an image is none.
SAMPLER = _words(r"(?<!re)(?<!sub)(?<!down)(?<!up)(?<!sub_)(?<!down_)(?<!up_)sampl(er|ing)")
ADAPTER = _words(r"^lora_", r"^(lokr|hada|vera|oft|boft|ia3)_", r"^adapters?$", r"_adapter$")
LINEAR = _words(r"linear", r"^conv1d$", r"^dense$", r"projection$", r"lora_[ab]")
CONVOLUTION = _words(r"conv(transpose)?[123]d")
ATTENTION_LINEAR = _words(
    r"^[qkvo](_?proj)?$", r"^w[qkvo]$", r"qkv", r"query", r"^key", r"value", r"c_attn", r"kv_",
    r"out_proj", r"^o_", r"in_proj",
)  # fmt: skip
FFN_LINEAR = _words(
    r"^fc_?\d", r"^linear_?\d", r"^w[123]$", r"gate_proj", r"up_proj", r"down_proj", r"h_to_4h",
    r"4h_to_h", r"c_fc", r"lin[12]$",
)  # fmt: skip


# What a single word outside any tree can say, the surest first.
ROLE_WORDS = (
    ("rope", ROPE),
    ("norm", NORM),
    ("norm", NORM_NAME),
    ("lm_head", HEAD),
    ("mixer", MIXER),
    ("attention", ATTENTION),
    ("attention", ATTENTION_LINEAR),
    ("router", ROUTER),
    ("experts", EXPERT),
    ("ffn", FFN),
    ("ffn", FFN_LINEAR),
    ("loss", LOSS),
    ("sampling", SAMPLER),
    ("embedding", EMBEDDING),
)


def role_of_words(name: str) -> str:
    """The role that a free name gives away ("layers.0.self_attn", "moe block"); "" for none."""
    for word in reversed(re.split(r"[^A-Za-z0-9_]+", name)):
        for role, pattern in ROLE_WORDS:
            if word and pattern.search(word):
                return role
    return ""


def last_word(tree: ModuleTree, row: int) -> str:
    """The last word of the path that is not a number."""
    words = [word for word in tree.paths[row].split(".") if not word.isdigit()]
    return words[-1] if words else ""


def is_attention_linear(tree: ModuleTree, row: int) -> bool:
    name = last_word(tree, row)
    return bool(ATTENTION_LINEAR.search(name)) and not FFN_LINEAR.search(name)
