"""The layer pattern under serving engines: quantizers, drafts, adapters, names never seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from tests.engine_words import (
    LLAMA_CPP,
    MLC,
    ROCM,
    SGLANG,
    TENSORRT_MORE,
    TURBOMIND,
    VLLM_MORE,
)
from tests.launch_sequences import EAGER, misplaced, passes
from tracer.analyzers.names.kernel_table import describe


class Model(NamedTuple):
    """A model under an engine: words that give its launches, and their groups."""

    words: Mapping[str, str]
    begin: str
    layers: list[str]
    end: str = "o: gemm argmax"

    @property
    def line(self) -> str:
        return passes(self.begin, self.layers, self.end)


FIRST = "o: embed norm"
FEED = "f: gemm glu gemm"
LLAMA = f"a: gemm rope cache core gemm o: addnorm {FEED} o: addnorm"
EXPERTS = "f: gemm route align experts glu experts moesum"
SHARED = "gemm glu gemm gemm sigmoid mul"
LOW_RANK = "bygroup deepgemm norm*2 bygroup deepgemm"
LATENT = f"a: {LOW_RANK} rope latentcache bmm mla combine bmm bygroup deepgemm o: addnorm"
INDEXED = (
    f"a: {LOW_RANK} bygroup deepgemm*2 layernorm rope hadamard bygroup gemm keycache logits pick "
    "rope latentcache bmm sparse combine bmm bygroup deepgemm o: addnorm"
)
DENSE_FP8 = "f: bygroup deepgemm glu bygroup deepgemm"
EXPERTS_FP8 = "f: gemm group bygroup align experts glu bygroup experts moesum"
SHARED_FP8 = "bygroup deepgemm glu bygroup deepgemm"
OVER_NETWORK = "f: gemm group bygroup x: dispatch f: grouped siluquant grouped x: gather f:"
ATTEND = "o: addnorm a: gemm rope cache core gemm o: addnorm f: gemm route x: dispatch"
EXCHANGE = "f: grouped siluquant grouped x: gather f: gemm glu gemm add"
CHUNKED = (
    "a: gemm norm*2 gemm rope latentcache gemm cat core gathercache gemm cat core merge gemm "
    f"o: addnorm {FEED} o: addnorm"
)
MAMBA2 = "a: gemm conv1d update gatednorm gemm o: addnorm"
SQUARED = "f: gemm relu gemm o: addnorm"
DELTA = "a: gemm*2 split conv1d gating delta gatednorm gemm o: addnorm"
DELTA_PREFILL = (
    "a: gemm*2 split conv1d gating l2norm*2 kkt inverse wu deltastate deltaout gatednorm gemm "
    "o: addnorm"
)
GATED = "a: gemm norm*2 rope cache core sigmoid mul gemm o: addnorm"
OSS_EXPERTS = "f: gemm topk bitmatrix routing ogs*2 scatter o: addnorm"
GEMMA = f"a: gemm norm*2 rope cache core gemm o: norm addnorm {FEED} o: norm addnorm"
PARALLEL = "o: layernorm a: gemm rope cache core gemm f: gemm gelu gemm o: add add"
TARGET = passes(FIRST, [LLAMA] * 6, "o: gemm argmax", 1)
DRAFT = (
    "o: embed norm*2 cat gemm norm a: gemm rope cache core gemm "
    f"o: addnorm {FEED} o: addnorm gemm argmax"
)

MODELS = {
    "vllm, gemma 3": Model(VLLM_MORE, "o: embed mul norm", [GEMMA] * 4),
    "vllm, fp8 by token": Model(
        VLLM_MORE,
        FIRST,
        [("a: bytoken fp8 rope cache core bytoken fp8 o: addnorm f: bytoken fp8 glu bytoken fp8 "
         "o: addnorm")] * 4,
    ),
    "vllm, fp8 quantizer in norm and activation": Model(
        VLLM_MORE,
        "o: embed normquant",
        ["a: fp8 rope cache core quant fp8 o: normquant f: fp8 gluquant fp8 o: normquant"] * 4,
    ),
    "vllm, marlin": Model(
        VLLM_MORE,
        FIRST,
        ["a: marlin rope cache core marlin o: addnorm f: marlin glu marlin o: addnorm"] * 4,
    ),
    "vllm, awq prefill": Model(
        VLLM_MORE,
        FIRST,
        [("a: dequant gemm rope cache core dequant gemm o: addnorm f: dequant gemm glu dequant "
         "gemm o: addnorm")] * 4,
    ),
    "vllm, adapters": Model(
        VLLM_MORE,
        FIRST,
        [("a: gemm shrink expand rope cache core gemm shrink expand o: addnorm "
         "f: gemm shrink expand glu gemm shrink expand o: addnorm")] * 4,
    ),
    "vllm, deepseek, experts over the network": Model(
        VLLM_MORE,
        FIRST,
        [f"{LATENT} {DENSE_FP8} o: addnorm",
         *[f"{LATENT} {OVER_NETWORK} {SHARED_FP8} add o: addnorm"] * 4],
    ),
    "vllm, deepseek with a sparse indexer": Model(
        VLLM_MORE,
        FIRST,
        [f"{INDEXED} {DENSE_FP8} o: addnorm",
         *[f"{INDEXED} {EXPERTS_FP8} {SHARED_FP8} add o: addnorm"] * 4],
    ),
    "vllm, latent attention in chunks": Model(VLLM_MORE, FIRST, [CHUNKED] * 4),
    "vllm, llama 4, experts every second layer": Model(
        VLLM_MORE,
        FIRST,
        [f"a: gemm rope norm*2 cache core gemm o: addnorm {FEED} o: addnorm",
         ("a: gemm rope cache core gemm o: addnorm f: gemm glu gemm gemm sigmoid route align "
         "experts glu experts moesum add o: addnorm")] * 3,
    ),
    "vllm, gpt-oss": Model(
        VLLM_MORE,
        FIRST,
        [f"a: gemm rope cache keys segments gemm o: addnorm {OSS_EXPERTS}",
         f"a: gemm rope cache window gemm o: addnorm {OSS_EXPERTS}"] * 3,
    ),
    "vllm, in parallel": Model(
        VLLM_MORE, "o: embed", [PARALLEL] * 4, "o: layernorm gemm argmax"
    ),
    "vllm, mamba 2 prefill": Model(
        VLLM_MORE,
        FIRST,
        ["a: gemm conv1d state pass bmm chunks gatednorm gemm o: addnorm"] * 4,
    ),
    "vllm, minicpm, scaled before the sum": Model(
        VLLM_MORE,
        "o: embed mul norm",
        [f"a: gemm rope cache core gemm o: mul addnorm {FEED} o: mul addnorm"] * 4,
        "o: mul gemm argmax",
    ),
    "vllm, lfm 2, short convolutions": Model(
        VLLM_MORE,
        FIRST,
        [
            *[f"a: gemm mul conv1d mul gemm o: addnorm {FEED} o: addnorm"] * 2,
            f"a: gemm norm*2 rope cache core gemm o: addnorm {FEED} o: addnorm",
        ]
        * 3,
    ),
    "vllm, two batches in turn": Model(
        VLLM_MORE,
        "o: embed*2",
        [f"{ATTEND} {ATTEND} {EXCHANGE} {EXCHANGE}"]
        * 4,
        "o: addnorm gemm argmax",
    ),
    "vllm, nemotron-h": Model(
        VLLM_MORE,
        FIRST,
        [*[MAMBA2, SQUARED] * 3, "a: gemm cache core gemm o: addnorm", SQUARED] * 3,
    ),
    "vllm, falcon-h1, mixer beside attention": Model(
        VLLM_MORE,
        FIRST,
        [("a: gemm conv1d update gatednorm gemm gemm rope cache core gemm add "
         f"o: addnorm {FEED} o: addnorm")] * 4,
    ),
    "vllm, qwen 3 next": Model(
        VLLM_MORE,
        FIRST,
        [*[f"{DELTA} {EXPERTS} {SHARED} add o: addnorm"] * 3,
         f"{GATED} {EXPERTS} {SHARED} add o: addnorm"] * 2,
    ),
    "vllm, qwen 3 next, prefill": Model(
        VLLM_MORE,
        FIRST,
        [*[f"{DELTA_PREFILL} f: {SHARED} {EXPERTS} add o: addnorm"] * 3,
         f"{GATED} f: {SHARED} {EXPERTS} add o: addnorm"] * 2,
    ),
    "vllm, compiled": Model(
        VLLM_MORE,
        "o: fusednorm",
        [("a: gemm fusedqk fusedrope cache core gemm o: fusednorm f: gemm fusedglu gemm "
         "o: fusednorm")] * 4,
    ),
    "sglang, gemma 3": Model(
        SGLANG,
        "o: embed mul",
        [("o: gemmanorm a: gemm gemmanorm*2 rope cache stage1 stage2 gemm o: gemmanorm add "
         f"gemmanorm {FEED} o: gemmanorm add")] * 4,
        "o: gemmanorm gemm argmax",
    ),
    "sglang, qwen 3 experts, tensor parallel": Model(
        SGLANG,
        FIRST,
        [("a: gemm norm*2 rope cache core states gemm x: allreduce o: addnorm "
         "f: gemm route align count experts glu experts moesum x: allreduce o: addnorm")] * 4,
    ),
    "sglang, attention by data, experts by all": Model(
        SGLANG,
        FIRST,
        [("a: gemm norm*2 rope cache core gemm o: addnorm x: allgather f: gemm route align count "
         "experts glu experts moesum x: reducescatter o: addnorm")] * 4,
    ),
    "sglang, deepseek, shared experts first": Model(
        SGLANG,
        FIRST,
        [("a: bygroup deepgemm norm bygroup deepgemm norm bmm rope latentcache stage1 stage2 bmm "
         f"bygroup deepgemm o: addnorm f: {SHARED_FP8} gemm gate bygroup align count experts glu "
         "bygroup experts moesum add o: addnorm")] * 4,
    ),
    "sglang, prefill and decode in one batch": Model(
        SGLANG,
        FIRST,
        [f"a: gemm rope cache prefill core gemm o: addnorm {FEED} o: addnorm"] * 4,
    ),
    "tensorrt-llm, deepseek": Model(
        TENSORRT_MORE,
        FIRST,
        [f"a: fuseda norm*2 gemm bmm latentrope core reduction bmm gemm x: fusedreduce {feed}"
         for feed in (f"{FEED} x: fusedreduce",
                      *["f: router route experts*2 gemm glu gemm x: tail"] * 4)],
    ),
    "llama.cpp, decode": Model(
        LLAMA_CPP,
        "o: embed",
        [("o: norm a: quant gemv*3 rope cache*2 core combine quant gemv o: add norm "
         "f: quant gemv quant gemv glu quant gemv o: add")] * 4,
        "o: norm quant gemv",
    ),
    "llama.cpp, gate in the product": Model(
        LLAMA_CPP,
        "o: embed",
        [("o: norm a: quant gemv*3 rope cache*2 core combine quant gemv o: add norm "
         "f: quant gemv quant gemv o: add")] * 4,
        "o: norm quant gemv",
    ),
    "llama.cpp, prefill without flash attention": Model(
        LLAMA_CPP,
        "o: embed",
        [("o: norm a: quants gemm fixup quants gemm fixup quants gemm fixup rope*2 cache*2 "
         "gemvf softmax gemvf copy quants gemm fixup o: add norm "
         "f: quants gemm fixup quants gemm fixup glu quants gemm fixup o: add")] * 4,
        "o: norm quant gemv",
    ),
    "llama.cpp, experts weighted and summed one by one": Model(
        LLAMA_CPP,
        "o: embed",
        [("o: norm a: quant gemv quant gemv quant gemv norm*2 rope*2 cache*2 core combine quant "
         "gemv o: add norm f: gemvf topk quant gemv*2 glu quant gemv mul add*7 o: add")] * 4,
        "o: norm quant gemv",
    ),
    "llama.cpp, gemma 3": Model(
        LLAMA_CPP,
        "o: embed scale",
        [("o: norm a: quant gemv quant gemv quant gemv norm*2 rope*2 cache*2 core combine quant "
         "gemv o: normadd norm f: quant gemv quant gemv glu quant gemv o: normadd")] * 4,
        "o: norm quant gemv",
    ),
    "llama.cpp, mamba": Model(
        LLAMA_CPP,
        "o: embed",
        ["o: norm a: quant gemv copy conv quant gemv scan mul quant gemv o: add"] * 4,
        "o: norm quant gemv",
    ),
    "rocm, llama": Model(
        ROCM,
        FIRST,
        ["a: gemv rope cache core combine gemv o: addnorm f: gemv glu gemv o: addnorm"] * 4,
        "o: gemv argmax",
    ),
    "rocm, fp8 experts": Model(
        ROCM,
        FIRST,
        [("a: quant fp8 rope cache core quant fp8 x: allreduce o: addnorm f: gemv route sort quant "
         "experts quant experts x: allreduce o: addnorm")] * 4,
        "o: gemv argmax",
    ),
    "turbomind, experts": Model(
        TURBOMIND,
        FIRST,
        [("a: gemm cache core reduce gemm o: addnorm f: gemm route scan gemm glu gemm moesum "
         "o: addnorm")] * 4,
        "o: gemm topk sample",
    ),
    "mlc, sums in the products": Model(
        MLC,
        "o: embed",
        ["o: norm a: gemm rope cache core gemmadd o: norm f: gemm glu gemmadd"] * 4,
        "o: norm gemm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_under_engines(name: str) -> None:
    assert misplaced(MODELS[name].line, MODELS[name].words) == []


@pytest.mark.parametrize("times", [1, 3])
def test_a_draft_model_between_the_passes(times: int) -> None:
    """Each pass of the draft is one layer of its own between the target's."""
    line = f"{TARGET} o: reject prepare {' '.join([DRAFT] * times)} " * 3
    assert misplaced(line, VLLM_MORE) == []


