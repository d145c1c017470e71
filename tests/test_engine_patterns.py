"""The layer pattern on real recordings: against their answers, and against what is known of the
models that engines ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import pytest

from tests.engine_words import LLAMA_CPP
from tests.launch_sequences import VLLM, groups_of, spell
from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, score, truth_of
from tests.stripped import device_alone, without_captures, without_host_evidence
from tracer.analysis import BUCKETS, UNATTRIBUTED, Analysis
from tracer.analyzers import analyze
from tracer.analyzers.names.engine_names import EngineStep, parse_engine_range
from tracer.collectors.kineto.trace import read_kineto
from tracer.events import Trace

BARE = [
    "bert_prefill",
    "gpt2_decode",
    "gpt2_prefill",
    "gpt_neox_decode",
    "gpt_neox_prefill",
    "mixtral_decode",
    "mixtral_prefill",
    "phi3_decode",
    "phi3_prefill",
    "qwen3_decode",
    "qwen3_prefill",
]
# Layers and attention calls a step, from the published configurations of the models.
DEPTHS = {
    "sglang-qwen3-8b-decode-mi300x": 36,
    "sglang-qwen3-8b-prefill-mi300x": 36,
    "sglang-qwen3-30b-a3b-decode-b300": 48,
    "sglang-qwen3-30b-a3b-decode-mi300x": 48,
    "vllm-gptoss-eager-tp-b200": 36,
    "vllm-gptoss-fullgraph-decode-mi300x": 24,
    "vllm-gptoss-piecewise-graph-mi300x": 24,
}
ENGINE_FILES = [*DEPTHS, "vllm-gptoss-piecewise-capture-mi300x"]


@lru_cache(maxsize=2)
def recording(path: Path) -> Trace:
    """A recording as it was read; a few are kept."""
    return read_kineto(path)


def unattributed_ratio(analysis: Analysis) -> float:
    """Share of kernel time that nothing explains."""
    trace, work = analysis.trace, analysis.work
    kernels = trace.events["kind"].astype(str).to_numpy()[work["event"]] == "kernel"
    duration = trace.events["duration_ns"].to_numpy()[work["event"]]
    open_ns = duration[kernels & (work["bucket"] == UNATTRIBUTED).to_numpy()].sum()
    return float(open_ns / duration[kernels].sum())


# --- against answers


def test_bare_recordings_have_the_groups_of_the_truth(shared: Path) -> None:
    right_ns = total_ns = 0.0
    missed = {}
    for name in BARE:
        trace = without_host_evidence(recording(shared / "h200" / f"bare_{name}.json.gz"))
        right, total, wrong = score(analyze(trace), truth_of(f"bare_{name}"))
        right_ns, total_ns = right_ns + right, total_ns + total
        if right / total < 0.995:
            missed[name] = wrong[:5]
    assert missed == {}
    assert right_ns / total_ns >= 0.995


def test_replays_without_their_capture_have_the_groups_of_the_truth(shared: Path) -> None:
    name = "graph_llama8b_capture_and_replay"
    analysis = analyze(without_captures(recording(shared / "h200" / f"{name}.json.gz")))
    right, total, wrong = score(analysis, truth_of(name))
    assert wrong == []
    assert right == total > 0
    assert set(analysis.work["how"].astype(str)) <= {"position", "none"}
    assert (analysis.facts["layers"], analysis.facts["attention_calls"]) == (32, 32)


@pytest.mark.parametrize("strip", [without_host_evidence, device_alone])
def test_a_decode_step_needs_no_module_ranges(
    shared: Path, strip: Callable[[Trace], Trace]
) -> None:
    name = "decode_llama8b_modules"
    analysis = analyze(strip(recording(shared / "h200" / f"{name}.json.gz")))
    right, total, wrong = score(analysis, truth_of(name))
    assert wrong == []
    assert right == total > 0


# --- against the evidence that was taken away

SEEN_OTHERWISE = {
    "h200x2/tp_decode_rank0": 0.995,
    "h200x2/tp_prefill_rank1": 0.995,
    "h200x2/tp_straggler_host_rank1": 0.995,
    "h200/qlora_nf4_decode": 0.995,
    "h200/qlora_nf4_train": 0.97,
    "h200/train_lora_4layer": 0.97,
    "h200/compile_default": 0.995,
    "h200/sync_clean": 0.995,
    "traces/sglang-qwen3-8b-prefill-mi300x": 0.995,
    "traces/vllm-gptoss-eager-tp-b200": 0.995,
    "traces/switch-transformer-moe-a100": 0.995,
    "traces/hf-qwen1.5-0.5b-h100": 0.995,
    "traces/hf-qwen1.5-0.5b-mi300x": 0.995,
    # The second sum of a layer lies inside the FFN's module.
    "traces/hf-nsfw-vit-h100": 0.975,
    # Sums and norms lie inside the blocks.
    "traces/hf-bert-small-mi300x": 0.87,
}


@pytest.mark.parametrize("name", SEEN_OTHERWISE)
def test_position_agrees_with_modules_and_operators(shared: Path, name: str) -> None:
    """The device's side alone, against what the host's side told of the same kernels."""
    trace = recording(shared / f"{name}.json.gz")
    known, found = analyze(trace), analyze(device_alone(trace))
    duration = trace.events["duration_ns"].to_numpy()[known.work["event"]]
    by_evidence = known.work["how"].isin(["module", "operator", "graph", "position"])
    told = (by_evidence & (known.work["work_class"] == "compute")).to_numpy()
    same = [
        _block(BUCKETS[a]) == _block(BUCKETS[b])
        for a, b in zip(known.work["bucket"], found.work["bucket"], strict=True)
    ]
    agreed = duration[told & same].sum() / duration[told].sum()
    assert agreed >= SEEN_OTHERWISE[name]


def _block(bucket: tuple[str, str]) -> str:
    return bucket[0] if bucket[0] in ("attention", "ffn") else "other"


# --- against the models that engines ran


@pytest.mark.parametrize("name", ENGINE_FILES)
def test_engines_leave_little_unattributed(shared: Path, name: str) -> None:
    assert unattributed_ratio(analysis_of(shared / "traces" / f"{name}.json.gz")) <= 0.05


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize("strip", [without_host_evidence, device_alone])
def test_the_pattern_has_the_depth_of_the_model(
    shared: Path, name: str, strip: Callable[[Trace], Trace]
) -> None:
    facts = analyze(strip(recording(shared / "traces" / f"{name}.json.gz"))).facts
    assert (facts["layers"], facts["attention_calls"]) == (DEPTHS[name], DEPTHS[name])
    feed = "+ffn" if "8b" in name else "+moe"
    assert facts["layer_kinds"] == {f"attention{feed}": DEPTHS[name]}


# --- recordings of what is no transformer

NO_TRANSFORMERS = [
    "ddp-resnet-act-ckpt-rccl-mi300x",
    "gpu-only-mi210",
    "kineto-2021-resnet50-v100",
    "nccl-args-resnet-ddp-a100",
    "critical-path-alexnet-a100",
    "dlrm-nccl-8rank-v100.rank0",
    "dlrm-a100-sendrecv-multistream",
    "cpu-only-resnet-dtu",
    "mtia-inference",
]


@pytest.mark.parametrize("name", NO_TRANSFORMERS)
def test_no_attention_and_no_ffn_is_invented(shared: Path, name: str) -> None:
    analysis = analysis_of(shared / "traces" / f"{name}.json.gz")
    assert set(groups_of(analysis)) & {"attention", "ffn"} == set()
    assert "layers" not in analysis.facts


# --- cases of users


def test_case_12_a_graph_replay_keeps_its_kernels_apart() -> None:
    """One launch, forty kernels: no operator is made up, and each keeps its name and time."""
    layer = "norm gemm rope cache core gemm addnorm gemm glu gemm"
    names = spell(" ".join([layer] * 4), VLLM).names
    maker = TraceMaker()
    maker.host("runtime", "cudaGraphLaunch", 0, 5, correlation=7)
    for place, name in enumerate(names):
        maker.device_row(name, 10 + 3 * place, 2, correlation=7)
    analysis = analyze(maker.build())
    work = analysis.work
    assert (analysis.window.launches, analysis.window.kernels) == (1, 40)
    assert set(work["launch"]) == {0} and set(work["operator"]) == {-1}
    found = [analysis.trace.names[analysis.trace.name_codes[e]] for e in work["event"]]
    assert found == list(names)
    assert set(work["how"].astype(str)) == {"position"}
    assert (work["confidence"] < 1).all()


@pytest.mark.parametrize(
    ("name", "replayed", "rows"),
    [
        ("vllm-gptoss-fullgraph-decode-mi300x", 421, 434),
        ("sglang-qwen3-8b-decode-mi300x", 544, 558),
        ("vllm-gptoss-piecewise-graph-mi300x", 361, 423),
    ],
)
def test_case_12_real_replays(shared: Path, name: str, replayed: int, rows: int) -> None:
    analysis = analysis_of(shared / "traces" / f"{name}.json.gz")
    trace, launch = analysis.trace, analysis.work["launch"].to_numpy()
    graphs = [trace.names[trace.name_codes[e]].endswith("GraphLaunch") for e in launch if e >= 0]
    assert (sum(graphs), len(analysis.work)) == (replayed, rows)
    largest = Counter(launch[launch >= 0].tolist()).most_common(1)[0][1]
    assert largest == (15 if "piecewise" in name else replayed)


def test_case_21_communication_of_the_b200_recording(shared: Path) -> None:
    analysis = analysis_of(shared / "traces" / "vllm-gptoss-eager-tp-b200.json.gz")
    ran = analysis.collectives
    duration = (ran["end_ns"] - ran["start_ns"]).to_numpy()
    by_op = {
        str(op): (int((ran["op"] == op).sum()), round(duration[(ran["op"] == op)].sum() / 1e3, 1))
        for op in set(ran["op"].astype(str))
    }
    assert by_op == {"all_reduce": (73, 2119.5), "all_gather": (1, 22.0)}


def test_case_21_the_range_decides_before_the_name(shared: Path) -> None:
    analysis = analysis_of(shared / "traces" / "dlrm-a100-sendrecv-multistream.json.gz")
    trace = analysis.trace
    exchanged = {
        BUCKETS[bucket]
        for event, bucket in zip(analysis.work["event"], analysis.work["bucket"], strict=True)
        if "SendRecv" in trace.names[trace.name_codes[event]]
    }
    assert ("communication", "all_to_all") in exchanged
    assert ("communication", "send_recv") not in exchanged


def test_case_22_expert_parallel_is_communication_and_its_look_alikes_are_not() -> None:
    dispatch = "void dpsk::ep::internode::dispatch<true, 8, false, 7168>(int4*)"
    combine = "void dpsk::ep::internode::combine<true, 8, __nv_bfloat16>(int4*)"
    notify = "void dpsk::ep::internode::notify_dispatch<true, 8>(int const*)"
    look_alikes = [
        "_combined_routing_compute",
        "_combined_routing_memset",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<int*>::Policy>(int)",
        "void moe::dev::routing::routingIndicesDynBlockKernel<moe::KernelParams<float> >(int)",
    ]
    maker = TraceMaker()
    for place, name in enumerate([dispatch, combine, notify, *look_alikes]):
        maker.device_row(name, 10 * place, 5, correlation=place + 1)
    found = [BUCKETS[bucket] for bucket in analyze(maker.build()).work["bucket"]]
    assert found[:3] == [("communication", "expert_parallel")] * 3
    assert found[3:] == [
        ("ffn", "router"),
        ("ffn", "router"),
        ("other", "unattributed"),
        ("ffn", "router"),
    ]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("vllm-gptoss-fullgraph-decode-mi300x", ("decode", 32, 32)),
        ("vllm-gptoss-piecewise-graph-mi300x", ("mixed", 46, 8192)),
        ("sglang-qwen3-8b-decode-mi300x", ("decode", 32, 32)),
        ("sglang-qwen3-8b-prefill-mi300x", ("prefill", 15, 15360)),
        ("vllm-gptoss-eager-tp-b200", ("prefill", 1, 888)),
    ],
)
def test_case_30_steps_of_servers(shared: Path, name: str, step: tuple[str, int, int]) -> None:
    steps = analysis_of(shared / "traces" / f"{name}.json.gz").steps
    rows = steps[["phase", "batch", "tokens"]].itertuples(index=False, name=None)
    assert [(str(phase), batch, tokens) for phase, batch, tokens in rows] == [step]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("[Executor] _forward_step 12: 1 ctx reqs, 900 ctx tokens, 3 gen reqs", ("mixed", 4, 903)),
        ("[Executor] _forward_step 9: 0 ctx reqs, 32 gen reqs", ("decode", 32, 32)),
        ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", ("prefill", 2, -1)),
        ("execute_context_0(0)_generation_0(0)", ("", 0, -1)),
        ("execute_context_3(700)_generation_2(2)", ("mixed", 5, 702)),
        ("step[IDLE bs=0]", ("", 0, -1)),
        ("step[DRAFT_EXTEND_V2 bs=4]", ("decode", 4, 4)),
    ],
)
def test_names_of_engine_steps(name: str, step: tuple[str, int, int]) -> None:
    assert parse_engine_range(name) == EngineStep(*step)


# --- phase and tokens by kernels


def served(core: str, blocks: int, engine: Mapping[str, str] = VLLM) -> Analysis:
    """Two steps of a small model that say nothing of their phase; one block a token."""
    words = {**VLLM, **engine, "core": core}
    layer = "norm gemm rope cache core gemm addnorm gemm glu gemm add"
    names = spell(" ".join([layer] * 3), words).names
    maker = TraceMaker()
    for step in range(2):
        at = 2000 * step
        maker.annotation(f"ProfilerStep#{step}", at, 1900)
        for place, name in enumerate(names):
            start = at + 10 + 20 * place
            event = maker.launch(name, start=start, run=(start + 5, start + 15))
            maker.side("geometry", event, blocks=blocks)
    return analyze(maker.build())


@pytest.mark.parametrize(
    ("core", "phase"),
    [
        ("void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128>(float*)", "decode"),
        ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalVarSeqQ8Kv128ForGen", "decode"),
        ("fmhaSm100aKernel_QkvE4m3H64PagedKvCausalVarSeqQ128Kv128PersistentContext", "prefill"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelI", "prefill"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KTraits>(int)", ""),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64> >(int)", ""),
    ],
)
def test_an_attention_kernel_made_for_one_phase_tells_it(core: str, phase: str) -> None:
    steps = served(core, 12).steps
    assert [str(found) for found in steps["phase"]] == [phase] * 2
    assert list(steps["tokens"]) == [12, 12]


def test_blocks_of_ggml_count_no_tokens() -> None:
    steps = served(LLAMA_CPP["core"], 32, LLAMA_CPP).steps
    assert list(steps["tokens"]) == [-1, -1]


def test_tokens_stay_unknown_where_kernels_disagree() -> None:
    maker = TraceMaker()
    maker.annotation("ProfilerStep#0", 0, 1900)
    names = spell(" ".join(["norm gemm rope cache core gemm addnorm gemm glu gemm add"] * 3), VLLM)
    for place, name in enumerate(names.names):
        event = maker.launch(name, start=10 + 20 * place, run=(15 + 20 * place, 25 + 20 * place))
        maker.side("geometry", event, blocks=3 + place % 11)
    assert list(analyze(maker.build()).steps["tokens"]) == [-1]


def test_a_repeated_step_of_few_rows_that_fills_a_cache_is_decode(shared: Path) -> None:
    for name in ("gpt2_decode", "qwen3_decode", "mixtral_decode"):
        steps = analysis_of(shared / "h200" / f"bare_{name}.json.gz").steps
        assert set(steps["phase"].astype(str)) == {"decode"}
    for name in ("gpt2_prefill", "bert_prefill"):
        steps = analysis_of(shared / "h200" / f"bare_{name}.json.gz").steps
        assert set(steps["phase"].astype(str)) == {""}


# --- a CPU server


def test_a_server_on_the_cpu(shared: Path) -> None:
    """Operators and frames of 622,000 events: blocks and steps without any device."""
    analysis = analysis_of(shared / "vllm_cpu" / "worker_rank0.pt.trace.json.gz")
    phases = Counter(analysis.steps["phase"].astype(str))
    assert phases == {"prefill": 1, "decode": 29, "": 1}
    assert list(analysis.steps["tokens"])[:30] == [5, *[1] * 29]
    charged = Counter[str]()
    for bucket, ns in zip(analysis.work["bucket"], analysis.work["charged_ns"], strict=True):
        charged["/".join(BUCKETS[bucket])] += int(ns)
    total = sum(charged.values())
    assert charged["other/unattributed"] / total <= 0.02
    for part in ("attention/core", "attention/projection", "ffn/projection", "ffn/activation"):
        assert charged[part] > 0.005 * total
    seen = set(analysis.work["how"].astype(str))
    assert {"module"} <= seen <= {"module", "operator", "position", "none"}


def test_pieces_of_a_compiled_model_are_told_by_their_place(shared: Path) -> None:
    """vLLM replays them inside one module, the whole model's: its experts are no attention."""
    analysis = analyze(
        read_kineto(shared / "traces" / "vllm-gptoss-piecewise-graph-mi300x.json.gz")
    )
    kernels = analysis.kernels
    names = kernels["name"].astype(str)
    found = {BUCKETS[bucket] for bucket in kernels["bucket"][names.str.contains("_matmul_ogs")]}
    assert found == {("ffn", "experts")}
