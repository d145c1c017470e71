"""The ladder of evidence (DESIGN 5), best first. Each rung fills what those above it left open."""

from __future__ import annotations

from tracer.analyzers.attribution import Rung, by_kind, by_module, by_name, by_operator
from tracer.analyzers.capture_work import by_capture
from tracer.analyzers.position import by_position
from tracer.analyzers.rung_compiled import by_compiled
from tracer.analyzers.rung_graph import by_annotation, by_saved_graph

RUNGS: tuple[Rung, ...] = (
    by_kind,
    by_saved_graph,
    by_compiled,
    by_module,
    by_annotation,
    by_operator,
    by_capture,
    by_position,
    by_name,
)
