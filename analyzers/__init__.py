"""From a trace to an `Analysis`: each file one question.

The order of the day stands in `pipeline`. What explains idle and which rules judge is listed here.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracer.analysis import Analysis
from tracer.analyzers.context import Explain, Rule
from tracer.analyzers.graphs.maps import with_captures
from tracer.analyzers.idle.causes import explain_idle
from tracer.analyzers.pipeline import run_pipeline
from tracer.analyzers.rules.attention import judge_attention
from tracer.analyzers.rules.between import judge_between
from tracer.analyzers.rules.cache_absent import judge_absent_cache
from tracer.analyzers.rules.cache_copied import judge_copied_cache
from tracer.analyzers.rules.comm import judge_communication
from tracer.analyzers.rules.compile import judge_compile
from tracer.analyzers.rules.cpu import judge_cpu_pauses
from tracer.analyzers.rules.cpu_compile import judge_cpu_compiling
from tracer.analyzers.rules.device import judge_throttling
from tracer.analyzers.rules.drafted import judge_drafts
from tracer.analyzers.rules.evaluation import judge_evaluation
from tracer.analyzers.rules.gaps import judge_gaps
from tracer.analyzers.rules.matmul import judge_matmul
from tracer.analyzers.rules.memory import judge_memory
from tracer.analyzers.rules.moe import judge_moe
from tracer.analyzers.rules.placement import judge_placement
from tracer.analyzers.rules.quantized import judge_quantized
from tracer.analyzers.rules.recompute import judge_recompute
from tracer.analyzers.rules.recurrence import judge_recurrence
from tracer.analyzers.rules.roofline import judge_headroom
from tracer.analyzers.rules.sync import judge_allocator, judge_waits
from tracer.events import Trace

EXPLAIN: Explain = explain_idle
RULES: tuple[Rule, ...] = (
    judge_gaps,
    judge_cpu_pauses,
    judge_cpu_compiling,
    judge_waits,
    judge_allocator,
    judge_attention,
    judge_matmul,
    judge_quantized,
    judge_moe,
    judge_recurrence,
    judge_placement,
    judge_communication,
    judge_compile,
    judge_memory,
    judge_throttling,
    judge_evaluation,
    judge_between,
    judge_drafts,
    judge_recompute,
    judge_absent_cache,
    judge_copied_cache,
    judge_headroom,
)


def analyze(trace: Trace, captures: Iterable[Trace] = ()) -> Analysis:
    """Understand a trace: account for its time, attribute it, and judge it by every rule.

    `captures`: recordings in which the graphs were captured that this one replays.
    """
    return run_pipeline(with_captures(trace, captures), EXPLAIN, RULES)
