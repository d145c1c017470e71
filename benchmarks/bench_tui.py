"""How fast the explorer answers on a recording of a million events.

Loads a synthetic recording (or the file given), then drives the explorer through Textual's Pilot
on a screen of 120x40: from the loaded recording to the first usable overview, then keys that scroll
the kernels, zoom and move the timeline, and change screens. A key is answered when Textual has
drawn the frame that shows it. Also: the first output of `tracer open` in a process of its own.

    python -m benchmarks.bench_tui [--events 1000000] [--keys 300] [--file PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual._compositor import CompositorUpdate

from tests.tui.big_trace import EVENTS_A_LAYER, LAYERS, big_trace
from tracer.analysis import Analysis
from tracer.analyzers import analyze
from tracer.tui.app import Explorer
from tracer.tui.look import Look
from tracer.tui.session import Source

ROOT = Path(__file__).resolve().parents[1]

SIZE = (120, 40)
GOAL_MS, OVERVIEW_S = 50.0, 2.0
SCROLL = ("down", "down", "pagedown", "up", "down", "pageup", "end", "up", "home", "down")
TIMELINE = ("+", "right", "+", "right", "]", ".", "+", "left", "-", "b", "down", "-", "}", "0")
SCREENS = ("1", "2", "3", "4", "5", "6", "7")


class Timed(Explorer):
    """Notes when a frame is drawn, and draws it in full although nobody looks."""

    drawn_s = 0.0

    def _display(self, screen: Any, renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(renderable, CompositorUpdate):
            renderable.render_segments(self.console)
            self.drawn_s = time.perf_counter()


async def key_times(explorer: Timed, keys: Sequence[str]) -> list[float]:
    """For each key the seconds until the frame that answers it was drawn, and nothing is left."""
    times: list[float] = []
    for key in keys:
        begun = time.perf_counter()
        explorer.drawn_s = 0.0
        explorer.press(key, key if len(key) == 1 else None)
        while not explorer.drawn_s:
            await asyncio.sleep(0)
            if time.perf_counter() - begun > 5:
                raise SystemExit(f"{key}: nothing was drawn in 5 s")
        times.append(explorer.drawn_s - begun)
        await asyncio.sleep(0.02)
    return times


async def until_model(explorer: Timed) -> float:
    """Seconds until the shown screen has its numbers and is drawn."""
    begun = time.perf_counter()
    while explorer.view is None or explorer.view.model is None:
        await asyncio.sleep(0.005)
        if explorer.crash is not None:
            raise explorer.crash
    await asyncio.sleep(0.05)  # the frame with the numbers is drawn within it
    return max(explorer.drawn_s, begun) - begun


def report(name: str, times: Sequence[float]) -> float:
    """Print the spread of the times; returns the 95th percentile in milliseconds."""
    ordered = sorted(1000 * t for t in times)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    middle = statistics.median(ordered)
    print(f"  {name:<10} {len(ordered):>4} keys   median {middle:6.1f} ms   p95 {p95:6.1f} ms   "
          f"longest {ordered[-1]:6.1f} ms")  # fmt: skip
    return p95


def repeated(keys: Sequence[str], count: int) -> list[str]:
    return [keys[n % len(keys)] for n in range(count)]


async def drive(analysis: Analysis, count: int) -> tuple[float, float]:
    """Seconds to the overview, and the worst 95th percentile of the paths, in milliseconds."""
    explorer = Timed([Source("big", lambda report: analysis)], look=Look())
    begun = time.perf_counter()
    async with explorer.run_test(size=SIZE):
        await until_model(explorer)
        overview_s = time.perf_counter() - begun
        print(f"  overview   usable {overview_s:.2f} s after loading (start of Textual included)")
        worst = 0.0
        explorer.press("4", "4")
        print(f"  kernels    first opened in {await until_model(explorer):.2f} s")
        worst = max(worst, report("kernels", await key_times(explorer, repeated(SCROLL, count))))
        explorer.press("2", "2")
        await until_model(explorer)
        worst = max(worst, report("steps", await key_times(explorer, repeated(SCROLL, count))))
        explorer.press("enter", None)
        print(f"  timeline   first opened in {await until_model(explorer):.2f} s")
        worst = max(worst, report("timeline", await key_times(explorer, repeated(TIMELINE, count))))
        zooms = ["-"] * 12 + ["right"] * 6
        worst = max(worst, report("zoomed out", await key_times(explorer, repeated(zooms, count))))
        for key in SCREENS:
            explorer.press(key, key)
            await until_model(explorer)
        worst = max(worst, report("screens", await key_times(explorer, repeated(SCREENS, count))))
        return overview_s, worst


def first_output_s(path: Path) -> tuple[float, float]:
    """Seconds of wall and of processor time until `tracer open` says what it opens."""
    import pty

    begun = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", LANG="C.UTF-8")
        os.execv(sys.executable, [sys.executable, "-m", "tracer", "open", str(path)])
    os.read(terminal, 1)
    wall_s = time.perf_counter() - begun
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    os.kill(pid, 15)
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:
        pass  # the terminal of a process that has ended
    os.waitpid(pid, 0)
    return wall_s, cpu_s


def load(arguments: argparse.Namespace) -> Analysis:
    begun = time.perf_counter()
    if arguments.file:
        from tracer.sources import open_source

        trace = open_source(arguments.file)
    else:
        trace = big_trace(max(arguments.events // (LAYERS * EVENTS_A_LAYER), 1))
    made_s = time.perf_counter() - begun
    analysis = analyze(trace)
    understood_s = time.perf_counter() - begun - made_s
    print(f"{len(trace.events):,} events, {len(analysis.work):,} kernels, "
          f"{len(analysis.kernels):,} rows of kernels, {len(analysis.gaps):,} pieces of idle: "
          f"made in {made_s:.1f} s, analysed in {understood_s:.1f} s")  # fmt: skip
    return analysis


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--file")
    arguments = parser.parse_args()
    print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    overview_s, worst_ms = asyncio.run(drive(load(arguments), arguments.keys))
    sample = ROOT / "samples" / "recordings" / "decode_llama8b_modules.json.gz"
    wall_s, cpu_s = min(first_output_s(sample) for _ in range(5))
    print(f"  first output of `tracer open`: {wall_s:.2f} s, {cpu_s:.2f} s of processor time")
    good = overview_s <= OVERVIEW_S and worst_ms <= GOAL_MS
    print(f"{'held' if good else 'MISSED'}: overview within {OVERVIEW_S} s, "
          f"p95 of any key within {GOAL_MS:.0f} ms (worst {worst_ms:.1f} ms)")  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
