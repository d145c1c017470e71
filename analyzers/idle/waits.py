"""Waits of the host for the device: which there were, who made them, what each cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.analyzers.context import Context
from tracer.analyzers.gaps import CAUSE_CODE
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.events import KIND_CODE

SCALAR, SHAPE = "scalar-read", "data-dependent-shape"
TO_HOST, PAGEABLE = "device-to-host-copy", "pageable-copy"
EXPLICIT = "explicit"

SCALAR_OPERATORS = (
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::Bool",
    "aten::Int",
    "aten::Float",
    "aten::multinomial",  # it looks at the probabilities that it was given
)
_COPY_OPERATORS = ("aten::copy_", "aten::_to_copy", "aten::to")


@dataclass(frozen=True)
class Wait:
    """One wait. blocked_ns: how long it held the host; idle_ns: how long the device then had
    nothing to do because of it, between_ns of it between steps; idle_after_ns: the whole gap after
    it, whoever caused the rest."""

    event: int
    cause: str
    operator: int  # the operator that asked for it; -1 for a wait that the program asked for
    blocked_ns: int
    idle_ns: int
    idle_after_ns: int
    step: int
    copied_bytes: int = NONE
    between_ns: int = 0


def find_waits(context: Context) -> list[Wait]:
    """The waits of a recording with a device, in order. One operator that copies and then
    synchronizes is one wait. What ends the measurement, and the profiler's own, is left out."""
    work = context.work
    calls = work.calls
    rows = np.flatnonzero(calls.blocking)
    rows = rows[~_after_everything(context, rows)]
    operator = asking_operator(context, rows)
    groups: dict[tuple[int, int], list[int]] = {}
    for row, holder in zip(rows.tolist(), operator.tolist(), strict=True):
        groups.setdefault((holder, NONE if holder != NONE else row), []).append(row)
    idle, after, copies = _idle_of(context), _idle_after(context, rows), _Copies(context)
    return [
        _wait(context, holder, members, idle, after, copies)
        for (holder, _), members in sorted(groups.items(), key=lambda item: item[1][0])
    ]


def asking_operator(context: Context, rows: Longs) -> Longs:
    """The operator that asked for each wait: of PyTorch's own around it the outermost, whatever
    they read on the way. What holds them, an engine's operator or a function of the user's, may
    hold many."""
    host, trace = context.work.host, context.work.trace
    native = trace.named(lambda name: name.startswith("aten::"), "operator")
    asking = take(host.operator, rows)
    while True:
        above = take(host.operator, take(host.parent, asking))
        inside = (above != NONE) & native[np.maximum(above, 0)] & native[np.maximum(asking, 0)]
        if not inside.any():
            return asking
        asking = np.where(inside, above, asking)


def _after_everything(context: Context, rows: Longs) -> np.typing.NDArray[np.bool_]:
    """Waits that begin after the last step (or the last launch) with no device work to follow."""
    trace, plan = context.work.trace, context.plan
    launching = context.work.launches.launching
    last_launch = int(trace.end_ns[launching].max()) if launching.any() else 0
    last = max(step.end_ns for step in plan.host) if plan.found else last_launch
    starts = trace.start_ns[context.work.event]
    work_begins = int(starts.max()) if starts.size else 0
    return (trace.start_ns[rows] >= last) & (work_begins <= trace.end_ns[rows])


def _idle_of(context: Context) -> dict[int, tuple[int, int]]:
    """Idle that each blocking call caused, and how much of it lies between steps."""
    gaps = context.gaps
    mine = gaps.cause == CAUSE_CODE["sync"]
    out: dict[int, tuple[int, int]] = {}
    lengths = (gaps.end_ns - gaps.start_ns)[mine]
    between = np.where(gaps.step[mine] == NONE, lengths, 0)
    rows = zip(gaps.event[mine].tolist(), lengths.tolist(), between.tolist(), strict=True)
    for event, length, outside in rows:
        idle, apart = out.get(event, (0, 0))
        out[event] = idle + length, apart + outside
    return out


