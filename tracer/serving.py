"""What a serving engine tells of itself: readings of its metrics, and what a window of them says.

Concepts are the same for all engines: `running`, `waiting`, `kv_cache_usage`, `generated_tokens`,
`time_to_first_token`, … An engine that has no metric for a concept lacks the key: it is never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tracer.findings import Check, Finding

# Concepts that are times of a request or of a token.
LATENCIES = (
    "time_to_first_token",
    "inter_token_latency",
    "time_per_output_token",
    "end_to_end",
    "queue_time",
    "prefill_time",
    "decode_time",
)

# One series of a metric: the metric and its labels, as a key that stays the same over time.
SeriesKey = str


@dataclass(frozen=True)
class Histogram:
    """How many values, their sum in nanoseconds, and how many are at most each bound (in
    nanoseconds, ascending, the last one infinite); without bounds where only a sum is told."""

    count: float
    sum_ns: float
    bounds_ns: tuple[float, ...] = ()
    at_most: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reading:
    """The metrics of an engine at one moment, by concept; `at_ns` is of a monotonic clock.

    Gauges hold one value a series; counters and histograms count since the engine's start."""

    at_ns: int
    gauges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    counters: Mapping[str, Mapping[SeriesKey, float]] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[SeriesKey, Histogram]] = field(default_factory=dict)
    started_s: float | None = None  # when the process started, where it says so
    damaged_lines: int = 0
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """An engine: `key` stands in the tables, `name` is shown, its metrics begin with `prefix`.
    `counts_at_end`: the tokens of a request are counted when it ends, all at once."""

    key: str
    name: str
    prefix: str
    counts_at_end: bool = False


@dataclass(frozen=True)
class Readings:
    """All readings of one server. `missed` counts polls without an answer, `failure` is the last
    of their reasons."""

    url: str
    engine: Engine
    started_unix_ns: int
    readings: tuple[Reading, ...]
    missed: int = 0
    failure: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class Level:
    """A gauge over the window: summed over the engines of a server, of ratios the fullest."""

    last: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Quantile:
    """A value between the bounds of its bucket; `at_least` where the bucket has no upper one."""

    ns: int
    low_ns: int
    high_ns: int | None

    @property
    def at_least(self) -> bool:
        """Whether all that is known is that it is no less."""
        return self.high_ns is None


@dataclass(frozen=True)
class Times:
    """The values of a histogram that came in the window; no quantile where no bucket is told."""

    count: int
    sum_ns: int
    p50: Quantile | None = None
    p95: Quantile | None = None

    @property
    def mean_ns(self) -> int:
        """The mean; there is at least one value."""
        return round(self.sum_ns / self.count)


@dataclass(frozen=True)
class Stages:
    """A request from its arrival to its end, in parts that add up to `total_ns`; means.

    `basis`: engine (it times each stage) or derived (from the first token and the end). `requests`
    ended in the window."""

    total_ns: int
    parts: Mapping[str, int]
    basis: str
    requests: int

    def ratio(self, part: str) -> float:
        """The part's share of the whole; 0 for a part that is not told apart."""
        return self.parts.get(part, 0) / self.total_ns if self.total_ns else 0.0


@dataclass(frozen=True)
class ServingWindow:
    """What the engine did from the first reading to the last, by concept."""

    wall_ns: int
    levels: Mapping[str, Level] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    times: Mapping[str, Times | None] = field(default_factory=dict)  # None: no value in the window
    stages: Stages | None = None
    restarts: int = 0
    running_while_waiting: Level | None = None  # of the readings in which somebody waits

    def per_second(self, concept: str) -> float | None:
        """How many a second; None where the engine has no such counter."""
        count = self.counts.get(concept)
        return None if count is None or not self.wall_ns else count * 1e9 / self.wall_ns

    def ratio(self, part: str, whole: str) -> float | None:
        """One counter as a share of another; None where either is absent or nothing came."""
        share, total = self.counts.get(part), self.counts.get(whole)
        return None if share is None or not total else min(share / total, 1.0)


@dataclass(frozen=True)
class ServingAnalysis:
    """A watched server: its readings, their window, what is wrong with it and what to change.

    `prefill_ratio` and `decode_ratio` are shares of a request, else of the time that the engine
    computed; `token_ns` is the mean from one token of a request to the next. None: not told, or
    nothing came in the window."""

    readings: Readings
    window: ServingWindow
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    absent: tuple[str, ...]  # concepts that this engine does not tell
    idle: bool = False
    queue_of_first_token_ratio: float | None = None
    prefix_cache_hit_ratio: float | None = None
    acceptance_ratio: float | None = None
    prefill_ratio: float | None = None
    decode_ratio: float | None = None
    token_ns: float | None = None

    @property
    def damaged(self) -> bool:
        """Whether something was lost: polls, lines of an answer, or counts over a restart."""
        return bool(self.readings.missed or self.window.restarts or self.damaged_lines)

    @property
    def damaged_lines(self) -> int:
        """Lines of the answers that could not be read."""
        return sum(reading.damaged_lines for reading in self.readings.readings)
