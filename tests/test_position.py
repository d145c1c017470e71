"""Groups by the place in the layer's pattern: names and order are all there is."""

from __future__ import annotations

import pytest

from tests.launch_sequences import (
    EAGER,
    TENSORRT,
    VLLM,
    device_trace,
    groups_of,
    misplaced,
    passes,
    spell,
)
from tests.make_traces import TraceMaker
from tracer.analysis import BUCKETS
from tracer.analyzers import analyze

RMS = "cast square mean epsilon root mul cast mul"
# Gemma adds one to the weight, in float.
RMS_PLUS_ONE = "cast square mean epsilon root mul cast epsilon mul cast"
CENTRED = "cast mean add square mean add epsilon root mul cast mul cast"
ROPE = "mul neg cat mul add mul neg cat mul add"
QKV = f"a: gemm*3 {ROPE} cat*2"
TABLE = "o: gather a: cast gemm cat cos mul sin mul cast cast"
TABLE_LAID_OUT = "o: gather a: cast gemm cast cos mul sin mul cast cast"
GATED = "f: gemm silu gemm mul gemm"
UNFUSED = "gemm mul add softmax cast gemm"
EXPERTS = "f: gemm cast softmax topk sort sum gather grouped silu mul grouped mul index sum cast"

LLAMA = f"o: {RMS} {QKV} core gemm o: add {RMS} {GATED} o: add"
SANDWICH = (
    f"o: {RMS_PLUS_ONE} {QKV} core gemm o: {RMS_PLUS_ONE} add {RMS_PLUS_ONE} "
    f"f: gemm gelu gemm mul gemm o: {RMS_PLUS_ONE} add"
)
POST_NORM = (
    f"a: gemm {RMS} gemm {RMS} gemm {ROPE} cat*2 core gemm o: {RMS} add {GATED} o: {RMS} add"
)
QUERY_KEY_NORMS = (
    f"o: {RMS} a: gemm {RMS} gemm {RMS} gemm {ROPE} cat*2 core gemm o: add {RMS} {GATED} o: add"
)
LOW_RANK = f"a: gemm {RMS} gemm*2 {RMS} gemm {ROPE} cat*4"
LATENT = f"o: {RMS} {LOW_RANK} core gemm o: add {RMS} {GATED} o: add"
LATENT_EXPERTS = (
    f"o: {RMS} {LOW_RANK} core gemm o: add {RMS} {EXPERTS} gemm silu gemm mul gemm add o: add"
)
FALCON = f"o: layernorm a: gemm {ROPE} cat*2 core cast gemm f: gemm gelu gemm o: add*2"
NEOX = f"o: layernorm a: gemm {ROPE} cat*2 core cast gemm o: layernorm f: gemm gelu gemm o: add*2"
GPT2 = (
    "o: layernorm a: gemm cat*2 core gemm o: add layernorm "
    "f: gemm mul square mul add mul silu epsilon mul gemm o: add"
)
BERT = "a: gemm*3 core gemm add layernorm f: gemm gelu gemm add o: layernorm"
T5_SELF = f"o: {RMS} a: gemm*3 {UNFUSED} gemm o: add"
T5_FEED = f"o: {RMS} f: gemm silu gemm o: add"
SWITCH = (
    f"o: layernorm a: gemm*3 {UNFUSED} gemm o: add layernorm "
    "f: gemm softmax topk index gemm gelu gemm gemm gelu gemm cat sum o: add"
)
LORA = "gemm cast gemm*2 mul add cast"
ADAPTED = f"o: {RMS} a: {LORA} {LORA} {LORA} {ROPE} cat*2 core {LORA} o: add {RMS} {GATED} o: add"
# Weights of residual streams, and their weighted sum; what a block gives goes to all of them. No
# block owns any of it.
STREAMS = "cast square mean epsilon root mul"
WEIGHED = (
    "gemm mul add sigmoid epsilon mul add sigmoid mul*2 add softmax epsilon sum epsilon sum "
    "epsilon mul sum cast"
)
SPREAD = "o: cast mul cast gemm add"
STREAMED = (
    f"o: {STREAMS} {WEIGHED} {RMS} {QKV} core gemm {SPREAD} "
    f"{STREAMS} {WEIGHED} {RMS} {GATED} {SPREAD}"
)
# Or the product comes before its norm, and the streams take no product to be spread.
NORMED_LATER = (
    "gemm square mean epsilon root mul add sigmoid epsilon mul add sigmoid mul sum cast " + RMS
)
STREAMED_LATER = (
    f"o: {NORMED_LATER} {QKV} core gemm o: cast mul cast add "
    f"{NORMED_LATER} {GATED} o: cast mul cast add"
)
# Where no block follows, nothing tells that the last one gave to several streams.
NOT_WEIGHED_AFTER = STREAMED_LATER.removesuffix("o: cast mul cast add") + "cast mul cast o: add"
PLAIN_HEAD = "gemm argmax"
EAGER_MODELS = {
    "llama": passes(TABLE, [LLAMA] * 4, f"o: {RMS} {PLAIN_HEAD}"),
    "llama, a mask and then the words of the next step": passes(
        f"o: fill*2 mul*2 add mul*2 where {TABLE}", [LLAMA] * 4, f"o: {RMS} gemm"
    ),
    "gemma, norms before and after": passes(TABLE, [SANDWICH] * 4, f"o: {RMS_PLUS_ONE} gemm"),
    "olmo 2, norms after": passes(TABLE, [POST_NORM] * 4, f"o: {RMS} {PLAIN_HEAD}"),
    "qwen 3, norms of q and k": passes(TABLE, [QUERY_KEY_NORMS] * 4, f"o: {RMS} {PLAIN_HEAD}"),
    "deepseek, low rank and experts": passes(
        TABLE, [LATENT] + [LATENT_EXPERTS] * 4, f"o: {RMS} {PLAIN_HEAD}"
    ),
    "falcon, in parallel": passes(TABLE, [FALCON] * 4, f"o: layernorm {PLAIN_HEAD}"),
    "neox, in parallel with a norm": passes(TABLE, [NEOX] * 4, f"o: layernorm {PLAIN_HEAD}"),
    "gpt-2": passes("o: gather*2 add", [GPT2] * 4, f"o: layernorm {PLAIN_HEAD}"),
    "bert": passes("o: gather*3 add*2 layernorm", [BERT] * 4, "o: gemm gelu layernorm gemm"),
    "deberta, what is padded masked behind the first norm": passes(
        "o: gather*2 add layernorm cast mul a: mul", [BERT] * 4, "o: gemm gelu layernorm gemm"
    ),
    "musicgen, as many embeddings and norms before": passes(
        "o: gather*4 add*3 gather add",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm gelu gemm o: add"] * 4,
        "o: layernorm gemm",
    ),
    "vit": passes(
        "o: conv cat add",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm gelu gemm o: add"] * 4,
        "o: layernorm gemm",
    ),
    "siglip, places of patches looked up": passes(
        "o: conv add gather add",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm gelu gemm o: add"] * 4,
        "o: layernorm a: gemm*2 mul softmax gemm*2 o: layernorm f: gemm gelu gemm",
    ),
    "radio, patches made by a product and no norm at the end": passes(
        "o: cast add cast gemm index cast cat",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm gelu gemm o: add"] * 4,
        "o: index",
    ),
    "conformer, whose layers begin with half an FFN and hold convolutions": passes(
        "o: conv add silu conv add conv add silu cast gemm mul cast",
        [
            (
                "o: layernorm f: gemm silu gemm o: mul add layernorm a: gemm*3 core gemm o: add "
                "layernorm f: conv sigmoid conv o: layernorm f: silu conv o: add layernorm "
                "f: gemm silu gemm o: mul add layernorm"
            )
        ]
        * 4,
        "",
    ),
    "segformer, a convolution in the FFN": passes(
        "o: conv layernorm",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm conv gelu gemm o: add"] * 4,
        "o: layernorm",
    ),
    "segformer, with a bias of the convolution": passes(
        "o: conv layernorm",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm conv add gelu gemm o: add"] * 4,
        "o: layernorm",
    ),
    "cohere, norms of a mean written out": passes(
        TABLE, [f"o: {CENTRED} {QKV} core gemm {GATED} o: add*2"] * 4, f"o: {CENTRED} gemm"
    ),
    "t5, distances looked up in the first layer": passes(
        "o: gather",
        [
            f"o: {RMS} a: gemm*3 {looked_up}gemm add softmax gemm gemm o: add {RMS} "
            "f: gemm silu gemm o: add"
            for looked_up in ("add epsilon gather cast ", "", "", "")
        ],
        f"o: {RMS} gemm",
    ),
    "cohere, angles laid out anew before their sines": passes(
        TABLE_LAID_OUT, [LLAMA] * 4, f"o: {RMS} {PLAIN_HEAD}"
    ),
    "moonshine, a table behind the convolutions of sounds": passes(
        "o: conv silu conv gelu a: cast gemm cat cos mul sin mul cast o: cast",
        ["o: layernorm a: gemm*3 core gemm o: add cast layernorm f: gemm gelu gemm o: add cast"]
        * 4,
        "o: layernorm",
    ),
    "pegasus, sines added to the words": passes(
        "o: gather mul*2 sin cast mul cos cast add",
        ["o: layernorm a: gemm*3 core gemm o: add layernorm f: gemm gelu gemm o: add"] * 4,
        "o: layernorm gemm",
    ),
    "squeezebert, convolutions of one place as linear layers": passes(
        "o: gather add layernorm",
        [
            (
                "a: conv*2 add conv add conv*2 core conv add o: add layernorm "
                "f: conv add gelu conv add o: add layernorm"
            )
        ]
        * 4,
        "o: gemm",
    ),
    "inkling, convolutions of keys and values before the core": passes(
        TABLE,
        [
            (
                f"o: {RMS} a: gemm*2 cast conv cast add cast gemm cast conv cast add cast gemm "
                f"{RMS} {RMS} cat*2 gemm add core gemm o: add {RMS} {GATED} o: add"
            )
        ]
        * 4,
        f"o: {RMS} {PLAIN_HEAD}",
    ),
    "granite, what blocks give is scaled before it is added": passes(
        TABLE,
        [f"o: {RMS} {QKV} core gemm o: mul add {RMS} {EXPERTS} o: mul add"] * 4,
        f"o: {RMS} {PLAIN_HEAD}",
    ),
    "cohere, experts beside attention": passes(
        TABLE, [f"o: {RMS} {QKV} core gemm {EXPERTS} o: add*2"] * 4, f"o: {RMS} {PLAIN_HEAD}"
    ),
    "afmoe, shared experts before a norm that is added": passes(
        TABLE,
        [
            (
                f"o: {RMS} {QKV} core gemm o: {RMS} add {RMS} "
                f"f: gemm silu gemm mul gemm {EXPERTS} add o: {RMS} add"
            )
        ]
        * 4,
        f"o: {RMS} {PLAIN_HEAD}",
    ),
    "rwkv, a recurrence written out": passes(
        "o: gather layernorm",
        [
            (
                f"o: layernorm a: mul epsilon mul add gemm*3 sigmoid neg {'mul add root ' * 6}gemm "
                "o: add layernorm f: mul epsilon mul add gemm silu square gemm gemm sigmoid mul "
                "o: add"
            )
        ]
        * 4,
        "o: layernorm gemm",
    ),
    "xlstm, casts between sum and norm": passes(
        "o: gather",
        [
            (
                f"o: {RMS} a: gemm*4 sigmoid mul {'cast mul add gemm sum ' * 3}gemm "
                f"o: add {RMS} {GATED} o: add cast*2"
            )
        ]
        * 4,
        f"o: {RMS} gemm",
    ),
    "falcon h1, a mixer beside attention": passes(
        TABLE,
        [
            (
                f"o: {RMS} a: gemm conv silu {'mul sum add ' * 3}silu mul gemm gemm*3 {ROPE} cat*2 "
                f"core gemm o: add*2 {RMS} {GATED} o: add"
            )
        ]
        * 4,
        f"o: {RMS} gemm",
    ),
    "deberta, positions looked up among the scores": passes(
        "o: gather layernorm",
        [
            (
                "a: gemm*4 mul gemm index gemm index add*2 softmax gemm gemm o: add layernorm "
                "f: gemm gelu gemm o: add layernorm"
            )
        ]
        * 4,
        "o: gemm gelu layernorm gemm",
    ),
    "dit, norms modulated": passes(
        "o: conv add gemm silu gemm",
        [
            (
                "o: silu gemm layernorm a: mul add gemm*3 core gemm o: mul add layernorm "
                "f: mul add gemm gelu gemm o: mul add"
            )
        ]
        * 4,
        "o: silu gemm layernorm mul add gemm",
    ),
    "marian, norms after and none of the embedding": passes(
        "o: gather mul gather add",
        ["a: gemm*3 cat*2 core gemm o: add layernorm f: gemm gelu gemm o: add layernorm"] * 4,
        "o: gemm",
    ),
    "t5, with cross attention": passes("o: gather", [T5_SELF, T5_FEED] * 4, f"o: {RMS}", 1)
    + " "
    + passes("o: gather", [T5_SELF, T5_SELF, T5_FEED] * 4, f"o: {RMS} {PLAIN_HEAD}", 1),
    "switch, eager attention": passes("o: gather", [SWITCH] * 4, f"o: layernorm {PLAIN_HEAD}"),
    "streams, weighed before each block": passes(
        TABLE, [STREAMED] * 4, f"o: {STREAMS} gemm mul add sigmoid mul sum {RMS} {PLAIN_HEAD}"
    ),
    "streams, weighed by a product before its norm": passes(
        TABLE, [STREAMED_LATER] * 3 + [NOT_WEIGHED_AFTER], f"o: {RMS} {PLAIN_HEAD}"
    ),
    "lora": passes(TABLE, [ADAPTED] * 4, f"o: {RMS} {PLAIN_HEAD}"),
}
VLLM_FEED = "f: gemm glu gemm"
VLLM_EXPERTS = "f: gemm route align experts glu experts moesum"
VLLM_ATTENTION = "a: gemm rope cache core gemm"
REDUCE = "copy x: allreduce"
DELTA = "a: gemm*2 conv1d delta gatednorm gemm"
GATED_ATTENTION = "a: gemm norm*2 rope cache core sigmoid mul gemm"
SHARED = f"{VLLM_EXPERTS} gemm glu gemm gemm sigmoid mul add"
TENSOR_PARALLEL = (
    f"o: addnorm {VLLM_ATTENTION} {REDUCE} a: copy o: addnorm {VLLM_FEED} {REDUCE} f: copy"
)
COMPILED = {
    **VLLM,
    "embed": "triton_red_fused_0",
    "addnorm": "triton_red_fused_3",
    "rope": "triton_poi_fused_1",
    "glu": "triton_poi_fused_2",
}
VLLM_MODELS = {
    "llama": passes(
        "o: embed",
        [f"o: addnorm {VLLM_ATTENTION} o: addnorm {VLLM_FEED}"] * 4,
        "o: addnorm gemm argmax",
    ),
    "tensor parallel": passes(
        "o: embed x: allreduce",
        [TENSOR_PARALLEL] * 4,
        "o: addnorm gemm argmax",
    ),
    "all-reduce and norm in one kernel": passes(
        "o: embed norm",
        [f"{VLLM_ATTENTION} x: fusedreduce {VLLM_FEED} x: fusedreduce"] * 4,
        "o: gemm argmax",
    ),
    "gpt-oss, keys split every second layer": passes(
        "o: embed",
        [
            f"o: addnorm {VLLM_ATTENTION} o: addnorm {VLLM_EXPERTS}",
            f"o: addnorm a: gemm rope cache core combine gemm o: addnorm {VLLM_EXPERTS}",
        ]
        * 3,
        "o: addnorm gemm argmax",
    ),
    "deepseek, latent attention and shared experts": passes(
        "o: embed",
        [f"o: addnorm a: gemm norm gemm norm gemm rope cache mla combine gemm*2 o: addnorm {f}"
         for f in (VLLM_FEED, SHARED, SHARED, SHARED)],
        "o: addnorm gemm argmax",
    ),
    "qwen 3 next, linear attention beside full": passes(
        "o: embed",
        [f"o: addnorm {a} o: addnorm {SHARED}" for a in [DELTA, DELTA, DELTA, GATED_ATTENTION] * 2],
        "o: addnorm gemm argmax",
    ),
    "mamba": passes(
        "o: embed", ["o: addnorm a: gemm conv1d gemm*2 scan gemm"] * 4, "o: addnorm gemm argmax"
    ),
    "jamba, mixers and attention": passes(
        "o: embed",
        [
            f"o: addnorm {mixer} o: addnorm {feed}"
            for mixer, feed in [
                ("a: gemm conv1d gemm norm*3 gemm scan gemm", VLLM_FEED),
                ("a: gemm conv1d gemm norm*3 gemm scan gemm", VLLM_EXPERTS),
                (VLLM_ATTENTION, VLLM_FEED),
            ]
            * 2
        ],
        "o: addnorm gemm argmax",
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", EAGER_MODELS)
def test_eager_models(model: str) -> None:
    assert misplaced(EAGER_MODELS[model], EAGER) == []


@pytest.mark.parametrize("model", VLLM_MODELS)
def test_models_in_vllm(model: str) -> None:
    assert misplaced(VLLM_MODELS[model], VLLM) == []


@pytest.mark.parametrize("model", VLLM_MODELS)
def test_models_in_tensorrt_llm(model: str) -> None:
    assert misplaced(VLLM_MODELS[model], TENSORRT) == []


def test_compiled_kernels_whose_names_tell_nothing() -> None:
    """Reductions after products part the blocks as norms would."""
    assert misplaced(VLLM_MODELS["llama"], COMPILED) == []


RESNET = "conv layernorm silu conv layernorm add silu"
NO_TRANSFORMERS = {
    "resnet": ("o: conv layernorm silu " + f"{RESNET} " * 8 + "mean gemm softmax ") * 2,
    "dlrm": "o: gather*8 gemm silu gemm silu gemm silu cat gemm index gemm silu gemm sigmoid " * 4,
    "perceptron with norms": "o: " + "layernorm gemm gelu gemm add " * 8 + "gemm",
    "one attention among convolutions": (
        f"o: {RESNET} gemm {RESNET} groupnorm*2 gemm*3 a: core o: gemm add {RESNET} gemm"
    ),
}


@pytest.mark.parametrize("model", NO_TRANSFORMERS)
def test_what_is_no_transformer_gets_no_blocks(model: str) -> None:
    assert misplaced(NO_TRANSFORMERS[model], EAGER) == []


def test_a_diffusion_model_keeps_its_convolutions_out_of_its_transformer_blocks() -> None:
    """The blocks between the convolutions hold attention and FFN; the products of the time
    embedding beside the convolutions are neither."""
    block = (
        "o: layernorm a: gemm*3 core gemm o: add layernorm a: gemm*3 core gemm o: add layernorm "
        "f: gemm gelu mul gemm o: add"
    )
    around = f"o: groupnorm*2 silu conv silu gemm add {RESNET} groupnorm*2"
    line = f"{around} {block} {block} {block} {around} {block} {block} {block} {around}"
    sequence = spell(line, EAGER)
    found = groups_of(analyze(device_trace(sequence)))
    invented = [
        f"{place} {name[:40]}: {got}, not {wanted}"
        for place, (name, got, wanted) in enumerate(
            zip(sequence.names, found, sequence.groups, strict=True)
        )
        if got not in (wanted, "other")
    ]
    assert invented == []
    assert found.count("ffn") >= 0.6 * sequence.groups.count("ffn")


def test_too_few_cores_are_said_and_leave_products_open() -> None:
    analysis = analyze(device_trace(spell("o: layernorm gemm*3 a: core o: gemm add", EAGER)))
    assert [note.rule for note in analysis.notes if "pattern" in note.rule] == [
        "trace.no_layer_pattern"
    ]
    assert groups_of(analysis) == ["other"] * 4 + ["attention"] + ["other"] * 2
    assert "layers" not in analysis.facts


@pytest.mark.parametrize("share", [0.55, 0.7, 0.85])
def test_a_window_cut_at_its_end(share: float) -> None:
    sequence = spell(EAGER_MODELS["llama"], EAGER)
    stop = int(share * len(sequence.names))
    cut = type(sequence)(sequence.names[:stop], sequence.groups[:stop])
    found = groups_of(analyze(device_trace(cut)))
    right = sum(a == b for a, b in zip(found, cut.groups, strict=True))
    assert right / stop >= 0.98


def test_a_window_that_begins_inside_a_layer() -> None:
    sequence = spell(EAGER_MODELS["llama"], EAGER)
    start = len(sequence.names) // 7
    cut = type(sequence)(sequence.names[start:], sequence.groups[start:])
    found = groups_of(analyze(device_trace(cut)))
    right = sum(a == b for a, b in zip(found, cut.groups, strict=True))
    assert right / len(found) >= 0.98


def test_layers_are_facts_of_the_analysis() -> None:
    mixed = [f"o: addnorm {DELTA} o: addnorm {SHARED}"] * 3
    full = f"o: addnorm {GATED_ATTENTION} o: addnorm {VLLM_FEED}"
    line = passes("o: embed", [*mixed, full] * 3, "o: addnorm gemm argmax")
    facts = analyze(device_trace(spell(line, VLLM))).facts
    assert (facts["layers"], facts["attention_calls"]) == (12, 12)
    assert facts["layer_kinds"] == {"attention+ffn": 3, "mixer+moe": 9}


def test_evidence_and_confidence_are_given() -> None:
    analysis = analyze(device_trace(spell(EAGER_MODELS["llama"], EAGER)))
    placed = analysis.work[analysis.work["bucket"] != BUCKETS.index(("other", "unattributed"))]
    assert set(placed["how"].astype(str)) == {"position"}
    assert placed["confidence"].between(0.6, 1).all()
    parts = {BUCKETS[bucket] for bucket in placed["bucket"]}
    assert parts == {
        ("attention", "projection"),
        ("attention", "rope"),
        ("attention", "kv_cache"),
        ("attention", "core"),
        ("ffn", "projection"),
        ("ffn", "activation"),
        ("other", "norm"),
        ("other", "residual"),
        ("other", "embedding"),
        ("other", "lm_head"),
        ("other", "sampling"),
    }


def test_a_name_never_seen_costs_only_itself() -> None:
    """Inside a block the place tells; an unknown library leaves the rest as it was."""
    words = {**EAGER, "new": "zqx_frobnicate_17"}
    line = EAGER_MODELS["llama"].replace("f: gemm silu", "f: new gemm silu")
    assert misplaced(line, words) == []


def test_what_a_layers_operator_runs_around_its_product_is_of_its_block() -> None:
    """The copy before it is of no norm, and the bias behind it is no residual sum."""
    calls = [
        *(f"o: {RMS}", "a: cast gemm", "a: core", "a: gemm add", f"o: add {RMS}"),
        *("f: cast gemm", "f: gelu", "f: gemm add", "o: add"),
    ]
    maker, clock = TraceMaker(), 0.0
    wanted: list[str] = []
    for call in ["o: gather", *calls * 4, "o: layernorm"]:
        words = spell(call, EAGER)
        if "gemm" in call:
            maker.operator("aten::linear", clock, 10 * len(words.names) - 1)
        for name in words.names:
            maker.launch(name, start=clock + 2, run=(clock + 4, clock + 9), operator="aten::op")
            clock += 10
        wanted += words.groups
    assert groups_of(analyze(maker.build())) == wanted


def test_a_convolution_in_groups_is_where_its_thread_launched_it() -> None:
    """It forks to streams of its own and joins; here between products and core of attention."""
    layer = f"o: {RMS} a: gemm conv*4 gemm core gemm o: add {RMS} {GATED} o: add"
    words = spell(passes("o: gather", [layer] * 4, f"o: {RMS} gemm"), EAGER)
    maker, forked = TraceMaker(), 0.0
    for place, name in enumerate(words.names):
        start = 10.0 * place
        beside = name == EAGER["conv"]
        if beside and words.names[place - 1] != name:
            maker.operator("aten::cudnn_convolution", start, 39)
            forked = start
        run = (forked + 5, forked + 38) if beside else (start + 5, start + 9)
        maker.launch(name, start=start + 2, run=run, stream=13 + place % 4 if beside else 7)
    assert sorted(groups_of(analyze(maker.build()))) == sorted(words.groups)


def two_streams(main: str, side: dict[int, tuple[str, str]]) -> list[str]:
    """Groups of the side stream's kernels. side: place in the main sequence -> word, group."""
    maker = TraceMaker()
    for place, name in enumerate(spell(main, VLLM).names):
        maker.device_row(name, 10 * place, 6, stream=7, correlation=place + 1)
    for place, (word, _) in side.items():
        start = 10 * place + 2
        maker.device_row(VLLM[word], start, 6, stream=9, correlation=10_000 + place)
    analysis = analyze(maker.build())
    streams = analysis.trace.events["stream"].to_numpy()[analysis.work["event"].to_numpy()]
    return [g for g, s in zip(groups_of(analysis), streams.tolist(), strict=True) if s == 9]


def test_shared_experts_on_a_stream_of_their_own_are_ffn() -> None:
    layer = "norm gemm rope cache core gemm addnorm gemm route align experts glu experts moesum add"
    line = " ".join(["embed", *[layer] * 4, "norm gemm argmax"])
    side: dict[int, tuple[str, str]] = {}
    for start in range(1, 1 + 4 * 15, 15):
        side |= {start + 8: ("gemm", "f"), start + 9: ("glu", "f"), start + 11: ("gemm", "f")}
    assert two_streams(line, side) == ["ffn"] * 12


def test_what_runs_beside_the_model_for_its_own_sake_is_not_of_its_layers() -> None:
    layer = "norm gemm rope cache core gemm addnorm gemm glu gemm add"
    line = " ".join(["embed", *[layer] * 8, "norm gemm argmax"])
    side = {20: ("gemm", "o"), 24: ("add", "o"), 30: ("argmax", "o")}
    assert two_streams(line, side) == ["other"] * 3


def test_two_models_on_two_streams_do_not_mix() -> None:
    maker = TraceMaker()
    wanted: dict[int, list[str]] = {}
    for stream, (model, words) in enumerate(
        [(EAGER_MODELS["falcon, in parallel"], EAGER), (VLLM_MODELS["llama"], VLLM)]
    ):
        sequence = spell(model, words)
        wanted[stream] = list(sequence.groups)
        for place, name in enumerate(sequence.names):
            at = 10 * place + stream
            maker.device_row(name, at, 6, stream=stream, correlation=1000 * stream + place + 1)
    analysis = analyze(maker.build())
    streams = analysis.trace.events["stream"].to_numpy()[analysis.work["event"].to_numpy()].tolist()
    found: dict[int, list[str]] = {0: [], 1: []}
    for group, stream in zip(groups_of(analysis), streams, strict=True):
        found[stream].append(group)
    assert found == wanted


def test_steps_part_passes_where_nothing_else_does() -> None:
    """No gather, no chosen token: only the step tells that the last product makes logits."""
    layer = "a: gemm rope cache core gemm o: addnorm f: gemm glu gemm o: addnorm"
    sequence = spell(" ".join(["o: norm", *[layer] * 3, "o: gemm"] * 3), VLLM)
    maker = TraceMaker()
    size = len(sequence.names) // 3
    for step in range(3):
        maker.annotation(f"ProfilerStep#{step}", 1000 * step, 990)
    for place, name in enumerate(sequence.names):
        start = 1000 * (place // size) + 10 + 20 * (place % size)
        maker.launch(name, start=start, run=(start + 5, start + 15))
    assert groups_of(analyze(maker.build())) == list(sequence.groups)


BACKWARD_CORE = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128"
LOSS = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(int)"
OPTIMIZER = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >(int)"
)


def test_a_backward_pass_is_the_pattern_in_reverse() -> None:
    words = {**EAGER, "bcore": BACKWARD_CORE, "loss": LOSS, "adam": OPTIMIZER}
    forward = "o: layernorm a: gemm core gemm o: add layernorm f: gemm gelu gemm o: add"
    backward = "f: gemm*2 gelu gemm*2 o: layernorm add a: gemm*2 bcore gemm*2 o: layernorm add"
    line = " ".join(
        [
            "o: gather",
            *[forward] * 4,
            "o: layernorm gemm loss gemm*2 layernorm",
            *[backward] * 4,
            "adam*3",
        ]
        * 2
    )
    assert misplaced(line, words) == []


def test_backward_operators_follow_the_place_of_their_forward() -> None:
    """The forward pass has a pattern, the backward pass is joined to it by sequence numbers."""
    maker = TraceMaker()
    forward = spell(
        "o: layernorm a: gemm core gemm o: add layernorm f: gemm gelu gemm o: add", EAGER
    )
    clock, wanted = 0.0, []
    operators: list[str] = []
    for _ in range(4):
        for name, group in zip(forward.names, forward.groups, strict=True):
            event = maker.operator("aten::op", clock, 8)
            maker.side("sequences", event, sequence=len(operators), forward_thread=0)
            maker.launch(name, start=clock + 2, run=(clock + 4, clock + 7))
            operators.append(group)
            wanted.append(group)
            clock += 10
    for number in reversed(range(len(operators))):
        node = maker.operator("autograd::engine::evaluate_function: OpBackward0", clock, 8, tid=2)
        maker.side("sequences", node, sequence=number, forward_thread=1)
        maker.launch("backward_kernel", start=clock + 2, run=(clock + 4, clock + 7), tid=2)
        wanted.append(operators[number])
        clock += 10
    assert groups_of(analyze(maker.build())) == wanted


@pytest.mark.parametrize("layer", [LLAMA, LATENT_EXPERTS])
def test_a_module_that_computes_whole_layers_is_no_block_of_one(layer: str) -> None:
    """As a piece of a compiled model does, whose modules have no ranges of their own."""
    words = spell(passes(TABLE, [layer] * 4, f"o: {RMS} {PLAIN_HEAD}"), EAGER)
    maker = TraceMaker()
    half = len(words.names) // 2
    for call in range(2):
        begin = 10 * half * call
        maker.module("model", "GraphModule", begin, 10 * half - 1)
        for place, name in enumerate(words.names[half * call : half * (call + 1)]):
            at = begin + 10 * place + 1
            maker.launch(name, start=at, run=(at + 3, at + 8))
    found = groups_of(analyze(maker.build()))
    assert found == list(words.groups)
