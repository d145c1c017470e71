"""A run that still goes on, as the explorer follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.analysis import Analysis
    from tracer.live.capture import Capture


class LiveView:
    """Asked from another thread than the program's: what is known by now, None if nothing is new.

    What the profiler records comes when it ends. Until then there are the steps that the program
    announced or the calls of its models, by the clock of the host.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._seen = (0, 0)

    def __call__(self) -> Analysis | None:
        """The newest state."""
        capture = self._capture
        known = len(capture.announced_since(0)), len(capture.calls_since(0))
        if known == self._seen:
            return None
        self._seen = known
        from tracer.analyzers import analyze
        from tracer.live.building import build_trace

        return analyze(build_trace(capture.so_far()))
