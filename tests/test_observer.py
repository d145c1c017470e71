"""The observer effect: only idle that the host caused shrinks."""

from __future__ import annotations

import pytest

from tests.make_traces import TraceMaker
from tests.test_idle import found
from tracer.analyzers import analyze


def launch_bound(unprofiled_us: float) -> TraceMaker:
    """Five steps of 400 us: 20 kernels of 5 us, launched every 20 us."""
    maker = TraceMaker()
    for step in range(5):
        at = 400 * step
        maker.annotation(f"ProfilerStep#{step}", at, 400)
        for row in range(20):
            begin = at + 20 * row
            maker.launch("k", start=begin + 5, run=(begin + 10, begin + 15), operator="aten::add")
    for row in range(4):
        start = round(row * unprofiled_us * 1000)
        end = round((row + 1) * unprofiled_us * 1000)
        maker.side("unprofiled_steps", start_ns=start, end_ns=end)
    return maker


def test_the_step_is_scaled_to_its_unprofiled_time() -> None:
    observer = analyze(launch_bound(250).build()).observer
    assert observer is not None
    assert (observer.profiled_step_ns, observer.unprofiled_step_ns) == (400_000, 250_000)
    assert observer.inflation_ratio == pytest.approx(1.6)
    assert observer.host_idle_factor == pytest.approx(0.5)  # 100 us of work, 300 us of idle
    assert sum(observer.scaled.values()) == 250_000
    assert observer.scaled["other"] == 100_000


@pytest.mark.parametrize(("unprofiled_us", "severity"), [(250, "critical"), (103, "info")])
def test_a_verdict_that_flips_is_uncertain(unprofiled_us: float, severity: str) -> None:
    (bound,) = found(analyze(launch_bound(unprofiled_us).build()), "gap.launch_bound")
    assert bound.severity == severity
    assert (bound.detail["uncertain"] == "profiler") is (severity == "info")


def test_without_unprofiled_steps_there_is_no_observer_and_a_reason() -> None:
    maker = launch_bound(250)
    del maker.side_rows["unprofiled_steps"]
    analysis = analyze(maker.build())
    assert analysis.observer is None
    assert "calibrate=True" in analysis.observer_reason
