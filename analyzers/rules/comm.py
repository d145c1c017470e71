"""Rules comm.exposed and comm.same_stream: communication with no compute beside it.

One rank cannot tell waiting for the others from sending; `without_waiting` takes the wait out of a
finding once the ranks have been compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, Analysis, RuleResult
from tracer.analyzers.accounting import COMPUTE
from tracer.analyzers.context import Context
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs, distinct
from tracer.analyzers.rules.buffer_broadcasts import (
    Buffers,
    advice_on_buffers,
    buffer_broadcasts,
    title_of_buffers,
)
from tracer.analyzers.rules.gradient_sums import Spared, needless_sums
from tracer.analyzers.rules.judging import (
    CRITICAL_RATIO,
    WARNING_RATIO,
    counted,
    milliseconds,
    ratio_of,
    severity_of,
    verdict,
)
from tracer.events import Note
from tracer.findings import Check, Finding, Severity

EXPOSED, SAME_STREAM = "comm.exposed", "comm.same_stream"
# A stream computes when it does this share of the device's compute: a library's own stream has
# small copies and divisions beside its collectives.
_COMPUTING_SHARE = 0.10
# The first collective of a window was entered apart when it lasts so many times its like.
_APART = 10
_ENOUGH_LIKE = 3
# Calls of one size wait for another rank when they last so many times the quickest tenth of them,
# or when few bytes take longer than any link between devices needs.
_MOSTLY_WAITING, _ENOUGH_CALLS = 4, 10
_SMALL_BYTES, _NO_LINK_NEEDS_NS = 1 << 16, 200_000
_GAIN_BASIS = "computed: what is exposed of the sums that the last backward pass repeats"
_BUFFERS_BASIS = (
    "computed: what is exposed of the broadcasts, and what packs and unpacks buffers; what of it "
    "is waiting for a rank may be waited for elsewhere"
)
_MOST_EVENTS, _MOST_PLACES = 100, 8

_OVERLAP = (
    "Start it earlier or behind independent work (async_op=True, gradient buckets, prefetching of "
    "sharded weights), send fewer bytes, or fewer and larger messages"
)
_OWN_STREAM = (
    "Launch the collective on a stream of its own (async_op=True) beside work that does not need "
    "its result; where everything after it does, only less or faster communication helps"
)
_CHANGE = {EXPOSED: _OVERLAP, SAME_STREAM: _OWN_STREAM}
# From this share of a finding's time on the sums of gradients that nobody needs are its cause.
_NEEDLESS_RATIO = 0.25


@dataclass(frozen=True)
class _Kind:
    """Collectives of one operation and process group that are exposed for one reason."""

    rule: str
    op: str
    group: str
    rows: Longs
    exposed_ns: int
    stream: int
    packing_ns: int = 0  # of buffers that are sent

    @property
    def cost_ns(self) -> int:
        return self.exposed_ns + self.packing_ns


def judge_communication(context: Context, analysis: Analysis) -> RuleResult:
    """Both rules of one recording."""
    reason = _cannot_judge(analysis)
    if reason:
        return RuleResult(
            checks=tuple(Check(rule, "not_checked", reason) for rule in (EXPOSED, SAME_STREAM))
        )
    apart = began_apart(analysis)
    buffers = buffer_broadcasts(context, analysis)
    kinds = _kinds(context, analysis, apart, buffers)
    kinds = [kind for kind in kinds if _matters(kind, analysis)]
    findings: tuple[Finding, ...] = ()
    if kinds:
        places = context.work.once(Places)
        spared = needless_sums(context, analysis.collectives)
        findings = tuple(
            _finding(context, analysis, places, kind, spared, buffers) for kind in kinds
        )
    said = "" if len(analysis.collectives) else "no collective ran"
    checks = [verdict(EXPOSED, findings, said), verdict(SAME_STREAM, findings, said)]
    if analysis.cpu_only:
        checks[1] = Check(SAME_STREAM, "not_checked", "no device was recorded")
    return RuleResult(findings, tuple(checks), _apart_notes(analysis, apart))


def _cannot_judge(analysis: Analysis) -> str:
    return "" if analysis.accounted else analysis.breakdown_reason


def _matters(kind: _Kind, analysis: Analysis) -> bool:
    return (ratio_of(kind.cost_ns, analysis) or 0.0) >= WARNING_RATIO


def began_apart(analysis: Analysis) -> NDArray[np.bool_]:
    """Whether each collective is the first of its group in the window and lasts far longer than
    its like: the ranks did not begin the window together."""
    collectives, inside = analysis.collectives, analysis.collectives_in_window
    apart = np.zeros(len(collectives), dtype=bool)
    if not apart.size:
        return apart
    start = collectives["start_ns"].to_numpy()
    length = collectives["end_ns"].to_numpy() - start
    group = collectives["group"].cat.codes.to_numpy()
    alike = _alike(collectives)
    for one in np.unique(group[inside]).tolist():
        rows = np.flatnonzero((group == one) & inside)
        first = rows[np.argmin(start[rows])]
        like = np.flatnonzero((alike == alike[first]) & (np.arange(apart.size) != first))
        enough = like.size >= _ENOUGH_LIKE
        apart[first] = enough and length[first] > _APART * np.median(length[like])
    return apart


def _alike(collectives: pd.DataFrame) -> Longs:
    """A number for collectives of the same operation, group and size."""
    op, group = (collectives[name].cat.codes.to_numpy() for name in ("op", "group"))
    return distinct(op, group, collectives["bytes"].to_numpy())[1]


def _apart_notes(analysis: Analysis, apart: NDArray[np.bool_]) -> tuple[Note, ...]:
    if not apart.any():
        return ()
    collectives = analysis.collectives[apart]
    length = int((collectives["end_ns"] - collectives["start_ns"]).max())
    text = (
        f"the first collective of the window lasts {milliseconds(length)}, far longer than its "
        "like: the ranks had not begun the window together, which is the fault of none"
    )
    return (Note("comm.window_start", text, int(apart.sum()), {"longest_ns": length}),)


def _kinds(
    context: Context, analysis: Analysis, apart: NDArray[np.bool_], buffers: Buffers
) -> list[_Kind]:
    """Exposed collectives by operation, group, whether their stream computes, and whether they send
    buffers."""
    collectives = analysis.collectives
    if not len(collectives):
        return []
    streams, computing = _streams(context, analysis)
    inside = (collectives["step"].to_numpy() != NONE) & ~apart
    exposed = np.where(inside, collectives["exposed_ns"].to_numpy(), 0)
    op, group = collectives["op"].cat.codes.to_numpy(), collectives["group"].cat.codes.to_numpy()
    first, of = distinct(op, group, computing, buffers.sent)
    kinds = []
    for code, shares in enumerate(computing[first].tolist()):
        rows = np.flatnonzero((of == code) & (exposed > 0))
        if rows.size:
            rule = SAME_STREAM if shares else EXPOSED
            kind = _kind(analysis, rule, rows, exposed, streams)
            packing = buffers.packing_ns if buffers.sent[rows[0]] else 0
            kinds.append(replace(kind, packing_ns=packing))
    return kinds


def _kind(analysis: Analysis, rule: str, rows: Longs, exposed: Longs, streams: Longs) -> _Kind:
    collectives = analysis.collectives
    op = str(collectives["op"].iloc[rows[0]])
    bucket = BUCKET_CODE["communication", op]
    charges = analysis.charges
    # Collectives beside each other are exposed at the same time, which counts once.
    charged = int(charges["ns"].to_numpy()[charges["bucket"].to_numpy() == bucket].sum())
    return _Kind(
        rule,
        op,
        str(collectives["group"].iloc[rows[0]]),
        rows,
        min(int(exposed[rows].sum()), charged),
        int(np.bincount(streams[rows] - streams[rows].min()).argmax() + streams[rows].min()),
    )


def _streams(context: Context, analysis: Analysis) -> tuple[Longs, NDArray[np.bool_]]:
    """The stream of each collective, and whether it does a share of the device's compute."""
    lanes = context.lanes
    rows = analysis.collectives["work"].to_numpy()
    computing = np.zeros(rows.size, dtype=bool)
    if analysis.cpu_only:
        return np.zeros(rows.size, dtype=np.int64), computing
    length = lanes.end_ns - lanes.start_ns
    compute = lanes.work_class == COMPUTE
    for device in np.unique(lanes.device[rows]).tolist():
        on = compute & (lanes.device == device)
        whole = int(length[on].sum())
        for stream in np.unique(lanes.stream[rows][lanes.device[rows] == device]).tolist():
            done = int(length[on & (lanes.stream == stream)].sum())
            here = (lanes.device[rows] == device) & (lanes.stream[rows] == stream)
            computing[here] = done > _COMPUTING_SHARE * whole
    return lanes.stream[rows].astype(np.int64), computing


