"""Titles of parts and columns: whole words at every width, over what they name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.make_analysis import Step, make_analysis
from tests.tui.driving import driven
from tests.tui.samples import decode_analysis, rank_trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.tui.look import Look
from tracer.tui.model.lines import heading, shortened
from tracer.tui.model.overview import Facts, lay_out
from tracer.tui.model.ranks import path_tail

WIDTHS = range(60, 201, 4)
PARTS = ("attention.projection", "ffn.projection", "attention.core", None)


def floors(*phases: str) -> Analysis:
    """A recording whose steps are named by long words and have floors."""
    row: dict[str, Any] = {"floor_ns": 2_920_000, "measured_ns": 13_650_000, "reached_ratio": 0.2}
    rows = tuple(row | {"phase": p, "part": part} for p in phases for part in PARTS)
    steps = [Step("training", {"attention.core": 111.1, "overhead.launch": 30_000.0})]
    return replace(make_analysis(steps), roofline=rows[:6])


def screen(analysis: Analysis, width: int) -> list[str]:
    sheet = lay_out(Facts(analysis), Look(), width, 200, 0)
    return [line.plain for line in sheet.draw(Look(), None)]


def titles_of(lines: list[str]) -> set[str]:
    """The words of the lines that hold a title in capitals, numbers apart."""
    found = (line for line in lines if re.search(r"(WHERE|FLOOR|MODULES|FINDINGS)", line))
    return {word for line in found for word in line.split() if not re.search(r"\d", word)}


@pytest.mark.parametrize("make", [lambda: floors("training"), decode_analysis])
def test_no_word_of_a_title_is_cut_at_any_width(make: Any) -> None:
    analysis = make()
    whole = titles_of(screen(analysis, 300))
    assert {"WHERE", "share", "ms"} <= whole
    for width in WIDTHS:
        lines = screen(analysis, width)
        assert titles_of(lines) <= whole | {"FLOOR", "MODULES"}, width
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_names_of_floors_are_whole(width: int) -> None:
    lines = screen(floors("training"), width)
    at = next(n for n, line in enumerate(lines) if "FLOOR" in line)
    named = [re.findall(r"training step|attention\.\w+|ffn\.\w+", line) for line in lines[at + 1 :]]
    found = [words[-1] for words in named[:4]]
    assert found == ["attention.projection", "ffn.projection", "attention.core", "training step"]
    assert all("20 %" in line for line in lines[at + 1 : at + 5])


def test_floors_of_several_phases_name_theirs() -> None:
    text = "\n".join(screen(floors("prefill", "decode"), 120))
    for name in ("prefill attention.projection", "prefill step", "decode ffn.projection"):
        assert name in text


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("size", "titles", "cells"),
    [
        ((100, 30), "exposed bytes step", "#0 5.00 us 2.1 MB 0"),
        ((200, 50), "exposed hidden bytes step", "#0 5.00 us 0 ns 2.1 MB 0"),
    ],
)
async def test_the_costliest_calls_have_their_titles_above_them(
    size: tuple[int, int], titles: str, cells: str
) -> None:
    ranks = [analyze(rank_trace(rank, 4)) for rank in range(3)]
    async with driven(*ranks, size=size, keys=["6"]) as driver:
        details = [line.rpartition("│")[2] for line in driver.lines if "│" in line]
    assert details[0].split() == ["COSTLIEST", *titles.split()]
    assert details[1].split() == cells.split()
    assert len(details[0].rstrip()) == len(details[1].rstrip())


def test_a_note_goes_clause_by_clause() -> None:
    note = "29 in all, sums of durations"
    assert heading("KERNELS", note, 60).text.plain.endswith(note)
    assert heading("KERNELS", note, 35).text.plain.split() == ["KERNELS", "29", "in", "all"]
    assert heading("KERNELS", note, 12).text.plain == " KERNELS"
    assert shortened("one", -1) == ""


def test_a_path_loses_its_first_folders() -> None:
    path = "/data/runs/of/today/rank0"
    assert path_tail(path, 40) == path
    assert path_tail(path, 18) == "…/of/today/rank0"
    assert path_tail(path, 7) == "…/rank0"
    assert len(path_tail(path, 4)) <= 4


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("width", "begins"),
    [
        (140, " tracer  decode_llama8b_modules.json.gz "),
        (104, " tracer  decode_llama8b_modules "),
        (100, " decode_llama8b_modules "),
        (80, " tracer  decode_llama8b_modules.json.gz "),
    ],
)
async def test_the_name_of_the_recording_stays_whole(width: int, begins: str) -> None:
    analysis = decode_analysis()
    meta = replace(analysis.trace.meta, path="/runs/decode_llama8b_modules.json.gz")
    named = replace(analysis, trace=replace(analysis.trace, meta=meta))
    async with driven(named, size=(width, 24)) as driver:
        assert driver.lines[0].startswith(begins)
        assert driver.lines[0].rstrip().endswith("7 Ranks" if width > 80 else "7")
