"""The export of a live run: what it belongs to, metrics while it runs, spans when it has ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tracer.analysis import Analysis
from tracer.errors import UsageError
from tracer.exporters.otlp.background import BackgroundExport
from tracer.exporters.otlp.delivery import Clock
from tracer.exporters.otlp.export import Content, Delivery, check, send_analyses
from tracer.exporters.otlp.metrics import (
    STEP_BOUNDS,
    Counter,
    Distribution,
    Gauge,
    PeriodicMetrics,
    Point,
    Sample,
    device_point,
    step_points,
)
from tracer.exporters.otlp.options import DEFAULT_TIMEOUT_S, Arguments, resolve
from tracer.exporters.otlp.report import DeliveryReport
from tracer.exporters.otlp.resource import live_attributes
from tracer.rank_store import rank_file

DEFAULT_INTERVAL_S = 10.0
_ARGUMENTS = frozenset(field.name for field in fields(Arguments))
_CONTENT = frozenset(field.name for field in fields(Content))
_DELIVERY = frozenset({"deadline", "keep"})


@dataclass(frozen=True)
class Progress:
    """What a run has done since it was asked last, and its device counters now."""

    steps: Sequence[tuple[str, int]] = ()  # phase and wall_ns of each
    tokens: int = 0
    counters: Sequence[tuple[str, str, float]] = ()  # identity of the device, metric, value


class LiveExport:
    """The export that `trace(otlp=…)` asks for.

    `otlp` is True (the variables say where), an address, or a mapping of the arguments of
    `export_otlp`, and `interval` in seconds for the metrics of a run of detail `light`.
    """

    def __init__(self, otlp: bool | str | Mapping[str, Any]) -> None:
        given = _given(otlp)
        self._interval_s = float(given.pop("interval", DEFAULT_INTERVAL_S))
        self._arguments = Arguments(**_chosen(given, _ARGUMENTS))
        self._content = Content(**_chosen(given, _CONTENT))
        self._delivery = Delivery(**_chosen(given, _DELIVERY))
        if given:
            raise UsageError(f"otlp: unknown {', '.join(sorted(map(repr, given)))}")
        check(self._arguments, self._content, self._delivery)
        if self._interval_s <= 0:
            raise UsageError(f"otlp: interval {self._interval_s:g} is no number of seconds above 0")
        self._periodic: PeriodicMetrics | None = None

    def send_metrics_of(self, progress: Callable[[], Progress]) -> None:
        """Send metrics at the interval until `finish`; `progress` is asked from another thread."""
        attributes = live_attributes(self._content.service_name, self._content.resource)
        target = resolve(self._arguments, None, "metrics")
        sums = RunningSums(progress)
        self._periodic = PeriodicMetrics(target, sums.sample, attributes, self._interval_s)
        self._periodic.start()

    def finish(
        self, analyze: Callable[[], Analysis], beside: Path | None = None
    ) -> BackgroundExport:
        """Send the run's spans from a thread of its own. `beside`: where undelivered ones go."""
        if self._periodic is not None:
            self._periodic.stop(within_s=0.0)
        kept = self._delivery.keep if self._delivery.keep is not None else beside
        return BackgroundExport(lambda on_start: self._deliver(analyze, kept, on_start)).start()

    def _deliver(
        self,
        analyze: Callable[[], Analysis],
        kept: str | os.PathLike[str] | None,
        on_start: Callable[[Clock], None],
    ) -> DeliveryReport:
        if self._periodic is not None:
            self._periodic.stop(within_s=DEFAULT_TIMEOUT_S)
        analysis = analyze()
        # The ranks of a job are given one name; in a directory the export finds its own.
        own = None if kept is None else rank_file(analysis.trace.meta, kept)
        delivery = Delivery(self._delivery.deadline, own, on_start)
        return send_analyses([analysis], self._arguments, self._content, delivery)


def _given(otlp: bool | str | Mapping[str, Any]) -> dict[str, Any]:
    if otlp is True:
        return {}
    if isinstance(otlp, str):
        return {"endpoint": otlp}
    if isinstance(otlp, Mapping):
        return dict(otlp)
    raise UsageError(f"otlp={otlp!r}: give True, an address, or a mapping of arguments")


def _chosen(given: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: given.pop(name) for name in list(given) if name in names}


class RunningSums:
    """Sums of a run that goes on, in constant room."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        self._progress = progress
        self._started_ns = self._asked_ns = time.time_ns()
        self._times: dict[str, Distribution] = {}
        self._tokens = 0

    def sample(self) -> Sample | None:
        """The metrics now; None while there is nothing to say."""
        progress, now_ns = self._progress(), time.time_ns()
        for phase, wall_ns in progress.steps:
            self._times.setdefault(phase, Distribution(STEP_BOUNDS)).add(wall_ns / 1e9)
        self._tokens += progress.tokens
        points: list[Point] = step_points(self._times, {})
        if self._tokens:
            rate = progress.tokens * 1e9 / max(now_ns - self._asked_ns, 1)
            points.append(Counter("tracer.tokens", "{token}", float(self._tokens)))
            points.append(Gauge("tracer.token.rate", "{token}/s", rate))
        points += [device_point(*counter) for counter in progress.counters]
        self._asked_ns = now_ns
        return Sample(self._started_ns, now_ns, tuple(points)) if points else None