def _finding(
    context: Context,
    analysis: Analysis,
    places: Places,
    kind: _Kind,
    spared: Spared,
    buffers: Buffers,
) -> Finding:
    collectives = analysis.collectives
    exposed = collectives["exposed_ns"].to_numpy()
    order = kind.rows[np.argsort(-exposed[kind.rows], kind="stable")]
    work = collectives["work"].to_numpy()
    steps = np.unique(collectives["step"].to_numpy()[kind.rows])
    detail: dict[str, Any] = {
        "op": kind.op,
        "group": kind.group or None,
        "exposed_ns": kind.exposed_ns,
        "overlapped_ns": int(collectives["overlapped_ns"].to_numpy()[kind.rows].sum()),
        "modules": _modules(context, analysis, order),
    }
    if kind.rule == SAME_STREAM:
        detail["stream"] = kind.stream
    needless = _needless_ns(kind, exposed, spared)
    if buffers.sent[kind.rows[0]]:
        needless = kind.cost_ns
        detail |= {"packing_ns": kind.packing_ns, "statistics": list(buffers.statistics)}
        detail["gain_basis"] = _BUFFERS_BASIS
    elif needless:
        detail |= {"backward_passes": spared.passes, "gain_basis": _GAIN_BASIS}
    alone = len(analysis.trace.meta.process_groups) > 0 or (analysis.trace.meta.world_size or 0) > 1
    return Finding(
        rule=kind.rule,
        severity=severity_of(kind.cost_ns, analysis),
        title=_title(
            kind.rule,
            detail,
            f"{milliseconds(kind.exposed_ns)} in {counted(len(kind.rows), 'call')}",
        ),
        count=len(kind.rows),
        cost_ns=kind.cost_ns,
        ratio=ratio_of(kind.cost_ns, analysis),
        steps=tuple(steps[steps != NONE].tolist()),
        where=places.of_work(int(work[order[0]])),
        detail=detail,
        advice=_buffers_advice(detail)
        or _needless_advice(detail) + _advice(kind.rule, analysis, kind.rows, alone),
        gain_ns=needless,
        events=tuple(context.work.event[work[order[:_MOST_EVENTS]]].tolist()),
    )


