"""Following a capture that still runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tracer.tui.background import run_beside
from tracer.tui.messages import Newest

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.tui.app import Explorer

INTERVAL_S = 0.25
# A timer that was late catches up: what comes sooner than this share of the interval waits.
_EARLY = 0.9


class Following:
    """Asks a capture for its newest state, at most four times a second and never twice at once."""

    def __init__(self, explorer: Explorer, newest: Callable[[], Analysis | None] | None) -> None:
        self.explorer = explorer
        self.newest = newest
        self.paused = False
        self.asking = False
        self._asked_s = 0.0

    @property
    def live(self) -> bool:
        return self.newest is not None

    def poll(self) -> None:
        """Ask, if it is time and nobody asks already."""
        now_s, newest = time.monotonic(), self.newest
        if self.asking or newest is None or now_s - self._asked_s < _EARLY * INTERVAL_S:
            return
        self.asking, self._asked_s = True, now_s
        run_beside(self.explorer, lambda: Newest(newest()))

    def wants(self, analysis: Analysis | None) -> bool:
        """An answer came: whether it is to be shown."""
        self.asking = False
        shown = self.explorer.session.recordings[0].analysis
        return self.live and not self.paused and analysis is not None and analysis is not shown

    def end(self) -> None:
        """The capture has ended."""
        self.newest, self.paused = None, False

    def do_pause(self) -> None:
        self.paused = not self.paused

    def can_pause(self) -> bool:
        return self.live

    def words(self) -> str:
        """`live · 12 s · 1 finding so far`; empty when nothing runs."""
        if not self.live:
            return ""
        analysis = self.explorer.session.analysis
        found = 0 if analysis is None else len(analysis.findings)
        seconds = self.explorer.clock() - self.explorer.started_s
        plural = "" if found == 1 else "s"
        state = "paused" if self.paused else "live"
        words = (state, f"{seconds:.0f} s", f"{found} finding{plural} so far", "~ is provisional")
        return self.explorer.look.separator.join(words)
