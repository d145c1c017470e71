"""The detail of a finding in the explorer: words, one fact a line, whatever is in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.make_analysis import make_analysis
from tests.sample_analyses import decode_step, plan_finding
from tracer.analyzers import analyze
from tracer.exporters.detail import detail_facts
from tracer.store import load_run
from tracer.tui.look import Look
from tracer.tui.model.finding import finding_lines

RECORDED = sorted((Path(__file__).parents[1] / "recordings" / "fallbacks").iterdir())


@pytest.mark.parametrize(
    ("detail", "facts"),
    [
        ({"each_ns": 40_204_550, "like_ns": None}, [("each time", "40.2 ms")]),
        ({"attention_ratio": 0.177}, [("attention", "18 %")]),
        ({"bytes": 16_384}, [("size", "16.4 kB")]),
        ({"link_bytes_per_s": 478e9}, [("link", "478.0 GB/s")]),
        ({"copy_ns_per_step": 9_764_544}, [("copy", "9.76 ms a step")]),
        ({"timeout_ms": 600_000}, [("timeout", "600 s")]),
        ({"experts": 1024, "training": False}, [("experts", "1,024"), ("training", "no")]),
        ({"generations": [0, 1], "ranks": []}, [("generations", "0, 1")]),
        (
            {"refused": {"flash": ["no such mask is supported"], "efficient": ["dtype", "sizes"]}},
            [("refused", "flash: no such mask is supported"), ("", "efficient: dtype; sizes")],
        ),
        (
            {"modules": [{"module": "mlp", "count": 144, "exposed_ns": 5_113_690}]},
            [("modules", "module mlp, count 144, exposed 5.11 ms")],
        ),
        (
            {"before": {"total_ns": 3_000_000, "parts_ns": {"overhead.host": 2_000_000}}},
            [("before", "total: 3.00 ms"), ("", "parts: overhead.host 2.00 ms")],
        ),
        ({"reasons": ["a" * 30, "b"]}, [("reasons", "a" * 30), ("", "b")]),
    ],
)
def test_facts_in_words(detail: dict[str, Any], facts: list[tuple[str, str]]) -> None:
    assert list(detail_facts(detail)) == facts


def lines_of(analysis: Any, number: int) -> list[str]:
    return [line.text.plain for line in finding_lines(Look(), analysis, number, 100)]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.name)
def test_no_finding_shows_what_python_makes_of_a_container(recorded: Path) -> None:
    analysis = analyze(load_run(recorded))
    for number, finding in enumerate(analysis.findings):
        text = "\n".join(lines_of(analysis, number))
        for value in finding.detail.values():
            if isinstance(value, (dict, list)) and value:
                assert str(value) not in text
                assert str(value)[:12] not in text


def test_texts_of_a_trace_cannot_steer_the_terminal() -> None:
    """Keys and values come from recordings."""
    hostile = {"a\x1b[2J": {"b\n[red]x": ["\x1b]0;title\x07"]}}
    finding = replace(plan_finding(range(1)), detail=hostile)
    text = "\n".join(lines_of(make_analysis([decode_step()], findings=(finding,)), 0))
    assert "\x1b" not in text and "\x07" not in text
    assert "[red]x" in text
