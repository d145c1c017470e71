"""What became of an export."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DeliveryReport:
    """produced = accepted + rejected + dropped, exactly.

    `rejected`: the receiver said that it does not take them. `dropped`: not delivered, kept in
    `undelivered`; of these `unconfirmed` were sent, but no answer came.
    """

    endpoint: str
    protocol: str
    trace_ids: tuple[str, ...]
    produced: int
    accepted: int
    rejected: int
    dropped: int
    unconfirmed: int
    requests: int
    sent_bytes: int
    elapsed_s: float
    deadline_s: float
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    undelivered: Path | None = None
    detail: str | None = None  # None: spans of a file, sent as they are
    metrics_accepted: int | None = None  # None: none were sent
    metrics_failure: str = field(default="")

    @property
    def complete(self) -> bool:
        """Whether the receiver took everything."""
        return self.accepted == self.produced and not self.metrics_failure

    def to_json(self) -> dict[str, Any]:
        """The report for machines."""
        return {
            "endpoint": self.endpoint,
            "protocol": self.protocol,
            "trace_ids": list(self.trace_ids),
            "complete": self.complete,
            "detail": self.detail,
            "produced": self.produced,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "dropped": self.dropped,
            "unconfirmed": self.unconfirmed,
            "requests": self.requests,
            "sent_bytes": self.sent_bytes,
            "elapsed_ns": round(self.elapsed_s * 1e9),
            "deadline_ns": round(self.deadline_s * 1e9),
            "reasons": list(self.reasons),
            "warnings": list(self.warnings),
            "undelivered": None if self.undelivered is None else str(self.undelivered),
            "metrics_accepted": self.metrics_accepted,
            "metrics_failure": self.metrics_failure or None,
        }

    def text(self) -> str:
        """The report for people: never a success that the receiver did not confirm."""
        return "\n".join([self._first_line(), *self._details()])

    def _first_line(self) -> str:
        verb, lead = ("delivered to", "") if self.accepted else ("reached", "not delivered: ")
        spans = f"{lead}{self.accepted:,} of {self.produced:,} spans {verb} {self.endpoint}"
        return f"{spans} ({self.protocol}, {self.elapsed_s:.2f} s)"

    def _details(self) -> list[str]:
        lines = [f"  trace {trace_id}" for trace_id in self.trace_ids[:8] if self.accepted]
        if self.rejected:
            lines.append(f"  {self.rejected:,} rejected by the receiver")
        if self.dropped:
            lines.append(f"  {self.dropped:,} dropped{self._unconfirmed()}")
        lines += [f"  reason: {reason}" for reason in self.reasons]
        lines += [f"  the receiver warns: {warning}" for warning in self.warnings]
        if self.metrics_accepted is not None:
            lines.append(f"  {self.metrics_accepted:,} metric points delivered")
        if self.metrics_failure:
            lines.append(f"  metrics not delivered: {self.metrics_failure}")
        if self.undelivered is not None:
            lines.append(f"  kept in {self.undelivered}: send it later with")
            lines.append(
                f"    tracer export {self.undelivered} --to otlp --endpoint {self.endpoint}"
            )
        return lines

    def _unconfirmed(self) -> str:
        if not self.unconfirmed:
            return ""
        return f", {self.unconfirmed:,} of them sent without an answer (they may have arrived)"