def without_names(words: Mapping[str, str], *tokens: str) -> dict[str, str]:
    """The words with kernels of these kinds called by names that tell nothing."""
    return {
        word: f"zqx{place}" if describe(name).token in tokens else name
        for place, (word, name) in enumerate(words.items())
    }


ANY_NORM = ("NORM", "NORM_ADD")
NORMED = [
    "vllm, fp8 by token",
    "vllm, marlin",
    "vllm, awq prefill",
    "vllm, adapters",
    "vllm, gpt-oss",
    "sglang, qwen 3 experts, tensor parallel",
    "sglang, prefill and decode in one batch",
    "rocm, fp8 experts",
    "turbomind, experts",
]


@pytest.mark.parametrize("name", NORMED)
def test_norms_of_a_library_never_seen(name: str) -> None:
    model = MODELS[name]
    wrong = misplaced(model.line, without_names(model.words, *ANY_NORM))
    assert [line for line in wrong if "zqx" not in line] == []


@pytest.mark.parametrize(
    "name", ["vllm, gpt-oss", "rocm, fp8 experts", "sglang, qwen 3 experts, tensor parallel"]
)
def test_experts_of_a_library_never_seen(name: str) -> None:
    model = MODELS[name]
    assert misplaced(model.line, without_names(model.words, "MOE", "ROUTER")) == []


