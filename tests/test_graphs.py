"""Graph replays: each node to the launch of its capture."""

from __future__ import annotations

from pathlib import Path

from tests.make_traces import TraceMaker
from tests.recordings import analysis_of, score, truth_of
from tests.test_attribution import parts
from tracer.analyzers import analyze


def test_replays_have_the_groups_of_the_truth(shared: Path) -> None:
    name = "graph_llama8b_capture_and_replay"
    right, total, wrong = score(analysis_of(shared / "h200" / f"{name}.json.gz"), truth_of(name))
    assert total > 0
    assert (right, wrong) == (total, [])


def capture(maker: TraceMaker, at: float, projections: int) -> None:
    """A capture of one attention and one FFN block, so many launches each."""
    maker.host("runtime", "cudaStreamBeginCapture", at, 1)
    for place, (path, kind) in enumerate((("l.0.self_attn", "Attention"), ("l.0.mlp", "MLP"))):
        begin = at + 10 + 100 * place
        maker.module(path, kind, begin, 90)
        for row in range(projections):
            maker.module(f"{path}.p{row}", "Linear", begin + 1 + 10 * row, 8)
            maker.host(
                "runtime", "cudaLaunchKernel", begin + 2 + 10 * row, 3, correlation=900 + row
            )
    maker.host("runtime", "cudaStreamEndCapture", at + 300, 1)


def replay(maker: TraceMaker, at: float, nodes: int, correlation: int) -> None:
    maker.host("runtime", "cudaGraphLaunch", at, 5, correlation=correlation)
    for row in range(nodes):
        maker.device_row("nvjet_x", at + 10 + row, 1, correlation=correlation)


def test_several_graphs_are_told_apart_by_their_nodes() -> None:
    maker = TraceMaker()
    capture(maker, 0, 2)
    capture(maker, 1000, 3)
    replay(maker, 2000, 4, 50)
    replay(maker, 3000, 6, 51)
    attention, ffn = ("attention", "projection", "graph"), ("ffn", "projection", "graph")
    found = parts(analyze(maker.build()))
    assert found == [attention] * 2 + [ffn] * 2 + [attention] * 3 + [ffn] * 3


def test_a_replay_without_its_capture_is_said() -> None:
    maker = TraceMaker()
    capture(maker, 0, 2)
    replay(maker, 2000, 5, 50)
    analysis = analyze(maker.build())
    assert "graph" not in {how for *_, how in parts(analysis)}
    note = next(n for n in analysis.notes if n.rule == "trace.graph_without_capture")
    assert note.count == 1


def test_node_numbers_order_a_replay_on_several_streams() -> None:
    maker = TraceMaker()
    capture(maker, 0, 1)
    maker.host("runtime", "cudaGraphLaunch", 2000, 5, correlation=50)
    late = maker.device_row("gemm_a", 2030, 1, correlation=50, stream=8)
    early = maker.device_row("gemm_b", 2020, 1, correlation=50, stream=9)
    maker.side("graph_nodes", late, graph=1, node=(7 << 32) | 1)
    maker.side("graph_nodes", early, graph=1, node=(7 << 32) | 2)
    found = parts(analyze(maker.build()))
    assert [group for group, *_ in found] == ["ffn", "attention"]
