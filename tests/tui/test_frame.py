"""The frame: one file and one line make a screen; the mouse is optional; the footer is honest."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from rich.text import Text

from tests.tui.driving import Driver, driven
from tests.tui.samples import decode_analysis, decode_trace
from tracer.commands.open import readable_files, source_of
from tracer.errors import NotATraceError
from tracer.store import save_run
from tracer.tui import keys, screens
from tracer.tui.keys import COMMANDS, footer_text
from tracer.tui.look import Look
from tracer.tui.session import Session
from tracer.tui.terminal import look_for
from tracer.tui.widgets.view import View


class MemoryView(View):
    """A screen that somebody adds."""

    KEY: ClassVar[str] = "memory"
    TITLE: ClassVar[str] = "Memory"
    WORDS: ClassVar[str] = "What is where."

    @staticmethod
    def prepare(session: Session, look: Look) -> str:
        assert session.analysis is not None
        return f"{len(session.analysis.trace.events)} events"

    def draw_model(self, width: int, height: int) -> list[Text]:
        return [Text(f"memory of {self.model}")]


@pytest.mark.asyncio
async def test_a_new_screen_is_a_file_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tracer.tui.screens.memory")
    module.MemoryView = MemoryView  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tracer.tui.screens.memory", module)
    entry = screens.Entry("memory", "memory:MemoryView", "Memory")
    monkeypatch.setattr(screens, "SCREENS", (*screens.SCREENS, entry))
    analysis = decode_analysis()
    async with driven(analysis, keys=["8"]) as driver:
        assert f"memory of {len(analysis.trace.events)} events" in driver.text
        assert "[8 Memory]" in driver.lines[0]
        await driver.press("?")
        assert "What is where." in driver.text
        await driver.press("escape", "backspace")
        assert driver.explorer.current == "overview"


async def click(driver: Driver, words: str, times: int = 1) -> None:
    """Click on these words, where they stand last."""
    y = max(n for n, line in enumerate(driver.lines) if words in line)
    x = driver.lines[y].index(words)
    for _ in range(times):
        await driver.pilot.click(offset=(x, y))
        await driver.settle()


@pytest.mark.asyncio
async def test_the_mouse_selects_opens_and_changes_screens() -> None:
    async with driven(decode_analysis()) as driver:
        await click(driver, "4 Kernels")
        assert driver.explorer.current == "kernels"
        await click(driver, "nvjet_mlp_gemm_2")
        assert "nvjet_mlp_gemm_2" in driver.line_with(" > ")
        await click(driver, "nvjet_mlp_gemm_2")
        assert driver.explorer.current == "timeline"
        await driver.press("1")
        await click(driver, "gap.gc", 2)
        assert driver.explorer.current == "finding"


@pytest.mark.asyncio
async def test_on_the_timeline_a_click_moves_the_wheel_zooms_and_a_drag_pans() -> None:
    async with driven(decode_analysis(), keys=["2", "enter"]) as driver:
        view: Any = driver.explorer.view
        before = view.timeline.viewport
        await driver.pilot.click(offset=(60, 5))
        await driver.settle()
        assert view.timeline.viewport.cursor_ns != before.cursor_ns
        view.scrolled(-3, _At(60))
        await driver.settle()
        near = view.timeline.viewport
        assert near.span_ns == before.span_ns // 2
        await driver.pilot.mouse_down(offset=(60, 5))
        await driver.pilot.hover(offset=(50, 5))
        await driver.pilot.mouse_up(offset=(50, 5))
        await driver.settle()
        assert view.timeline.viewport.start_ns > near.start_ns
        assert view.timeline.viewport.span_ns == near.span_ns


class _At:
    """Where the wheel was turned."""

    def __init__(self, x: int) -> None:
        self.x = x


@pytest.mark.asyncio
async def test_the_wheel_moves_the_row_of_a_table() -> None:
    async with driven(decode_analysis(), keys=["4"]) as driver:
        view: Any = driver.explorer.view
        view.scrolled(3, _At(5))
        await driver.settle()
        assert view.cursor.at == 3


def test_every_key_belongs_to_one_command_in_each_place() -> None:
    seen: dict[str, list[str]] = {}
    for command in COMMANDS:
        for key in command.keys:
            seen.setdefault(key, []).append(command.action)
    assert {key: actions for key, actions in seen.items() if len(actions) > 1} == {}


def test_no_key_needs_a_function_key_or_alt() -> None:
    for command in COMMANDS:
        for key in command.keys:
            assert not key.startswith(("f1", "f2", "alt+")) and "shift+up" not in key
        assert not command.keys or command.keys != ("ctrl+p",)


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_the_footer_holds_whole_keys_and_always_help(width: int) -> None:
    text = footer_text(width, COMMANDS)
    assert "? keys" in text
    entries = text.split("  ")
    assert len(entries) <= 9
    known = {f"{keys._footer_key(c)} {c.label}" for c in COMMANDS} | {"? keys"}
    assert set(entries) <= known
    assert len(text) <= max(width, len("? keys"))


def test_recordings_of_a_directory_are_found_and_other_files_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "empty.json").write_bytes(b"")
    with pytest.raises(NotATraceError, match="no recording in this directory"):
        readable_files([str(tmp_path)])
    trace = tmp_path / "a.json"
    trace.write_text('{"traceEvents": []}')
    save_run(decode_trace(2), tmp_path / "run")
    assert readable_files([str(tmp_path)]) == [trace, tmp_path / "run"]
    with pytest.raises(NotATraceError):
        readable_files([str(tmp_path / "notes.txt")])


def test_a_saved_run_is_read_with_progress(tmp_path: Path) -> None:
    save_run(decode_trace(2), tmp_path / "run")
    stages: list[str] = []
    source = source_of(tmp_path / "run")
    analysis = source.read(lambda stage, done, total: stages.append(stage))
    assert len(analysis.steps) == 2
    assert stages[-1] == "accounting"


def test_names_of_recordings_are_safe_on_any_terminal() -> None:
    assert look_for({"LANG": "C"}).name("a\x1b[31mb\u202e注") == "a\\u241b[31mb\\ufffd\\u6ce8"
    assert Look().name("tab\there") == "tab\u2409here"
