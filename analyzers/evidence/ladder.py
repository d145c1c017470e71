"""The ladder of evidence (DESIGN 5), best first: kind, a graph's capture, a compiler's provenance,
module, operator, place in a generation and in the layer pattern, name. Each rung fills what those
above left open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import HOW, UNATTRIBUTED
from tracer.analyzers.evidence.attribution import OPEN, Attribution, Rung
from tracer.analyzers.evidence.capture_work import by_capture
from tracer.analyzers.evidence.directions import find_directions
from tracer.analyzers.evidence.roles import Roles, find_roles, with_saved_roles
from tracer.analyzers.evidence.rung_compiled import by_compiled
from tracer.analyzers.evidence.rung_generation import by_generation
from tracer.analyzers.evidence.rung_graph import by_annotation, by_saved_graph
from tracer.analyzers.evidence.rung_kind import by_kind
from tracer.analyzers.evidence.rung_module import by_module
from tracer.analyzers.evidence.rung_name import by_name
from tracer.analyzers.evidence.rung_operator import by_operator
from tracer.analyzers.evidence.rung_position import by_position
from tracer.analyzers.evidence.seen_in_modules import seen_in_modules
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import Longs

RUNGS: tuple[Rung, ...] = (
    by_kind,
    by_saved_graph,
    by_compiled,
    by_module,
    by_annotation,
    by_operator,
    by_generation,
    by_capture,
    by_position,
    by_name,
)


def attribute(work: Work, step: Longs) -> tuple[Attribution, Roles]:
    """Fill the ladder from the top; what nothing explains is other.unattributed. `step`: that of
    each work row, -1 for none."""
    size = work.event.size
    out = Attribution(
        np.full(size, OPEN, dtype=np.int16),
        np.full(size, HOW.index("none"), dtype=np.int8),
        np.zeros(size),
        find_directions(work),
        work.replayed,
        step,
    )
    roles = with_saved_roles(find_roles(work.tree, seen_in_modules(work)), work.tree, work.trace)
    out.fill(np.flatnonzero(work.orphaned), _constant(work.orphaned, UNATTRIBUTED), "none", 0.0)
    for rung in RUNGS:
        rung(work, roles, out)
    left = out.open
    out.fill(left, np.full(left.size, UNATTRIBUTED, dtype=np.int16), "none", 0.0)
    return out, roles


def _constant(rows: NDArray[np.bool_], bucket: int) -> NDArray[np.int16]:
    return np.full(int(rows.sum()), bucket, dtype=np.int16)
