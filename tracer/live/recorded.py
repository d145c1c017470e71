"""What is left of a capture when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from tracer.collectors.modules.module_ranges import ModuleRanges
    from tracer.collectors.steps.announced_steps import StepLog
    from tracer.collectors.steps.device_steps import DeviceSpan
    from tracer.collectors.torch_profiler import ProfilerSession
    from tracer.events import Note
    from tracer.live.options import Detail


@dataclass
class Recorded:
    """What is left of a capture when it has ended: all that a `Trace` is made of."""

    detail: Detail
    start_ns: int = 0
    end_ns: int = 0
    session: ProfilerSession | None = None
    steps: StepLog | None = None
    ranges: ModuleRanges | None = None
    spans: list[DeviceSpan] = field(default_factory=list)
    optimizers: pd.DataFrame | None = None  # ends of their steps, where no profiler tells them
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)  # rank, world size, backend, process groups
    notes: list[Note] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    captures: int = 0  # of CUDA graphs
    node_annotations: dict[int, str] = field(default_factory=dict)  # of their nodes
    unprofiled: list[tuple[int, int]] = field(default_factory=list)  # steps without the profiler
    steps_announced: bool = False
    gpu: bool = False
    scheduled: bool = False
    refused: bool = False  # something else was active
    goes_on: bool = False  # the program still runs: this is what is known by now
