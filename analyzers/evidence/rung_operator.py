"""The rung `operator`: the innermost operator or range around the launch that says something."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import OPEN, Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, take
from tracer.analyzers.names.operator_names import operator_role


def by_operator(work: Work, roles: Roles, out: Attribution) -> None:
    rows = out.open
    out.fill(rows, operator_buckets(work)[rows], "operator", 0.95)


def operator_buckets(work: Work) -> NDArray[np.int16]:
    """Bucket by the innermost operator or range around the launch that says something; for
    backward work by its forward operator as well."""
    trace = work.trace
    told = np.full(len(trace.names), OPEN, dtype=np.int16)
    ranges = np.flatnonzero(trace.names_of("operator", "annotation")).tolist()
    told[ranges] = [_told_by(trace.names[code]) for code in ranges]
    speaking = (told != OPEN).take(trace.name_codes) & trace.of_kind("operator", "annotation")
    nearest = work.host.nearest(speaking)
    out = np.full(work.event.size, OPEN, dtype=np.int16)
    for site in (work.site, work.operator, work.forward):
        found = take(nearest, site)
        missing = (out == OPEN) & (found != NONE)
        out[missing] = told[trace.name_codes[found[missing]]]
    return out


@lru_cache(maxsize=65536)
def _told_by(name: str) -> int:
    role = operator_role(name)
    return OPEN if role is None else BUCKET_CODE.get((role.group, role.part), OPEN)
