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
    trace, host = work.trace, work.host
    told = np.array([_told_by(name) for name in trace.names], dtype=np.int16)
    ranges = host.of_kind("operator") | host.of_kind("annotation")
    speaking = (told[trace.name_codes] != OPEN) & ranges if told.size else ranges & False
    nearest = host.nearest(speaking)
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
