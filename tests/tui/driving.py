"""Driving the explorer in tests: open, wait for what works beside it, press, read the screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from tracer.analysis import Analysis
from tracer.tui.app import Explorer
from tracer.tui.background import THREAD_NAME
from tracer.tui.look import Look
from tracer.tui.session import Source

WIDE, SMALL = (120, 40), (80, 24)


def explorer_of(*analyses: Analysis, look: Look | None = None, **options: Any) -> Explorer:
    """An explorer on these analyses; its clock stands still."""
    sources = [_source(analysis) for analysis in analyses]
    return Explorer(sources, look=look or Look(), clock=lambda: 0.0, **options)


def _source(analysis: Analysis) -> Source:
    return Source(analysis.trace.meta.path or "recording", lambda report: analysis)


class Driver:
    """A running explorer."""

    def __init__(self, explorer: Explorer, pilot: Pilot[Any]) -> None:
        self.explorer, self.pilot = explorer, pilot

    async def settle(self) -> None:
        """Wait until the shown screen has its model, every recording is read, all is drawn."""
        for _ in range(1000):
            await self.pilot.pause(0)
            if self.explorer.crash is not None:
                raise self.explorer.crash
            if self._is_settled():
                break
            await asyncio.sleep(0.005)
        else:
            raise AssertionError("the explorer does not come to rest")
        await self.pilot.pause(0)

    def _is_settled(self) -> bool:
        view = self.explorer.view
        recordings = self.explorer.session.recordings
        read = all(r.analysis is not None or r.error is not None for r in recordings)
        return view is not None and view.model is not None and read and not self.explorer.pending

    async def press(self, *keys: str) -> None:
        """Press keys, one after another: names as Textual's, or characters."""
        for key in keys:
            self.explorer.press(key, key if len(key) == 1 else None)
            await self.settle()

    async def type(self, text: str) -> None:
        """Type into the line that is asked for."""
        for character in text:
            self.explorer.press(character, character)
        await self.settle()

    async def resize(self, width: int, height: int) -> None:
        await self.pilot.resize_terminal(width, height)
        await self.settle()

    @property
    def lines(self) -> list[str]:
        """The screen as text."""
        strips = self.explorer.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line_with(self, words: str) -> str:
        """The first line that holds these words."""
        found = next((line for line in self.lines if words in line), None)
        assert found is not None, f"{words!r} is not on the screen:\n{self.text}"
        return found


@asynccontextmanager
async def driven(
    *analyses: Analysis,
    size: tuple[int, int] = WIDE,
    look: Look | None = None,
    keys: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Driver]:
    """An explorer on these analyses, settled, with keys pressed."""
    explorer = explorer_of(*analyses, look=look, **options)
    async with explorer.run_test(size=size) as pilot:
        driver = Driver(explorer, pilot)
        await driver.settle()
        await driver.press(*keys)
        yield driver
    join_threads()


def join_threads() -> None:
    """Wait for what still works for a screen that is closed."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(20)
