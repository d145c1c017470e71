"""The request or span that caused a run: a W3C trace context from where it can be had."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


_captures = 0


def run_context(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a run belongs to, asked when it begins and kept with it in `TraceMeta.extra`.

    `traceparent` and `tracestate` of the span or process around it; `job`, the same text in every
    rank of one job, by which their exports find the same trace.
    """
    global _captures
    _captures += 1
    variables = os.environ if environ is None else environ
    context = current(variables)
    found = {} if context is None else {"traceparent": context.traceparent}
    if context is not None and context.state:
        found["tracestate"] = context.state
    job = job_of(variables)
    return found | ({"job": f"{job}/{_captures}"} if job else {})


def job_of(environ: Mapping[str, str]) -> str | None:
    """What the launcher says is common to all ranks and to no other job; None when it does not."""
    world = environ.get("WORLD_SIZE", "1")
    if not world.isdecimal() or int(world) < 2:
        return None
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        return f"torchelastic/{run_id}/{restart}"
    if environ.get("SLURM_JOB_ID"):
        return f"slurm/{environ['SLURM_JOB_ID']}/{environ.get('SLURM_STEP_ID', '')}/{restart}"
    if environ.get("LOCAL_WORLD_SIZE") == world:
        return _launcher(os.getppid(), restart)
    return None


def _launcher(pid: int, restart: str) -> str | None:
    """The launching process of one machine: its number and when it started."""
    try:
        fields_after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return f"process/{pid}/{fields_after_name[19]}/{restart}"
    except (OSError, IndexError):
        return None