def _needless_ns(kind: _Kind, exposed: Longs, spared: Spared) -> int | None:
    """What is exposed for sums of gradients that a later pass repeats; None where they are not the
    cause."""
    each = exposed[kind.rows].astype(np.float64)
    ratio = float(each[spared.needless[kind.rows]].sum() / each.sum())
    return round(ratio * kind.cost_ns) if ratio >= _NEEDLESS_RATIO else None


def _buffers_advice(detail: Mapping[str, Any]) -> str:
    """ "" where no buffers are sent."""
    return advice_on_buffers(tuple(detail["statistics"])) if "packing_ns" in detail else ""


def _needless_advice(detail: Mapping[str, Any]) -> str:
    passes = detail.get("backward_passes")
    if not passes:
        return ""
    return (
        f"Run all but the last of the {passes} backward passes before the weights change under "
        "model.no_sync() (DDP), set model.set_requires_gradient_sync(False) for them (FSDP2), or "
        "use accelerator.accumulate(model): each of them sums the gradients over the ranks, and "
        "the sum in the last one would do. "
    )


def _rest(rule: str, detail: Mapping[str, Any]) -> str:
    change = f"{_CHANGE[rule]}."
    return f"For the last one: {_lower(change)}" if detail.get("backward_passes") else change


def _lower(sentence: str) -> str:
    return f"{sentence[0].lower()}{sentence[1:]}"


def _advice(rule: str, analysis: Analysis, rows: Longs, one_of_many: bool) -> str:
    """What to change; of one rank of many, whom to look at first."""
    change = f"{_CHANGE[rule]}."
    if not one_of_many:
        return change
    waiting = _waiting(analysis, rows)
    if not waiting:
        return _unknown_share(rule, change)
    return (
        f"Compare the ranks with `tracer ranks`: {waiting}: most of it is waiting for another "
        f"rank. For the rest: {_lower(change)}"
    )


