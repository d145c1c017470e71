"""A capture that still runs, recordings that are read while others are shown, and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.tui.driving import Driver, driven, explorer_of, join_threads
from tests.tui.samples import decode_analysis, rank_trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.errors import NotATraceError
from tracer.tui.app import Explorer
from tracer.tui.look import Look
from tracer.tui.session import Source

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def threads_have_ended(nothing_left_behind: None) -> Iterator[None]:
    yield
    join_threads()


class Capture:
    """A capture that grows by a step each time it is asked for."""

    def __init__(self) -> None:
        self.asked = 0
        self.inside = 0
        self.overlapped = False
        self.steps = 1

    def newest(self) -> Analysis | None:
        self.inside += 1
        self.overlapped |= self.inside > 1
        self.asked += 1
        analysis = decode_analysis(self.steps) if self.asked > 1 else None
        self.inside -= 1
        return analysis


async def polled(driver: Driver, capture: Capture, times: int) -> None:
    """Wait until the capture was asked so often, and the screen shows it."""
    until = capture.asked + times
    while capture.asked < until:
        driver.explorer.following.poll()
        await asyncio.sleep(0.01)
    while driver.explorer.following.asking:
        await asyncio.sleep(0.01)
    await driver.settle()


async def test_a_running_capture_is_followed_paused_and_marked_provisional() -> None:
    capture = Capture()
    explorer = explorer_of(decode_analysis(), newest=capture.newest)
    async with explorer.run_test(size=(120, 40)) as pilot:
        driver = Driver(explorer, pilot)
        assert "waiting for the first step" in driver.text or explorer.view is not None
        while explorer.view is None:
            explorer.following.poll()
            await asyncio.sleep(0.01)
        await driver.settle()
        assert "live" in driver.lines[1] and "3 findings so far" in driver.lines[1]
        assert driver.lines[3].startswith(" ~")
        capture.steps = 3
        await polled(driver, capture, 2)
        assert "3: 3" in driver.line_with("STEPS")
        await driver.press("space")
        capture.steps = 5
        await polled(driver, capture, 2)
        assert "paused" in driver.lines[1] and "3: 3" in driver.line_with("STEPS")
        await driver.press("space")
        await polled(driver, capture, 2)
        assert "5: 5" in driver.line_with("STEPS")
        assert not capture.overlapped


async def test_rows_stay_under_the_cursor_while_a_capture_grows() -> None:
    capture = Capture()
    explorer = explorer_of(decode_analysis(), newest=capture.newest)
    async with explorer.run_test(size=(120, 40)) as pilot:
        driver = Driver(explorer, pilot)
        while explorer.view is None:
            explorer.following.poll()
            await asyncio.sleep(0.01)
        await driver.settle()
        await driver.press("4", "down", "down")
        row = driver.line_with(" > ").split()[2]
        capture.steps = 4
        await polled(driver, capture, 2)
        assert driver.line_with(" > ").split()[2] == row


async def test_progress_is_shown_until_the_numbers_are_there() -> None:
    release = threading.Event()
    analysis = decode_analysis()

    def read(report: object) -> Analysis:
        report("reading", 30, 100)  # type: ignore[operator]
        release.wait(20)
        return analysis

    explorer = Explorer([Source("runs/big.json", read, 10_200_000)], look=Look())
    async with explorer.run_test(size=(80, 24)) as pilot:
        driver = Driver(explorer, pilot)
        for _ in range(500):
            if "30 %" in driver.text:
                break
            await pilot.pause(0.01)
        assert "runs/big.json, 10.2 MB" in driver.text and "reading" in driver.text
        assert " 0" not in driver.text.replace("30 %", "")
        await pilot.press("3", "x", "enter", "down")
        release.set()
        await driver.settle()
        assert "PHASES" in driver.text


async def test_one_recording_of_several_that_cannot_be_read_is_named_and_the_rest_shown() -> None:
    def fail(report: object) -> Analysis:
        raise NotATraceError("rank1.json: an empty file")

    good = analyze(rank_trace(0, 2))
    sources = [Source("rank0.json", lambda report: good), Source("rank1.json", fail)]
    explorer = Explorer(sources, look=Look())
    async with explorer.run_test(size=(120, 40)) as pilot:
        driver = Driver(explorer, pilot)
        await driver.settle()
        assert "rank1.json: an empty file" in driver.text
        await driver.press("7")
        assert "an empty file" in driver.line_with("rank1.json")


async def test_a_recording_that_cannot_be_read_ends_the_explorer_with_its_error() -> None:
    def fail(report: object) -> Analysis:
        raise NotATraceError("x.json: an empty file")

    explorer = Explorer([Source("x.json", fail)], look=Look())
    async with explorer.run_test(size=(80, 24)) as pilot:
        for _ in range(500):
            if explorer.crash is not None:
                break
            await pilot.pause(0.01)
    assert isinstance(explorer.crash, NotATraceError)
    assert explorer.return_value == 1


async def test_an_error_on_a_thread_ends_the_explorer_with_it() -> None:
    with pytest.raises(ZeroDivisionError):
        async with driven(decode_analysis()) as driver:

            def broken() -> Analysis | None:
                raise ZeroDivisionError("broken capture")

            driver.explorer.following.newest = broken
            driver.explorer.following.poll()
            for _ in range(500):
                await driver.pilot.pause(0.01)
                if driver.explorer.crash is not None:
                    break
            assert isinstance(driver.explorer.crash, ZeroDivisionError)


async def test_only_one_recording_is_asked_for_what_it_is_at_a_time() -> None:
    analyses = [analyze(rank_trace(rank, 3)) for rank in range(3)]
    async with driven(*analyses) as driver:
        assert driver.explorer.session.shown == 0
        assert all(r.analysis is not None for r in driver.explorer.session.recordings)
