"""What was found out about a trace: the one result that text, JSON, HTML, TUI and OTLP read.

Tables point at each other by row number; -1 means none. The large ones keep 32 bits of it. Every
number is computed once, here upstream of all outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.events import Note, Trace
from tracer.findings import Check, Finding

GROUPS: tuple[str, ...] = ("attention", "ffn", "communication", "overhead", "other")
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": ("projection", "rope", "kv_cache", "core", "mixer", "dequantize", "norm"),
        "ffn": ("projection", "activation", "router", "experts", "dequantize", "norm"),
        "communication": (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "send_recv",
            "expert_parallel",
            "kv_transfer",
            "other",
        ),
        "overhead": (
            "launch",
            "sync",
            "host",
            "input",
            "transfer",
            "allocator",
            "compile",
            "gc",
            "graph_launch",
            "device",
            "profiler",
            "unexplained",
        ),
        "other": (
            "norm",
            "embedding",
            "lm_head",
            "sampling",
            "residual",
            "loss",
            "optimizer",
            "unattributed",
        ),
    }
)
# Evidence for a group, best first.
HOW: tuple[str, ...] = ("module", "graph", "compiled", "operator", "position", "name", "none")
# Every (group, part) in the order of display; `bucket` columns are codes into it.
BUCKETS: tuple[tuple[str, str], ...] = tuple((g, p) for g in GROUPS for p in PARTS[g])
BUCKET_CODE: Mapping[tuple[str, str], int] = MappingProxyType(
    {bucket: code for code, bucket in enumerate(BUCKETS)}
)
UNATTRIBUTED = BUCKET_CODE["other", "unattributed"]
UNEXPLAINED = BUCKET_CODE["overhead", "unexplained"]
TRANSFER = BUCKET_CODE["overhead", "transfer"]

# Sources of steps that are calls in a loop, which goes on between them.
CALLS: tuple[str, ...] = ("root_call", "graph")
# The phase of a model that proposes tokens for another; "draft prefill" where it reads the prompt.
# DECODING: phases in which tokens come one after another.
DRAFT = "draft"
DECODING: tuple[str, ...] = ("decode", DRAFT)

# Classes of work, in the order in which they win a slice of time.
WORK_CLASSES: tuple[str, ...] = ("compute", "collective", "transfer")

TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        # A step, in order of time. wall: start_ns to start_ns + wall_ns. announced_ns and
        # host_end_ns bound its own range on the host. batch and tokens (new tokens of the whole
        # batch) are -1 when unknown; kept: of a step that checks a draft, those that stay, else -1.
        # phase: prefill, decode, mixed, forward, training, evaluation, "draft" and "draft prefill"
        # of a model that proposes tokens for another, or "".
        # source: announced, profiler_step, engine, annotation, root_call, graph or window.
        "steps": {
            "name": "text",
            "phase": "text",
            "start_ns": "int64",
            "wall_ns": "int64",
            "busy_ns": "int64",
            "warmup": "bool",
            "batch": "int64",
            "tokens": "int64",
            "kept": "int64",
            "announced_ns": "int64",
            "host_end_ns": "int64",
            "thread": "int32",  # row of `threads`; -1 unknown
            "source": "text",
        },
        # What can fill time: each kernel, copy and set of the recording; on a CPU-only recording
        # each leaf operator. In order of events.
        "work": {
            "event": "int32",
            "device": "int32",
            "work_class": "text",  # compute, collective, transfer
            "launch": "int32",  # event of the runtime call that launched it
            "operator": "int32",  # event of the innermost operator around the launch
            "module": "int32",  # row of `modules`
            "step": "int32",  # row of `steps`; -1: in no step
            "bucket": "int16",  # code into BUCKETS
            "how": "text",
            "confidence": "float64",
            "charged_ns": "int64",  # time in the window that counts for it; sums to the busy time
            "exposed_ns": "int64",  # collectives: with no compute beside it
            "overlapped_ns": "int64",  # collectives: under compute
            "direction": "text",  # training: forward, backward, optimizer, recompute or ""
        },
        # The window, cut at each change: one row for each slice and each work that shares it.
        "slices": {
            "device": "int32",
            "start_ns": "int64",
            "end_ns": "int64",
            "step": "int32",  # row of `steps`; -1: between steps
            "work": "int32",  # row of `work`; -1: idle
            "bucket": "int16",
            "charged_ns": "int",  # as in `events`: 32 bits where all fit them
        },
        # Idle of a device, cut where its cause or the step changes. before, after: rows of `work`.
        # gap: number of the whole gap, which several pieces can share.
        "gaps": {
            "device": "int32",
            "start_ns": "int64",
            "end_ns": "int64",
            "step": "int32",
            "before": "int32",
            "after": "int32",
            "cause": "text",  # a part of overhead
            "gap": "int32",
            "event": "int32",  # the host event that is the cause
            "unrecorded": "bool",  # what ran then, or launched what came after, may have no rows
        },
        # Module tree. role: DESIGN 5. device_ns: charged time of its work and its children's.
        "modules": {
            "path": "text",
            "type": "text",
            "role": "text",
            "parent": "int64",
            "device_ns": "int64",
            "self_device_ns": "int64",
            "host_ns": "int64",
            "calls": "int64",
            "kernels": "int64",
        },
        # One row for each name, bucket and how. total_ns sums durations.
        "kernels": {
            "name": "text",
            "bucket": "int16",
            "library": "text",
            "how": "text",
            "confidence": "float64",
            "count": "int64",
            "total_ns": "int64",
            "ratio": "float64",
            "modules": "text",  # of compiled code: JSON lists of the modules, layers folded, and
            "operators": "text",  # of the operators that it was made from; "" for other kernels
        },
        # Sums of `slices` over each step and bucket; step -1: between steps.
        "charges": {"step": "int64", "bucket": "int16", "ns": "int64"},
        # One row for each collective that ran.
        "collectives": {
            "work": "int64",
            "op": "text",  # a part of communication
            "group": "text",
            "group_size": "int64",
            "sequence": "int64",
            "bytes": "int64",
            "dtype": "text",
            "start_ns": "int64",
            "end_ns": "int64",
            "exposed_ns": "int64",
            "overlapped_ns": "int64",
            "wait_ns": "int64",  # -1: not known from one rank
            "wire_ns": "int64",
            "step": "int64",
            "module": "int64",
            "ranks": "text",  # JSON list of the group's members; "" not recorded
            "peer": "int64",  # the other rank of a send or receive, counted within the group
            "direction": "text",  # send, recv or ""
            "in_elements": "int64",
            "out_elements": "int64",
        },
    }
)


@dataclass(frozen=True)
class Window:
    """The time under analysis. busy and idle are summed over devices; None: not recorded."""

    start_ns: int
    wall_ns: int
    busy_ns: int | None
    idle_ns: int | None
    between_steps_ns: int
    devices: int
    streams: int
    kernels: int
    launches: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.wall_ns

    @property
    def capacity_ns(self) -> int:
        """Wall time of all devices: the denominator of shares."""
        return self.wall_ns * max(self.devices, 1)


@dataclass(frozen=True)
class Phase:
    """Steps of one phase, warm-up left out. groups: nanoseconds over all its steps."""

    name: str
    steps: int
    median_ns: int | None
    min_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    groups: Mapping[str, int] | None
    wall_ns: int
    tokens_per_second: float | None
    warmup_steps: int = 0
    part_of: str = ""  # of a part of a step's time: the phase of those steps
    buckets: Mapping[int, int] = field(default_factory=dict)  # of such a part: time by bucket


@dataclass(frozen=True)
class Observer:
    """What the profiler did to the step: the same loop with and without it.

    host_idle_factor: what idle caused by the host must be multiplied with so that the profiled step
    takes as long as the unprofiled one; None when no factor can. scaled: the groups of such a step.
    """

    profiled_step_ns: int
    unprofiled_step_ns: int
    inflation_ratio: float
    basis: str
    phase: str = ""
    host_idle_factor: float | None = None
    scaled: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleResult:
    """What one rule says of one trace."""

    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Analysis:
    """A trace understood. `breakdown_reason` says why there are no charges (not `accounted`)."""

    trace: Trace
    window: Window
    steps: pd.DataFrame
    work: pd.DataFrame
    slices: pd.DataFrame
    gaps: pd.DataFrame
    modules: pd.DataFrame
    kernels: pd.DataFrame
    charges: pd.DataFrame
    collectives: pd.DataFrame
    phases: tuple[Phase, ...] = ()
    overlapped_ns: int = 0  # time in which some collective ran under compute, over all devices
    accounted: bool = True
    breakdown_reason: str = ""
    cpu_only: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    observer: Observer | None = None
    observer_reason: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)
    device_metrics: Mapping[str, Any] = field(default_factory=dict)
    requests: tuple[Mapping[str, Any], ...] = ()
    serving: Mapping[str, Any] = field(default_factory=dict)
    roofline: tuple[Mapping[str, Any], ...] = ()

    def bucket_ns_of_steps(self) -> NDArray[np.int64]:
        """Time of each bucket in each step: a row a step, a column a bucket."""
        sums = np.zeros((len(self.steps), len(BUCKETS)), dtype=np.int64)
        step = self.charges["step"].to_numpy()
        inside = step >= 0
        at = step[inside], self.charges["bucket"].to_numpy()[inside]
        np.add.at(sums, at, self.charges["ns"].to_numpy()[inside])
        return sums

    @property
    def integrity_status(self) -> str:
        """complete, partial, or unusable: nothing can be said of the device, which was asked."""
        if not self.accounted and self.trace.meta.detail != "light":
            return "unusable"
        return "partial" if self.damaged else "complete"

    @property
    def collectives_in_window(self) -> NDArray[np.bool_]:
        """Which collectives are in the window: those of a warm-up or a capture before it are not,
        and what is exposed or waited in them counts nowhere."""
        start, end = (self.collectives[name].to_numpy() for name in ("start_ns", "end_ns"))
        inside: NDArray[np.bool_] = (end > self.window.start_ns) & (start < self.window.end_ns)
        return inside

    @property
    def damaged(self) -> bool:
        """Whether the input was damaged or cut, whatever can still be said of it."""
        return any(note.partial for note in self.notes)


def until_next(steps: pd.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long it is from the start of each of these steps to that of the next of them; 0 where
    others lie between the two, but for the calls of a draft between two checks."""
    starts = steps["start_ns"].to_numpy()
    drafts = drafting(steps) & ~np.isin(np.arange(len(steps)), rows)
    follows = np.diff((np.cumsum(~drafts) - 1)[rows]) == 1
    until = np.zeros(rows.size, dtype=np.int64)
    until[:-1] = np.where(follows, np.diff(starts[rows]), 0)
    return until


def drafting(steps: pd.DataFrame) -> NDArray[np.bool_]:
    """Which steps are calls of a model that proposes tokens for another to check."""
    return steps["phase"].astype(str).str.startswith(DRAFT).to_numpy(dtype=bool)
