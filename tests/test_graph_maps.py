"""Maps of captured graphs: saved, verified, and used for replays in other recordings."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of
from tests.test_attribution import parts
from tests.test_graphs import capture, replay
from tracer import cli
from tracer.analysis import BUCKETS, Analysis
from tracer.analyzers import analyze
from tracer.analyzers.graphs.maps import map_captures, only_maps
from tracer.analyzers.graphs.order import merge_streams
from tracer.collectors.graph_captures import GraphCaptures
from tracer.collectors.kineto.trace import read_kineto
from tracer.events import Trace
from tracer.live import graph_memory
from tracer.store import load_run, save_run

ATTENTION, FFN = ("attention", "projection", "graph"), ("ffn", "projection", "graph")


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Generator[None]:
    graph_memory.forget()
    yield
    graph_memory.forget()


def captured(projections: int = 2) -> Trace:
    maker = TraceMaker()
    capture(maker, 0, projections)
    return maker.build()


def replayed(nodes: int, name: str = "nvjet_x") -> Trace:
    maker = TraceMaker(base_ns=10**9)
    maker.host("runtime", "cudaGraphLaunch", 0, 5, correlation=7)
    for row in range(nodes):
        maker.device_row(name, 10 + row, 1, correlation=7)
    return maker.build()


def rules(analysis: Analysis) -> list[str]:
    return [note.rule for note in analysis.notes if note.rule.startswith("trace.graph")]


def test_a_replay_is_understood_by_a_capture_in_another_recording() -> None:
    analysis = analyze(replayed(4), captures=[captured()])
    assert parts(analysis) == [ATTENTION] * 2 + [FFN] * 2
    assert rules(analysis) == ["trace.graph_map_reused"]
    modules = analysis.modules.set_index("path")
    assert modules["kernels"][["l.0.self_attn", "l.0.mlp"]].tolist() == [2, 2]
    assert modules["role"][["l.0.self_attn", "l.0.mlp"]].tolist() == ["attention", "ffn"]


def test_a_map_is_saved_with_its_run_and_read_again(tmp_path: Path) -> None:
    save_run(only_maps(captured()), tmp_path / "warmup")
    analysis = analyze(replayed(4), captures=[load_run(tmp_path / "warmup")])
    assert parts(analysis) == [ATTENTION] * 2 + [FFN] * 2


def test_what_a_capture_says_of_each_node() -> None:
    nodes = map_captures(captured(1))["captured_nodes"]
    assert nodes["path"].tolist() == ["l.0.self_attn.p0", "l.0.mlp.p0"]
    assert nodes["type"].tolist() == ["Linear", "Linear"]
    assert nodes["block"].tolist() == ["attention", "ffn"]
    assert nodes["kind"].tolist() == ["kernel", "kernel"]


def test_a_recording_without_a_capture_has_no_map() -> None:
    assert map_captures(replayed(4)) == {}
    assert rules(analyze(replayed(4), captures=[replayed(4)])) == []


def triton_capture(kernel: str) -> Trace:
    maker = TraceMaker()
    maker.host("runtime", "cudaStreamBeginCapture", 0, 1)
    maker.module("l.0.self_attn", "Attention", 10, 90)
    operator = maker.operator(kernel, 20, 20)
    maker.side("generated", operator, kernel=kernel)
    maker.host("runtime", "cuLaunchKernel", 30, 2, correlation=900)
    maker.host("runtime", "cudaStreamEndCapture", 200, 1)
    return maker.build()


def test_a_map_of_other_kernels_is_refused_and_said() -> None:
    mine, other = triton_capture("triton_poi_fused_0"), triton_capture("triton_poi_fused_1")
    assert parts(analyze(replayed(1, "triton_poi_fused_0"), captures=[mine]))[0][2] == "graph"
    analysis = analyze(replayed(1, "triton_poi_fused_0"), captures=[other])
    assert parts(analysis)[0][2] != "graph"
    assert rules(analysis) == ["trace.graph_disagrees"]


def test_kernels_that_operators_rule_out_are_refused() -> None:
    maker = TraceMaker()
    maker.host("runtime", "cudaStreamBeginCapture", 0, 1)
    maker.module("l.0.mlp", "MLP", 10, 90)
    for row in range(4):
        maker.operator("aten::mul", 12 + 10 * row, 8)
        maker.host("runtime", "cudaLaunchKernel", 13 + 10 * row, 2, correlation=900 + row)
    maker.host("runtime", "cudaStreamEndCapture", 200, 1)
    analysis = analyze(replayed(4), captures=[maker.build()])
    assert rules(analysis) == ["trace.graph_disagrees"]


def layered(*layers: int) -> Trace:
    """One capture a layer, alike but for the layer's number."""
    return one_a_module(*(f"l.{layer}.mlp" for layer in layers))