WRITING = [
    "vllm, gemma 3",
    "vllm, llama 4, experts every second layer",
    "sglang, gemma 3",
    "llama.cpp, decode",
    "rocm, llama",
]


@pytest.mark.parametrize("name", WRITING)
def test_attention_of_a_library_never_seen(name: str) -> None:
    """Between the write to the cache and the output projection."""
    model = MODELS[name]
    assert misplaced(model.line, without_names(model.words, "CORE", "CORE_AUX")) == []


def test_neither_norms_nor_activations_known() -> None:
    model = MODELS["vllm, marlin"]
    words = without_names(model.words, *ANY_NORM, "GLU")
    wrong = misplaced(model.line, words)
    assert [line for line in wrong if "zqx" not in line] == []


NO_TRANSFORMERS = {
    "perceptron": "o: " + "gather gemm new gemm new gemm softmax argmax " * 8,
    "two towers": "o: " + "gather gemm new gemm new gather gemm new gemm new gemm softmax " * 6,
    "graph network": "o: " + "gemm new index add softmax index gemm new " * 6,
    "recommender": "o: " + "gather*8 gemm silu gemm silu gemm new gemm silu gemm sigmoid " * 4,
}


@pytest.mark.parametrize("model", NO_TRANSFORMERS)
def test_names_never_seen_make_no_layers(model: str) -> None:
    assert misplaced(NO_TRANSFORMERS[model], {**EAGER, "new": "zqx17"}) == []
