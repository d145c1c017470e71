"""From analyses to a receiver: one call that says exactly what was delivered."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tracer.analysis import Analysis
from tracer.errors import UsageError
from tracer.exporters.otlp import ids
from tracer.exporters.otlp import protobuf as pb
from tracer.exporters.otlp.cells import make_cells
from tracer.exporters.otlp.context import Context, TraceParent, current, from_argument, parse
from tracer.exporters.otlp.delivery import Clock, Courier, Tally
from tracer.exporters.otlp.describe import across_events, ranks_attributes
from tracer.exporters.otlp.layout import DEFAULT_MAX_SPANS, MIN_MAX_SPANS, plan_layout
from tracer.exporters.otlp.metrics import sample_of, send_metrics
from tracer.exporters.otlp.options import Arguments, Target, resolve
from tracer.exporters.otlp.report import DeliveryReport
from tracer.exporters.otlp.requests import read_requests
from tracer.exporters.otlp.resource import SCOPE, resource_attributes
from tracer.exporters.otlp.spans import Place, SpanMaker, make_spans, parent_of, single
from tracer.exporters.otlp.transports import open_transport
from tracer.exporters.otlp.undelivered import SUFFIX, Keeper, read_batches
from tracer.exporters.otlp.wire import Batch, Envelope, SpanBlock, batches, make_envelope
from tracer.rank_analysis import RankAnalysis
from tracer.rank_store import rank_file
from tracer.version import VERSION

Detail = Literal["folded", "kernels"]
WARN_ABOVE_SPANS = 100_000
_DEADLINE_S, _DEADLINE_SPANS = 10.0, 100_000
_LOG = logging.getLogger("tracer.otlp")


@dataclass(frozen=True)
class Delivery:
    """How long to try, and where to keep what was not delivered (None: the working directory)."""

    deadline: float | None = None
    keep: str | os.PathLike[str] | None = None
    on_start: Callable[[Clock], None] = lambda _clock: None


@dataclass(frozen=True)
class Content:
    """What to export of a recording, and what it belongs to."""

    detail: Detail = "folded"
    max_spans: int = DEFAULT_MAX_SPANS
    traceparent: TraceParent | None = None
    links: Sequence[TraceParent] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    service_name: str | None = None
    resource: Mapping[str, pb.Value] | None = None
    metrics: bool = False


def export_otlp(
    analyses: Analysis | Sequence[Analysis],
    endpoint: str | None = None,
    *,
    protocol: str | None = None,
    headers: Mapping[str, str] | str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    client_key: str | os.PathLike[str] | None = None,
    client_certificate: str | os.PathLike[str] | None = None,
    insecure: bool | None = None,
    compression: str | None = None,
    timeout: float | None = None,
    deadline: float | None = None,
    detail: Detail = "folded",
    max_spans: int = DEFAULT_MAX_SPANS,
    traceparent: TraceParent | None = None,
    links: Sequence[TraceParent] = (),
    requests: Sequence[Mapping[str, Any]] = (),
    service_name: str | None = None,
    resource: Mapping[str, pb.Value] | None = None,
    metrics: bool = False,
    keep: str | os.PathLike[str] | None = None,
    across: RankAnalysis | None = None,
    environ: Mapping[str, str] | None = None,
    on_start: Callable[[Clock], None] = lambda _clock: None,
) -> DeliveryReport:
    """Send recordings as spans to an OTLP receiver and say what it took.

    What an argument leaves open, the `OTEL_…` variables say. `deadline` bounds all of it, in
    seconds (10, and 10 more for each further 100,000 spans). `across`: what was found out across
    ranks, which the span over them tells. It raises UsageError for a wrong
    argument, and nothing for what a receiver does: see `DeliveryReport`.
    """
    arguments = Arguments(
        endpoint, protocol, headers, certificate, client_key, client_certificate, insecure,
        compression, timeout,
    )  # fmt: skip
    content = Content(
        detail, max_spans, traceparent, links, requests, service_name, resource, metrics
    )
    listed = [analyses] if isinstance(analyses, Analysis) else list(analyses)
    delivery = Delivery(deadline, keep, on_start)
    return send_analyses(listed, arguments, content, delivery, environ, across)


def send_analyses(
    analyses: Sequence[Analysis],
    arguments: Arguments,
    content: Content,
    delivery: Delivery,
    environ: Mapping[str, str] | None = None,
    across: RankAnalysis | None = None,
) -> DeliveryReport:
    """The same with the arguments grouped."""
    target = check(arguments, content, delivery, environ)
    recordings = plan_recordings(analyses, content, environ, across)
    spans = sum(recording.spans for recording in recordings)
    _warn(analyses, spans)
    traces = [recording.trace_id.hex() for recording in recordings]
    kept = _kept_path(delivery.keep, traces, analyses)
    run = _Run(target, replace(delivery, keep=kept), spans, traces)
    report = run.send(batch for r in recordings for batch in r.batches())
    detail = recordings[0].maker.layout.level if recordings else None
    report = replace(report, detail=detail)
    if not content.metrics:
        return report
    return _with_metrics(report, analyses, arguments, content, run.clock, environ)


def send_file(path: Path, arguments: Arguments, delivery: Delivery) -> DeliveryReport:
    """Send a file of undelivered spans, as they were made. What is left replaces the file only
    when nothing of it was lost."""
    target = check(arguments, Content(), delivery)
    spans = sum(batch.count for batch in read_batches(path))
    kept = path if delivery.keep is None else _kept_path(delivery.keep)
    run = _Run(target, replace(delivery, keep=kept), spans, ())
    return run.send(read_batches(path))


class _Run:
    """One delivery: its clock, its courier and the file of what is left, `delivery.keep`."""

    def __init__(self, target: Target, delivery: Delivery, spans: int, traces: Sequence[str]):
        deadline_s = delivery.deadline
        self._target = target
        self._traces = dict.fromkeys(traces)
        self._keeper = Keeper(Path(delivery.keep or ""))
        self.clock = Clock(default_deadline_s(spans) if deadline_s is None else deadline_s)
        delivery.on_start(self.clock)

    def send(self, made: Iterable[Batch]) -> DeliveryReport:
        target = self._target
        transport = open_transport(target)
        self.clock.interrupt_with(transport.abort)
        try:
            courier = Courier(transport, self.clock, target.timeout_s, self._keeper.keep)
            tally = courier.deliver(made)
        finally:
            transport.close()
        return self._report(tally, self._keeper.close())

    def _report(self, tally: Tally, kept: Path | None) -> DeliveryReport:
        failure = self._keeper.failure
        return DeliveryReport(
            endpoint=self._target.shown,
            protocol=self._target.protocol,
            trace_ids=tuple(self._traces),
            produced=tally.produced,
            accepted=tally.accepted,
            rejected=tally.rejected,
            dropped=tally.dropped,
            unconfirmed=tally.unconfirmed,
            requests=tally.requests,
            sent_bytes=tally.sent_bytes,
            elapsed_s=self.clock.elapsed_s(),
            deadline_s=self.clock.deadline_s,
            reasons=tuple(f"{why} ({count:,} spans)" for why, count in tally.reasons.items()),
            warnings=(*tally.warnings, *([failure] if failure else [])),
            undelivered=kept,
        )


def _with_metrics(
    report: DeliveryReport,
    analyses: Sequence[Analysis],
    arguments: Arguments,
    content: Content,
    clock: Clock,
    environ: Mapping[str, str] | None,
) -> DeliveryReport:
    target = resolve(arguments, environ, "metrics")
    accepted = 0
    for analysis in analyses:
        attributes = resource_attributes(
            analysis, service_name=content.service_name, extra=content.resource, environ=environ
        )
        sent = send_metrics(target, sample_of(analysis), attributes, max(clock.remaining_s(), 1.0))
        accepted += sent.accepted
        if sent.failure:
            return replace(report, metrics_accepted=accepted, metrics_failure=sent.failure)
    return replace(report, metrics_accepted=accepted)


def default_deadline_s(spans: int) -> float:
    """10 s, and 10 s more for each 100,000 spans after the first."""
    return _DEADLINE_S * max(math.ceil(spans / _DEADLINE_SPANS), 1)


def _kept_path(
    keep: str | os.PathLike[str] | None,
    traces: Sequence[str] = (),
    analyses: Sequence[Analysis] = (),
) -> Path:
    """A file of a name of our own where none is given: the ranks of a job share their trace."""
    if keep is not None and not Path(keep).is_dir():
        return Path(keep)
    name = Path(f"tracer-undelivered-{traces[0][:16] if traces else 'spans'}{SUFFIX}")
    only = analyses[0].trace.meta if len(analyses) == 1 else None
    return Path(keep or "") / (name if only is None else rank_file(only, name))


def check(
    arguments: Arguments,
    content: Content,
    delivery: Delivery,
    environ: Mapping[str, str] | None = None,
) -> Target:
    """Where it goes; an error for a wrong argument, before anything is read or sent."""
    for context in (content.traceparent, *content.links):
        if context is not None:
            from_argument(context)
    if content.detail not in ("folded", "kernels"):
        raise UsageError(f"detail {content.detail!r}: use folded or kernels")
    if content.max_spans < MIN_MAX_SPANS:
        raise UsageError(f"max_spans {content.max_spans}: at least {MIN_MAX_SPANS}")
    deadline = delivery.deadline
    if deadline is not None and not (math.isfinite(deadline) and deadline > 0):
        raise UsageError(f"deadline {deadline!r}: give seconds above 0")
    return resolve(arguments, environ)


def _warn(analyses: Sequence[Analysis], spans: int) -> None:
    if spans > WARN_ABOVE_SPANS:
        _LOG.warning(
            "tracer: %s spans: viewers open a trace of this size slowly or not at all", f"{spans:,}"
        )
    if any(a.trace.meta.clock == "relative" for a in analyses):
        _LOG.warning(
            "tracer: the recording has no absolute clock: its spans stand at the year 1970"
        )


# recordings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """The spans of one recording, and what stands around them."""

    maker: SpanMaker
    envelope: Envelope
    root: SpanBlock | None = None  # the span over all ranks, sent with the first of them

    @property
    def trace_id(self) -> bytes:
        return self.maker.place.trace_id

    @property
    def spans(self) -> int:
        return self.maker.count + (0 if self.root is None else 1)

    def blocks(self) -> Iterator[SpanBlock]:
        if self.root is not None:
            yield self.root
        yield from make_spans(self.maker)

    def batches(self) -> Iterator[Batch]:
        return batches(self.blocks(), self.trace_id, self.envelope)


def plan_recordings(
    analyses: Sequence[Analysis],
    content: Content,
    environ: Mapping[str, str] | None = None,
    across: RankAnalysis | None = None,
) -> list[Recording]:
    """The spans of recordings: ranks of one run become one trace, others one trace each. `across`:
    what was found out across the ranks."""
    prints = [ids.fingerprint(analysis.trace) for analysis in analyses]
    together = len(analyses) > 1 and ranks_of_one_run(analyses)
    links = tuple(from_argument(link) for link in content.links)
    planned: list[Recording] = []
    for analysis, mark in zip(analyses, prints, strict=True):
        parent = _parent(analysis, content, environ)
        trace_id = _trace_id(analysis, parent, prints if together else [mark])
        root_id = ids.span_id(trace_id, "ranks") if together else None
        place = Place(trace_id, mark.hex(), None if together else parent, root_id, links)
        root = None
        if together and not planned:
            root = _root_span(analyses, parent, place, across)
        planned.append(_recording(analysis, place, content, root, environ))
    return planned


def _recording(
    analysis: Analysis,
    place: Place,
    content: Content,
    root: SpanBlock | None,
    environ: Mapping[str, str] | None,
) -> Recording:
    cells = make_cells(analysis)
    layout = plan_layout(analysis, cells, content.detail, content.max_spans)
    requests = read_requests([*analysis.requests, *content.requests])
    attributes = resource_attributes(
        analysis, service_name=content.service_name, extra=content.resource, environ=environ
    )
    maker = SpanMaker(analysis, layout, place, requests)
    return Recording(maker, make_envelope(attributes, SCOPE, VERSION), root)


def ranks_of_one_run(analyses: Sequence[Analysis]) -> bool:
    """Whether the recordings are different ranks of one world."""
    metas = [analysis.trace.meta for analysis in analyses]
    ranks = {meta.rank for meta in metas}
    return (
        None not in ranks and len(ranks) == len(metas) and len({m.world_size for m in metas}) == 1
    )


def _parent(
    analysis: Analysis, content: Content, environ: Mapping[str, str] | None
) -> Context | None:
    """The span that caused the run: as told, as recorded at its start, or around us now."""
    if content.traceparent is not None:
        return from_argument(content.traceparent)
    extra = analysis.trace.meta.extra
    recorded = parse(str(extra.get("traceparent", "")), str(extra.get("tracestate", "")))
    return recorded or current(environ)


def _trace_id(analysis: Analysis, parent: Context | None, prints: list[bytes]) -> bytes:
    """The parent's trace; else that of the job, which all its ranks know; else of the content."""
    if parent is not None:
        return parent.trace_id
    job = analysis.trace.meta.extra.get("job")
    return ids.job_trace_id(str(job)) if job else ids.trace_id_of(prints)


def _root_span(
    analyses: Sequence[Analysis],
    parent: Context | None,
    place: Place,
    across: RankAnalysis | None,
) -> SpanBlock:
    """The span over all ranks."""
    start = min(analysis.window.start_ns for analysis in analyses)
    end = max(analysis.window.end_ns for analysis in analyses)
    flags, above = parent_of(parent, None)
    events, left_out = ([], 0) if across is None else across_events(across, start)
    template = pb.span_template(
        f"run of {len(analyses)} ranks",
        ranks_attributes(len(analyses), across),
        flags=flags,
        trace_state="" if parent is None else parent.state,
        extra=[*events, pb.dropped_events(left_out)],
    )
    return single(template, place.root or 0, above, start, end)
