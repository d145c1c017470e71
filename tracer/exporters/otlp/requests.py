"""Requests that the steps of an engine served, and which step served which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.exporters.otlp.context import Context, parse
from tracer.exporters.otlp.protobuf import Value

# Names of stages, as `Analysis.requests` has them, that these metrics are made of.
_FIRST_TOKEN_STAGE, _GENERATING_STAGE = "prefill", "decode"


@dataclass(frozen=True)
class Stage:
    """A part of a request's time."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Request:
    """A request that an engine told of. None: it did not say."""

    id: str
    start_ns: int
    end_ns: int
    stages: tuple[Stage, ...]
    trace_id: str | None = None
    context: Context | None = None
    operation: str | None = None
    provider: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def name(self) -> str:
        """By the conventions `{operation} {model}`."""
        return " ".join(filter(None, (self.operation, self.model))) or "request"

    def stage(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def first_token_ns(self) -> int | None:
        """Time to the first token: to the end of prefill."""
        prefill = self.stage(_FIRST_TOKEN_STAGE)
        return None if prefill is None else prefill.end_ns - self.start_ns

    @property
    def token_gap_ns(self) -> float | None:
        """Time per output token after the first."""
        decode = self.stage(_GENERATING_STAGE)
        if decode is None or self.output_tokens is None or self.output_tokens < 2:
            return None
        return (decode.end_ns - decode.start_ns) / (self.output_tokens - 1)

    def attributes(self) -> dict[str, Value | None]:
        """Attributes by the GenAI conventions, as far as the engine told."""
        first = self.first_token_ns
        return {
            "gen_ai.operation.name": self.operation,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.model,
            "gen_ai.usage.input_tokens": self.input_tokens,
            "gen_ai.usage.output_tokens": self.output_tokens,
            "gen_ai.response.time_to_first_chunk": None if first is None else first / 1e9,
            "tracer.request.id": self.id or None,
            "tracer.request.trace_id": self.trace_id,
        }


def read_requests(rows: Sequence[Mapping[str, Any]]) -> tuple[Request, ...]:
    """Requests from `Analysis.requests`; one without times has no place in a trace."""
    return tuple(request for row in rows if (request := _read(row)) is not None)


def _read(row: Mapping[str, Any]) -> Request | None:
    stages = tuple(
        Stage(str(s["name"]), int(s["start_ns"]), int(s["start_ns"]) + int(s["duration_ns"]))
        for s in row.get("stages") or ()
    )
    if not stages:
        return None
    tokens = row.get("tokens")
    counts = tokens if isinstance(tokens, Mapping) else {"output": tokens}
    return Request(
        id=str(row.get("id") or ""),
        start_ns=min(stage.start_ns for stage in stages),
        end_ns=max(stage.end_ns for stage in stages),
        stages=stages,
        trace_id=_text(row.get("trace_id")),
        context=parse(str(row.get("traceparent") or "")),
        operation=_text(row.get("operation")),
        provider=_text(row.get("provider")),
        model=_text(row.get("model")),
        input_tokens=_whole(counts.get("input")),
        output_tokens=_whole(counts.get("output")),
    )


def _text(value: Any) -> str | None:
    return str(value) if value else None


def _whole(value: Any) -> int | None:
    return None if value is None or value < 0 else int(value)


def requests_of_steps(
    requests: Sequence[Request], extents: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """For each step the requests that were under way in it."""
    if not requests:
        return [[] for _ in extents]
    start = np.array([request.start_ns for request in requests])
    end = np.array([request.end_ns for request in requests])
    return [np.flatnonzero((start < until) & (end > since)).tolist() for since, until in extents]
