"""Send batches until all are taken, refused, or the time is up; count every span exactly once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tracer.exporters.otlp.answers import Answer, Verdict
from tracer.exporters.otlp.transports import Transport
from tracer.exporters.otlp.wire import Batch

FIRST_BATCH_SPANS = 64
# A batch is sized to be answered in this time, so that a slow receiver leaves little in flight.
BATCH_SECONDS = 0.5
GROWTH = 4
RESERVE = 0.15  # of the time that nothing may be accepted
PATIENCE_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_MAX_REASONS = 10


@dataclass
class Tally:
    """Where the spans are. produced = accepted + rejected + dropped, always."""

    produced: int = 0
    accepted: int = 0
    rejected: int = 0  # the receiver said that it does not take them
    dropped: int = 0  # not delivered
    unconfirmed: int = 0  # of the dropped: sent, but no answer came
    requests: int = 0
    sent_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def blame(self, reason: str, count: int) -> None:
        """Count spans that were not taken under the reason for it."""
        if reason in self.reasons or len(self.reasons) < _MAX_REASONS:
            self.reasons[reason] = self.reasons.get(reason, 0) + count


class Clock:
    """One time limit for all of a delivery; `stop` ends it early from another thread."""

    def __init__(self, deadline_s: float, patience_s: float = PATIENCE_S) -> None:
        self.deadline_s = deadline_s
        self.patience_s = min(patience_s, deadline_s)
        self._started = self._progressed = time.monotonic()
        self._stopped = threading.Event()
        self._interrupt: Callable[[], None] = lambda: None

    def remaining_s(self) -> float:
        """Time left, of the whole and since the last progress."""
        if self._stopped.is_set():
            return 0.0
        now = time.monotonic()
        whole = self._started + self.deadline_s - now
        return min(whole, self._progressed + self.patience_s - now)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def progress(self) -> None:
        """Something was accepted: the receiver lives."""
        self._progressed = time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        self._stopped.wait(min(seconds, max(self.remaining_s(), 0.0)))

    def interrupt_with(self, interrupt: Callable[[], None]) -> None:
        """What ends a request under way when the clock is stopped."""
        self._interrupt = interrupt

    def stop(self) -> None:
        """End the delivery from another thread."""
        self._stopped.set()
        self._interrupt()


class Pace:
    """How many spans a request may carry: few at first, then as many as are answered quickly.

    What is in flight when the time runs out cannot be accounted for with certainty; a receiver
    that takes 100 spans a second must not hold thousands of them.
    """

    def __init__(self, reserve_s: float) -> None:
        self._reserve_s = reserve_s  # kept for an answer that takes longer than the ones before
        self._limit = FIRST_BATCH_SPANS
        self._max_bytes: int | None = None
        self._spans_per_s: float | None = None

    def allowed(self, batch: Batch, remaining_s: float) -> int:
        """How many spans of a batch can be answered before the end; 0: none."""
        allowed = min(self._limit, batch.count)
        if self._spans_per_s is not None:
            allowed = min(allowed, int(self._spans_per_s * (remaining_s - self._reserve_s)))
        if self._max_bytes is not None:
            allowed = min(allowed, batch.fitting(self._max_bytes))
        return allowed if remaining_s > 0 else 0

    def accepted(self, count: int, seconds: float) -> None:
        """So many spans were taken in this time."""
        self._spans_per_s = count / max(seconds, 1e-6)
        fitting = int(self._spans_per_s * BATCH_SECONDS)
        self._limit = max(min(self._limit * GROWTH, fitting), 1)

    def slower(self, count: int) -> None:
        """The receiver could not take so many now."""
        self._limit = max(count // 2, 1)

    def too_large(self, body_bytes: int) -> None:
        """The receiver takes no message of this size, now or later."""
        self._max_bytes = max(body_bytes // 2, 1)

    def forget_size(self) -> None:
        """One span alone was too large: that says nothing about messages of others."""
        self._max_bytes = None


@dataclass(frozen=True)
class _Parcel:
    """A batch on its way. `uncertain`: an earlier try may have reached the receiver."""

    batch: Batch
    uncertain: bool = False

    def split(self, count: int) -> tuple[_Parcel, _Parcel]:
        first, rest = self.batch.split(count)
        return _Parcel(first, self.uncertain), _Parcel(rest, self.uncertain)


class Courier:
    """Delivers batches over one transport. `keep` receives each batch that was not delivered."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        timeout_s: float,
        keep: Callable[[Batch], None] = lambda _batch: None,
    ) -> None:
        self.tally = Tally()
        self._transport, self._clock, self._keep = transport, clock, keep
        self._timeout_s = timeout_s
        self._pace = Pace(clock.patience_s * RESERVE)
        self._pause_s = _FIRST_PAUSE_S
        self._over = ""  # why nothing more is sent

    def deliver(self, batches: Iterable[Batch]) -> Tally:
        """Deliver all; what cannot be is dropped and kept, and the reason counted."""
        for batch in batches:
            self.tally.produced += batch.count
            waiting = [_Parcel(batch)]
            while waiting:
                self._advance(waiting)
        return self.tally

    def _advance(self, waiting: list[_Parcel]) -> None:
        """Bring the last of `waiting` a step further: sent, parted or dropped."""
        parcel = waiting.pop()
        allowed = 0 if self._over else self._pace.allowed(parcel.batch, self._clock.remaining_s())
        if allowed < 1:
            self._over = self._over or f"time limit reached after {self._clock.elapsed_s():.1f} s"
            self._drop(parcel, self._over)
        elif allowed < parcel.batch.count:
            first, rest = parcel.split(allowed)
            waiting += [rest, first]
        else:
            self._send(parcel, waiting)

    def _send(self, parcel: _Parcel, waiting: list[_Parcel]) -> None:
        batch, message = parcel.batch, parcel.batch.message()
        began = time.monotonic()
        answer = self._transport.send(message, self._limit_s())
        self.tally.requests += 1
        self.tally.sent_bytes += len(message)
        if answer.verdict is Verdict.ACCEPTED:
            self._accept(batch, answer, time.monotonic() - began)
        elif answer.verdict is Verdict.RETRY:
            self._retry(_Parcel(batch, parcel.uncertain or answer.uncertain), answer, waiting)
        elif answer.verdict is Verdict.SPLIT and batch.count > 1:
            self._pace.too_large(len(batch.body))
            waiting.append(parcel)
        elif answer.verdict in (Verdict.SPLIT, Verdict.BAD_BATCH):
            self._pace.forget_size()
            self._reject(batch, answer.reason)
        else:
            self._over = answer.reason
            self._drop(parcel, answer.reason)

    def _limit_s(self) -> float:
        return min(self._timeout_s, max(self._clock.remaining_s(), 0.001))

    def _accept(self, batch: Batch, answer: Answer, seconds: float) -> None:
        self._clock.progress()
        self._pace.accepted(batch.count, seconds)
        self._pause_s = _FIRST_PAUSE_S
        rejected = min(max(answer.rejected_spans, 0), batch.count)
        self.tally.accepted += batch.count - rejected
        self.tally.rejected += rejected
        if rejected:
            self.tally.blame(answer.reason or "rejected by the receiver, no reason given", rejected)
        elif answer.reason and answer.reason not in self.tally.warnings:
            self.tally.warnings.append(answer.reason)

    def _retry(self, parcel: _Parcel, answer: Answer, waiting: list[_Parcel]) -> None:
        """Put the parcel back after a pause, or give up when the pause outlasts the time."""
        asked_s = answer.retry_after_s
        pause_s = self._pause_s * random.uniform(0.8, 1.2) if asked_s is None else asked_s
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        if pause_s >= self._clock.remaining_s():
            self._over = answer.reason
            self._drop(parcel, answer.reason)
            return
        if answer.throttled:
            self._pace.slower(parcel.batch.count)
        self._clock.pause(pause_s)
        waiting.append(parcel)

    def _reject(self, batch: Batch, reason: str) -> None:
        self.tally.rejected += batch.count
        self.tally.blame(reason, batch.count)
        self._keep(batch)

    def _drop(self, parcel: _Parcel, reason: str) -> None:
        self.tally.dropped += parcel.batch.count
        self.tally.unconfirmed += parcel.batch.count if parcel.uncertain else 0
        self.tally.blame(reason, parcel.batch.count)
        self._keep(parcel.batch)
