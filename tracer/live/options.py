"""What a recording was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tracer.collectors.torch_profiler import Schedule
    from tracer.collectors.watchdog import WatchdogOptions

Detail = Literal["light", "kernels", "modules", "full"]


@dataclass(frozen=True)
class Limits:
    """When a recording ends by itself, so that it does not fill the memory of the program.

    `seconds`: its length from the first step or call of a model on; `free_memory_ratio`: the share
    of the machine's memory that stays free.
    The program goes on, and so do the lists of steps and calls.
    """

    seconds: float | None = 300.0
    free_memory_ratio: float = 0.05


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    detail: Detail = "modules"
    schedule: Schedule | None = None
    metrics: bool = True
    limits: Limits = field(default_factory=Limits)
    yields_to_traces: bool = False  # another trace() ends this one instead of being refused
    watchdog: WatchdogOptions | None = None  # what to do when a step takes too long
    calibrate: bool = False  # measure a few steps before the profiler starts
