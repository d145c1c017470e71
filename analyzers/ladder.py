"""The ladder of evidence (DESIGN 5), best first. Each rung fills what those above it left open."""

from __future__ import annotations

from tracer.analyzers.attribution import Rung, by_kind, by_module, by_name, by_operator
from tracer.analyzers.capture_work import by_capture
from tracer.analyzers.position import by_position

RUNGS: tuple[Rung, ...] = (by_kind, by_module, by_operator, by_capture, by_position, by_name)
