"""How each screen looks, at two sizes. `pytest tests/tui/test_snapshots.py --snapshot-update` after
a look at the report that a failure leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.driving import Driver, explorer_of, join_threads
from tests.tui.samples import decode_analysis, rank_trace
from tracer.analyzers import analyze
from tracer.tui.look import Look

SIZES = [(80, 24), (104, 30)]
SCREENS = {
    "overview": (),
    "steps": ("2", "down"),
    "timeline": ("2", "down", "enter"),
    "modules": ("3", "down"),
    "kernels": ("4", "down"),
    "findings": ("5",),
    "finding": ("5", "enter"),
    "communication": ("6",),
    "ranks": ("7",),
    "help": ("4", "?"),
    "palette": ("4", ":"),
}
Compare = Callable[..., bool]


@pytest.fixture(autouse=True)
def threads_have_ended(nothing_left_behind: None) -> Iterator[None]:
    yield
    join_threads()


def pressing(keys: tuple[str, ...]) -> Callable[[Pilot[Any]], Awaitable[None]]:
    """Wait until all is there, then press keys."""

    async def run(pilot: Pilot[Any]) -> None:
        driver = Driver(pilot.app, pilot)  # type: ignore[arg-type]
        await driver.settle()
        await driver.press(*keys)

    return run


def analyses(screen: str) -> list[Any]:
    """Ranks where they are the subject, else the decode steps."""
    if screen in ("communication", "ranks"):
        return [analyze(rank_trace(rank, 4)) for rank in range(3)]
    return [decode_analysis()]


@pytest.mark.parametrize("size", SIZES, ids=["small", "wide"])
@pytest.mark.parametrize("screen", SCREENS)
def test_screen(snap_compare: Compare, screen: str, size: tuple[int, int]) -> None:
    explorer = explorer_of(*analyses(screen))
    keys = SCREENS[screen]
    assert snap_compare(explorer, terminal_size=size, run_before=pressing(keys))


@pytest.mark.parametrize(
    "look", [Look(light=True), Look(ascii=True, color=False)], ids=["light", "plain"]
)
def test_timeline_of_another_look(snap_compare: Compare, look: Look) -> None:
    explorer = explorer_of(decode_analysis(), look=look)
    keys = SCREENS["timeline"]
    assert snap_compare(explorer, terminal_size=(80, 24), run_before=pressing(keys))
