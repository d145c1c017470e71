"""What a run has done so far, for metrics that are sent while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.collectors.run_facts import device_uuids
from tracer.exporters.otlp.live import Progress

if TYPE_CHECKING:
    from tracer.live.capture import Capture


class LiveProgress:
    """Asked from another thread than the program's; each time it tells what is new.

    The program's own steps count; without any, calls of its root modules are the steps.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._steps = self._calls = 0
        self._uuids: dict[str, str] = {}

    def __call__(self) -> Progress:
        """What was done since the last time."""
        steps = self._capture.announced_since(self._steps)
        calls = self._capture.calls_since(self._calls)
        self._steps += len(steps)
        self._calls += len(calls)
        announced = [(step.phase, step.end_ns - step.start_ns) for step in steps]
        known = calls[(calls[:, 2] > 0) & (calls[:, 3] > 0)]
        return Progress(
            steps=announced if self._steps else call_steps(calls),
            tokens=int((known[:, 2] * known[:, 3]).sum()),
            counters=self._counters(),
        )

    def _counters(self) -> list[tuple[str, str, float]]:
        found = self._capture.counters_now()
        if found and not self._uuids:
            self._uuids = device_uuids()
        return [(self._uuids.get(str(d), str(d)), metric, value) for d, metric, value in found]


def call_steps(calls: np.ndarray[Any, Any]) -> list[tuple[str, int]]:
    """Phase and time of each call: one new token into a filled cache is a decode step,
    and a prompt leaves a cache behind."""
    prompts = (calls[:, 4] == 0) & (calls[:, 5] == 0) & (calls[:, 6] == 1)
    phases = np.where(
        (calls[:, 3] == 1) & (calls[:, 4] == 1), "decode", np.where(prompts, "prefill", "")
    )
    return list(zip(phases.tolist(), (calls[:, 1] - calls[:, 0]).tolist(), strict=True))