def _idle_after(context: Context, rows: Longs) -> dict[int, int]:
    """The rest of the gap that was open, or opened, when each wait returned."""
    gaps, trace = context.gaps, context.work.trace
    if not gaps.gap.size:
        return {}
    whole = int(gaps.gap.max()) + 1
    start: Longs = np.full(whole, np.iinfo(np.int64).max)
    end: Longs = np.zeros(whole, dtype=np.int64)
    np.minimum.at(start, gaps.gap, gaps.start_ns)
    np.maximum.at(end, gaps.gap, gaps.end_ns)
    order = np.argsort(end, kind="stable")
    start, end = start[order], end[order]
    returned = trace.end_ns[rows]
    at = np.minimum(np.searchsorted(end, returned, side="right"), whole - 1)
    begins = np.maximum(start[at], trace.start_ns[rows])
    launches = trace.start_ns[context.work.launches.launching]
    following = np.append(launches, np.iinfo(np.int64).max)[np.searchsorted(launches, returned)]
    open_then = (end[at] > returned) & (start[at] <= following)
    lasts = np.where(open_then, end[at] - begins, 0)
    return dict(zip(rows.tolist(), lasts.tolist(), strict=True))


def _wait(
    context: Context,
    holder: int,
    members: list[int],
    idle: dict[int, tuple[int, int]],
    after: dict[int, int],
    copies: _Copies,
) -> Wait:
    trace = context.work.trace
    rows = np.array(members, dtype=np.int64)
    made = copies.of(holder, members)
    starts = np.array([step.start_ns for step in context.plan.host])
    step = int(np.searchsorted(starts, trace.start_ns[rows[0]], side="right")) - 1
    return Wait(
        event=members[-1],
        cause=_cause(context, holder, rows, {copies.directions[at] for at in made}),
        operator=int(context.work.host.operator[rows[0]]),
        blocked_ns=int((trace.end_ns[rows] - trace.start_ns[rows]).sum()),
        idle_ns=sum(idle.get(row, (0, 0))[0] for row in members),
        between_ns=sum(idle.get(row, (0, 0))[1] for row in members),
        idle_after_ns=max(after.get(row, 0) for row in members),
        step=step,
        copied_bytes=max((copies.sizes[at] for at in made), default=NONE),
    )


class _Copies:
    """Device copies, their directions and sizes, by what asked for them."""

    def __init__(self, context: Context) -> None:
        work = context.work
        rows = np.flatnonzero(work.trace.kind_codes[work.event] == KIND_CODE["memcpy"])
        table = work.trace.table("copies")
        at = lookup(table["event"].to_numpy(), work.event[rows])
        words = [*map(str, table["direction"].cat.categories), ""]
        codes = take(table["direction"].cat.codes.to_numpy().astype(np.int64), at)
        self.directions = [words[code] for code in codes.tolist()]
        self.sizes: list[int] = take(table["bytes"].to_numpy(), at).tolist()
        self._by_call = _places(work.launch[rows])
        self._by_operator = _places(asking_operator(context, work.launch[rows]))

    def of(self, holder: int, calls: list[int]) -> list[int]:
        """Those that were launched inside the operator, or by the blocking calls."""
        if holder != NONE:
            return self._by_operator.get(holder, [])
        return [at for call in calls for at in self._by_call.get(call, ())]


def _places(keys: Longs) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, key in enumerate(keys.tolist()):
        found.setdefault(key, []).append(place)
    return found


def _cause(context: Context, holder: int, rows: Longs, directions: set[str]) -> str:
    work = context.work
    if holder == NONE:
        if "device_to_host" in directions:
            return TO_HOST
        return PAGEABLE if "host_to_device" in directions else EXPLICIT
    names = work.trace.names
    inner = names[work.trace.name_codes[int(work.host.operator[rows[0]])]]
    outer = names[work.trace.name_codes[holder]]
    if inner == "aten::_local_scalar_dense":
        return SCALAR if outer in SCALAR_OPERATORS else SHAPE
    if inner in _COPY_OPERATORS:
        return PAGEABLE if "host_to_device" in directions else TO_HOST
    if "host_to_device" in directions and "device_to_host" not in directions:
        return PAGEABLE
    return SHAPE if inner.startswith("aten::") else EXPLICIT