def _unknown_share(rule: str, change: str) -> str:
    """The change, and that some of the time may be waiting: a stream of its own helps either way,
    but what overlaps better still waits for a late rank."""
    if rule == SAME_STREAM:
        told = "One rank cannot tell waiting from sending: compare the ranks with `tracer ranks`."
        return f"{change} {told}"
    return (
        "Compare the ranks with `tracer ranks` first: one rank cannot tell waiting from sending; "
        f"for what it sends, {_lower(change)}"
    )


def _waiting(analysis: Analysis, rows: Longs) -> str:
    """What shows that these calls mostly wait, by those of the most frequent size; "" for
    nothing."""
    collectives = analysis.collectives
    size = collectives["bytes"].to_numpy()[rows]
    sizes, counts = np.unique(size, return_counts=True)
    often = int(sizes[counts.argmax()])
    mine = rows[size == often]
    if mine.size < _ENOUGH_CALLS:
        return ""
    lasts = np.sort((collectives["end_ns"] - collectives["start_ns"]).to_numpy()[mine])[:-1]
    quick, mean = int(np.quantile(lasts, 0.1)), int(lasts.mean())
    small = 0 < often <= _SMALL_BYTES and not analysis.cpu_only
    if small and quick >= _NO_LINK_NEEDS_NS:
        return f"{often:,} bytes take {milliseconds(mean)}, which no link needs"
    if mean >= _MOSTLY_WAITING * quick:
        return f"calls of one size take {milliseconds(quick)} at best and {milliseconds(mean)} each"
    return ""


def _title(rule: str, detail: Mapping[str, Any], amount: str) -> str:
    group, op = detail["group"], str(detail["op"])
    op = "other collectives" if op == "other" else op
    named = f"{op} of group {group}" if group else op
    if "packing_ns" in detail:
        return title_of_buffers(named, amount, milliseconds(detail["packing_ns"]))
    if passes := detail.get("backward_passes"):
        named = f"{named} in each of {passes} backward passes"
    if rule == SAME_STREAM:
        shared = f"shares stream {detail['stream']} with compute, so that none of it can overlap"
        return f"{named}: {shared} ({amount})"
    return f"{named}: {amount} with nothing computed beside it"


def _modules(context: Context, analysis: Analysis, rows: Longs) -> list[dict[str, Any]]:
    """The modules that asked for these collectives, with the time exposed for each."""
    modules = analysis.collectives["module"].to_numpy()[rows]
    exposed = analysis.collectives["exposed_ns"].to_numpy()[rows]
    sums: dict[str, list[int]] = {}
    for module, ns in zip(modules.tolist(), exposed.tolist(), strict=True):
        if module != NONE:
            found = sums.setdefault(folded(context.work.tree.paths[module]), [0, 0])
            found[0], found[1] = found[0] + 1, found[1] + ns
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])
    return [
        {"module": path, "count": count, "exposed_ns": ns}
        for path, (count, ns) in ranked[:_MOST_PLACES]
    ]


def without_waiting(
    finding: Finding, waited_ns: int, capacity_ns: int, waited_for: Sequence[int] = ()
) -> Finding | None:
    """The finding of one rank once it is known how much of the exposed time was waiting for other
    ranks; None when what is left does not matter."""
    cost = max((finding.cost_ns or 0) - waited_ns, 0)
    ratio = cost / capacity_ns if capacity_ns else 0.0
    if ratio < WARNING_RATIO:
        return None
    severity: Severity = "critical" if ratio >= CRITICAL_RATIO else "warning"
    detail = {**finding.detail, "exposed_wait_ns": waited_ns, "exposed_wire_ns": cost}
    wire = max(cost - int(detail.get("packing_ns", 0)), 0)
    amount = f"{milliseconds(wire)} on the wire"
    if waited_ns:
        ranks = f"rank {', '.join(map(str, waited_for))}" if waited_for else "other ranks"
        amount += f" and {milliseconds(waited_ns)} of waiting for {ranks}"
    gain = finding.gain_ns
    return replace(
        finding,
        severity=severity,
        cost_ns=cost,
        ratio=ratio,
        title=_title(finding.rule, detail, amount),
        advice=_buffers_advice(detail) or _needless_advice(detail) + _rest(finding.rule, detail),
        detail=detail,
        # Which of them wait is not told: all alike.
        gain_ns=None if gain is None else round(gain * cost / max(finding.cost_ns or 0, 1)),
    )