def one_a_module(*paths: str) -> Trace:
    """One capture of one kernel a module."""
    maker = TraceMaker()
    for place, path in enumerate(paths):
        begin = 1000 * place
        maker.host("runtime", "cudaStreamBeginCapture", begin, 1)
        kind = "Attention" if path.endswith("attn") else "MLP"
        maker.module(path, kind, begin + 10, 90)
        maker.host("runtime", "cudaLaunchKernel", begin + 20, 3, correlation=900 + place)
        maker.host("runtime", "cudaStreamEndCapture", begin + 200, 1)
    return maker.build()


def test_a_replay_that_fits_captures_of_different_modules_is_left_to_other_evidence() -> None:
    analysis = analyze(replayed(1, "gemm"), captures=[one_a_module("l.0.self_attn", "l.0.mlp")])
    assert rules(analysis) == ["trace.graph_ambiguous"]
    assert parts(analysis)[0][2] != "graph"


def test_a_replay_that_fits_captures_of_modules_alike_is_one_of_theirs() -> None:
    analysis = analyze(replayed(1, "gemm"), captures=[layered(0, 1)])
    assert "trace.graph_alike" in rules(analysis)
    kernels = analysis.modules.set_index("path")["kernels"]
    assert kernels[["l.0.mlp", "l.1.mlp"]].tolist() == [0, 1]


def test_captures_alike_are_told_apart_by_their_order() -> None:
    first = TraceMaker()
    capture(first, 0, 2)
    captures = [first.build(), layered(0, 1)]
    maker = TraceMaker(base_ns=10**9)
    replay(maker, 0, 4, 50)
    replay(maker, 1000, 1, 51)
    replay(maker, 2000, 1, 52)
    analysis = analyze(maker.build(), captures=captures)
    modules = analysis.modules.set_index("path")["kernels"]
    assert modules[["l.0.mlp", "l.1.mlp"]].tolist() == [3, 1]
    assert "trace.graph_by_order" in rules(analysis)


def test_a_graph_captured_again_is_read_by_its_last_capture() -> None:
    maker = TraceMaker()
    capture(maker, 0, 2)
    capture(maker, 1000, 2)
    replay(maker, 2000, 4, 50)
    capture(maker, 3000, 2)
    replay(maker, 4000, 4, 51)
    assert parts(analyze(maker.build())) == ([ATTENTION] * 2 + [FFN] * 2) * 2


def test_the_backward_pass_is_captured_on_its_own_thread() -> None:
    maker = TraceMaker()
    maker.host("runtime", "cudaStreamBeginCapture", 0, 1)
    maker.module("l.0.self_attn", "Attention", 10, 20)
    maker.host("runtime", "cudaLaunchKernel", 12, 3, correlation=900)
    maker.host("runtime", "cudaLaunchKernel", 40, 3, tid=2, correlation=901)
    maker.host("runtime", "cudaStreamEndCapture", 200, 1)
    replay(maker, 1000, 2, 50)
    analysis = analyze(maker.build())
    assert rules(analysis) == []
    assert parts(analysis)[0][2] == "graph"


def test_work_that_runs_during_a_capture_is_no_node_of_it() -> None:
    maker = TraceMaker()
    capture(maker, 0, 2)
    maker.launch("other_stream", start=150, run=(160, 170))
    replay(maker, 2000, 4, 50)
    assert rules(analyze(maker.build())) == []


def eager_call(maker: TraceMaker, begin: float, names: list[str]) -> None:
    """The captured modules run at once, each launching two kernels."""
    for place, (path, kind) in enumerate((("l.0.self_attn", "Attention"), ("l.0.mlp", "MLP"))):
        at = begin + 100 * place
        maker.module(path, kind, at, 90)
        for row in range(2):
            time = at + 10 + 20 * row
            maker.launch(names[2 * place + row], start=time, run=(time + 5, time + 8))


def test_kernels_of_two_streams_are_paired_by_what_ran_eagerly_before() -> None:
    maker = TraceMaker()
    names = ["gemm_a", "gemm_b", "gemm_c", "gemm_d"]
    eager_call(maker, 0, names)
    maker.host("runtime", "cudaStreamBeginCapture", 500, 1)
    for place, (path, kind) in enumerate((("l.0.self_attn", "Attention"), ("l.0.mlp", "MLP"))):
        at = 510 + 100 * place
        maker.module(path, kind, at, 90)
        for row in range(2):
            maker.host("runtime", "cudaLaunchKernel", at + 10 + 20 * row, 3, correlation=900 + row)
    maker.host("runtime", "cudaStreamEndCapture", 800, 1)
    maker.host("runtime", "cudaGraphLaunch", 1000, 5, correlation=50)
    for name, start, stream in (
        ("gemm_c", 1010, 9), ("gemm_a", 1011, 7), ("gemm_b", 1013, 7), ("gemm_d", 1014, 9),
    ):  # fmt: skip
        maker.device_row(name, start, 1, correlation=50, stream=stream)
    analysis = analyze(maker.build())
    groups = [BUCKETS[bucket][0] for bucket in analysis.work["bucket"][4:]]
    assert groups == ["ffn", "attention", "attention", "ffn"]
    assert rules(analysis) == ["trace.graph_positional"]


