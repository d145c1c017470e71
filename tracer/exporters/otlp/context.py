"""The request or span that caused a run: a W3C trace context from where it can be had."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tracer.errors import UsageError

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
TraceParent = str | Mapping[str, str]


@dataclass(frozen=True)
class Context:
    """A span of somebody else. `flags` has bit 0 set when its trace is recorded."""

    trace_id: bytes
    span_id: bytes
    flags: int = 1
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The header's text."""
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{self.flags & 0xFF:02x}"


def parse(text: str, state: str = "") -> Context | None:
    """The context of a `traceparent`; None when the text is none (W3C: then start a new trace)."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None or match[1] == "ff" or (match[1] == "00" and match[5]):
        return None
    trace_id, span_id = bytes.fromhex(match[2]), bytes.fromhex(match[3])
    if not any(trace_id) or not any(span_id):
        return None
    return Context(trace_id, span_id, int(match[4], 16), state.strip())


def from_argument(given: TraceParent) -> Context:
    """The context of a `traceparent` text or of request headers that hold one."""
    text, state = given if isinstance(given, str) else None, ""
    if not isinstance(given, str):
        lowered = {str(key).lower(): value for key, value in given.items()}
        text, state = lowered.get("traceparent"), lowered.get("tracestate", "")
    found = parse(text, state) if text is not None else None
    if found is None:
        raise UsageError(f"traceparent {text!r}: expected 00-<32 hex digits>-<16 hex digits>-01")
    return found


def current(environ: Mapping[str, str] | None = None) -> Context | None:
    """The context this thread runs in: the active OpenTelemetry span, else `TRACEPARENT`.

    A live capture asks at its start and keeps the text with the run, since the export can come
    after that span has ended.
    """
    return active() or from_environment(environ)


def from_environment(environ: Mapping[str, str] | None = None) -> Context | None:
    """The context a parent process handed down in `TRACEPARENT` and `TRACESTATE`."""
    variables = os.environ if environ is None else environ
    return parse(variables.get("TRACEPARENT", ""), variables.get("TRACESTATE", ""))


def active() -> Context | None:
    """The active OpenTelemetry span. Asks only if the program has loaded OpenTelemetry itself."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return Context(
        found.trace_id.to_bytes(16, "big"),
        found.span_id.to_bytes(8, "big"),
        int(found.trace_flags),
        found.trace_state.to_header(),
    )
