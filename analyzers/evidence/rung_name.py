"""The rung `name`: kernels that do one thing whatever runs around them."""

from __future__ import annotations

import numpy as np

from tracer.analysis import BUCKET_CODE
from tracer.analyzers.evidence.attribution import OPEN, Attribution
from tracer.analyzers.evidence.roles import Roles
from tracer.analyzers.facts.work import Work
from tracer.analyzers.names.kernel_table import KernelName

# What a kernel of this token does whatever runs around it. An activation, a softmax, a gather or a
# grouped GEMM has many owners.
_NAMED = ("CORE", "CORE_AUX", "SCAN", "SCAN_AUX", "ROPE", "CACHE", "NORM", "NORM_ADD", "ROUTER")
_NAMED_CATEGORIES = ("moe", "sampling", "optimizer")


def by_name(work: Work, roles: Roles, out: Attribution) -> None:
    named = np.array([_bucket_of_name(name) for name in work.names], dtype=np.int16)
    rows = out.open
    if named.size:
        out.fill(rows, named[work.name_code[rows]], "name", 0.7)


def _bucket_of_name(name: KernelName) -> int:
    if name.token not in _NAMED and name.category not in _NAMED_CATEGORIES:
        return OPEN
    return BUCKET_CODE.get(name.role or ("", ""), OPEN)