def test_streams_interleave_where_they_fit_best() -> None:
    # Nodes: a b a b; rows in order of start: the first stream a a, the second b b.
    kinds = np.array([0, 0, 1, 1])
    scores = np.where(np.array([0, 1, 0, 1])[:, None] == kinds[None, :], 2.0, -1.0)
    assert merge_streams(scores, np.array([7, 7, 9, 9])).tolist() == [0, 2, 1, 3]
    assert merge_streams(np.zeros((4, 4)), np.array([7, 9, 7, 9])).tolist() == [0, 1, 2, 3]
    three = merge_streams(np.eye(3)[[2, 0, 1]], np.array([7, 8, 9]))
    assert three.tolist() == [2, 0, 1]


def test_a_later_trace_of_the_process_knows_the_graph() -> None:
    graph_memory.with_known_graphs(captured())
    later = graph_memory.with_known_graphs(replayed(4))
    analysis = analyze(later)
    assert parts(analysis) == [ATTENTION] * 2 + [FFN] * 2
    origins = later.table("graph_captures")["origin"].tolist()
    assert origins == [graph_memory.ORIGIN]


def test_a_trace_that_nobody_read_is_read_when_the_next_begins() -> None:
    read: list[Trace] = []
    graph_memory.expect(lambda: read.append(graph_memory.with_known_graphs(captured())))
    graph_memory.settle()
    graph_memory.settle()
    assert len(read) == 1
    assert len(read[0].table("captured_nodes")) == 4


def test_marks_of_torch_name_the_block_of_a_node() -> None:
    maker = TraceMaker()
    maker.host("runtime", "cudaGraphLaunch", 0, 5, correlation=7)
    for row in range(3):
        event = maker.device_row("nvjet_x", 10 + row, 1, correlation=7)
        maker.side("graph_nodes", event, graph=1, node=(7 << 32) | row)
    marks = {(7 << 32) | 0: "layers.0.self_attn", (7 << 32) | 1: "layers.0.mlp"}
    trace = graph_memory.with_annotations(maker.build(), marks)
    assert parts(analyze(trace))[:2] == [ATTENTION, FFN]
    assert graph_memory.with_annotations(maker.build(), {}).table("graph_annotations").empty


class FakeGraph:
    """Stands for the class of graphs, which a build for the CPU does not have."""

    def capture_end(self) -> str:
        return "ended"


def test_captures_are_counted_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_CUDAGraph", FakeGraph, raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    original = FakeGraph.capture_end
    source = GraphCaptures()
    source.start()
    assert FakeGraph().capture_end() == "ended"
    source.close()
    assert source.count == 1
    assert FakeGraph.capture_end is original


def groups_ns(analysis: Analysis) -> dict[str, int]:
    """Nanoseconds of kernels by group."""
    sums: dict[str, int] = {}
    for bucket, ns in zip(analysis.work["bucket"], analysis.work["charged_ns"], strict=True):
        group = BUCKETS[bucket][0]
        sums[group] = sums.get(group, 0) + int(ns)
    return sums


def test_replays_alone_are_read_by_the_capture_of_another_file(shared: Path) -> None:
    folder = shared / "h200"
    captures = [read_kineto(folder / "graph_llama8b_capture_and_replay.json.gz")]
    analysis = analyze(read_kineto(folder / "graph_replay_only.json.gz"), captures)
    graph = analysis.work[analysis.work["how"] == "graph"]
    assert graph["charged_ns"].sum() >= 0.99 * analysis.work["charged_ns"].sum()
    eager = groups_ns(analysis_of(folder / "graph_eager_same.json.gz"))
    found = groups_ns(analysis)
    steps = len(analysis.steps) / len(analysis_of(folder / "graph_eager_same.json.gz").steps)
    for group in ("attention", "ffn", "other"):
        ratio = found[group] / (eager[group] * steps)
        assert abs(ratio - 1) <= 0.05, (group, ratio)


def test_a_capture_phase_of_a_serving_engine(
    shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shared / "traces"
    replays = str(folder / "vllm-gptoss-piecewise-graph-mi300x.json.gz")
    captures = str(folder / "vllm-gptoss-piecewise-capture-mi300x.json.gz")
    assert cli.main(["report", replays, "--capture", captures]) == 0
    out: Any = capsys.readouterr().out
    assert "25 graph replays come from captures outside this recording" in " ".join(out.split())
    assert cli.main(["report", replays, "--capture", replays]) == 2
    assert "no graph is captured in it" in capsys.readouterr().err
