"""Which engine a page of metrics is from, and what its metrics mean.

The knowledge is data, in `engines.csv` and `engine_metrics.csv` beside this module.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from tracer.collectors.serving.exposition import Page, Sample
from tracer.serving import Engine, Histogram, Reading, SeriesKey

_Values = TypeVar("_Values")
_SECOND_NS = 1e9
# Ranks of one model that count the same requests: one of them speaks for all.
_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank")
_MODEL_LABELS = ("model_name", "model")
_START = "process_start_time_seconds"


@dataclass(frozen=True)
class Metric:
    """One row of the table of metrics."""

    concept: str
    kind: str
    names: tuple[str, ...]
    label: tuple[str, str] | None
    scale: float


@cache
def engines() -> tuple[Engine, ...]:
    """The engines that are known, in the order in which they are looked for."""
    rows = _read_table("engines.csv")
    return tuple(
        Engine(row["key"], row["name"], row["prefix"], row["counts"] == "end") for row in rows
    )


@cache
def metrics_of(engine: str) -> tuple[Metric, ...]:
    """What an engine tells, by its key."""
    rows = _read_table("engine_metrics.csv")
    return tuple(_metric(row) for row in rows if row["engine"] == engine)


def _read_table(file: str) -> Iterator[dict[str, str]]:
    text = files("tracer.collectors.serving").joinpath(file).read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    yield from csv.DictReader(lines, restval="")


def _metric(row: Mapping[str, str]) -> Metric:
    label, equals, value = row["labels"].partition("=")
    names = tuple(row["metric"].split("|" if row["kind"] == "mean" else "+"))
    scale = float(row["scale"] or 1)
    return Metric(row["concept"], row["kind"], names, (label, value) if equals else None, scale)


def engine_of(page: Page) -> Engine | None:
    """The engine whose metrics a page holds; None when it is none that is known."""
    names = {sample.name for sample in page.samples}
    return next((e for e in engines() if any(name.startswith(e.prefix) for name in names)), None)


def read_page(page: Page, engine: Engine, at_ns: int) -> Reading:
    """The metrics of a page by concept."""
    by_name = _by_name(page.samples)
    counters: dict[str, dict[SeriesKey, float]] = {}
    gauges: dict[str, tuple[float, ...]] = {}
    histograms: dict[str, dict[SeriesKey, Histogram]] = {}
    for metric in metrics_of(engine.key):
        if metric.concept in gauges or metric.concept in counters or metric.concept in histograms:
            continue
        if metric.kind in ("gauge", "ratio"):
            _put(gauges, metric.concept, _gauge(by_name, metric))
        elif metric.kind == "counter":
            _put(counters, metric.concept, _counter(by_name, metric))
        elif metric.kind == "mean":
            _put(histograms, metric.concept, _mean(by_name, metric))
        else:
            _put(histograms, metric.concept, _histogram(by_name, metric))
    return Reading(
        at_ns,
        gauges,
        counters,
        histograms,
        _start(by_name),
        page.damaged_lines,
        _models(page.samples, engine),
    )


def _put(concepts: dict[str, _Values], concept: str, found: _Values) -> None:
    if found:
        concepts[concept] = found


def _by_name(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples of each metric, of ranks that count the same requests those of the first."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    return {name: _first_ranks(found) for name, found in by_name.items()}


def _first_ranks(samples: list[Sample]) -> list[Sample]:
    """Of series that differ by such a rank alone the first; with data-parallel attention each
    data-parallel rank has tensor-parallel ranks of its own."""
    first: dict[tuple[tuple[str, str], ...], Sample] = {}
    for sample in samples:
        others = sorted(item for item in sample.labels.items() if item[0] not in _SAME_REQUESTS)
        held = first.setdefault(tuple(others), sample)
        if _rank(sample) < _rank(held):
            first[tuple(others)] = sample
    return list(first.values())


def _rank(sample: Sample) -> tuple[tuple[int, str], ...]:
    """By number: 10 comes after 9."""
    ranks = [sample.labels.get(label, "") for label in _SAME_REQUESTS]
    return tuple((len(rank), rank) for rank in ranks)


def _labelled(samples: Sequence[Sample], metric: Metric) -> list[Sample]:
    if metric.label is None:
        return list(samples)
    name, value = metric.label
    return [sample for sample in samples if sample.labels.get(name) == value]


def _gauge(by_name: Mapping[str, list[Sample]], metric: Metric) -> tuple[float, ...]:
    samples = _labelled(by_name.get(metric.names[0], []), metric)
    return tuple(sample.value for sample in samples if math.isfinite(sample.value))


def _counter(by_name: Mapping[str, list[Sample]], metric: Metric) -> dict[SeriesKey, float]:
    """The counts of each series. Where the metric is there and no series has the label, nothing of
    its kind was counted yet."""
    if any(name not in by_name for name in metric.names):
        return {}
    samples = [s for name in metric.names for s in _labelled(by_name[name], metric)]
    counts = {_key(s): s.value * metric.scale for s in samples if math.isfinite(s.value)}
    return counts or ({} if metric.label is None else {"": 0.0})


def _mean(by_name: Mapping[str, list[Sample]], metric: Metric) -> dict[SeriesKey, Histogram]:
    sums, counts = (by_name.get(name, []) for name in metric.names)
    counted = {_labels_key(sample): sample.value for sample in counts}
    return {
        _labels_key(s): Histogram(counted[_labels_key(s)], s.value * metric.scale * _SECOND_NS)
        for s in sums
        if _labels_key(s) in counted and math.isfinite(s.value)
    }


def _histogram(by_name: Mapping[str, list[Sample]], metric: Metric) -> dict[SeriesKey, Histogram]:
    """The histogram of each series; one that lacks its sum or count is left out."""
    name, unit = metric.names[0], metric.scale * _SECOND_NS
    sums = {_labels_key(s): s.value for s in _labelled(by_name.get(f"{name}_sum", []), metric)}
    buckets: dict[SeriesKey, dict[float, float]] = {}
    for sample in _labelled(by_name.get(f"{name}_bucket", []), metric):
        bound = _bound(sample.labels.get("le", ""))
        if bound is not None:
            buckets.setdefault(_labels_key(sample), {})[bound * unit] = sample.value
    return {
        _labels_key(s): _filled(s.value, sums[_labels_key(s)] * unit, buckets.get(_labels_key(s)))
        for s in _labelled(by_name.get(f"{name}_count", []), metric)
        if _labels_key(s) in sums and math.isfinite(s.value)
    }


def _filled(count: float, sum_ns: float, buckets: Mapping[float, float] | None) -> Histogram:
    """With its buckets where they are whole: ascending, and the last one holds all."""
    bounds = sorted(buckets or {})
    at_most = [(buckets or {})[bound] for bound in bounds]
    whole = bool(bounds) and math.isinf(bounds[-1]) and at_most == sorted(at_most)
    if not whole or not all(map(math.isfinite, at_most)):
        return Histogram(count, sum_ns)
    return Histogram(count, sum_ns, tuple(bounds), tuple(at_most))


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


def _key(sample: Sample) -> SeriesKey:
    return f"{sample.name}{_labels_key(sample)}"


def _labels_key(sample: Sample) -> SeriesKey:
    return repr(sorted(item for item in sample.labels.items() if item[0] != "le"))


def _start(by_name: Mapping[str, list[Sample]]) -> float | None:
    samples = by_name.get(_START, [])
    return samples[0].value if len(samples) == 1 else None


def _models(samples: Iterable[Sample], engine: Engine) -> tuple[str, ...]:
    own = (sample.labels for sample in samples if sample.name.startswith(engine.prefix))
    named = {labels[label] for labels in own for label in _MODEL_LABELS if labels.get(label)}
    return tuple(sorted(named))
