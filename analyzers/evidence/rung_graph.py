"""The rung `graph`: nodes of replays whose capture was seen elsewhere, and nodes that torch's own
annotations name. Where the capture lies in the same recording, the other rungs see it themselves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, BUCKETS, GROUPS
from tracer.analyzers.evidence.attribution import Attribution
from tracer.analyzers.evidence.role_words import role_of_words
from tracer.analyzers.evidence.roles import BLOCK_ROLES, Roles
from tracer.analyzers.evidence.rung_module import decide
from tracer.analyzers.facts.modules import split_range_name
from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs, distinct, lookup
from tracer.analyzers.names.kernel_table import KernelName

_OPEN = -1
BLOCK_WORDS = (*BLOCK_ROLES, "experts", "router")


def by_saved_graph(work: Work, roles: Roles, out: Attribution) -> None:
    """What a node was launched for where its graph was captured."""
    rows = np.flatnonzero(work.node != NONE)
    if not rows.size:
        return
    decided = _decisions(work, rows)
    out.fill(rows, decided, "graph", 1.0)
    out.fill(rows, _told(work, rows), "graph", 0.95)


def _decisions(work: Work, rows: Longs) -> NDArray[np.int16]:
    """One decision for each distinct (role, block, operator, place, kernel)."""
    nodes = work.trace.table("captured_nodes")
    node = work.node[rows]
    columns = [nodes[name].cat.codes.to_numpy()[node] for name in ("role", "block", "operator")]
    first, place = distinct(*columns, nodes["place"].to_numpy()[node], work.name_code[rows])
    decided = []
    for example in first.tolist():
        row = nodes.iloc[int(node[example])]
        kernel = work.names[int(work.name_code[rows[example]])]
        signature = (str(row["role"]), str(row["block"]))
        decided.append(decide(signature, str(row["operator"]), kernel, int(row["place"])))
    buckets: NDArray[np.int16] = np.array(decided, dtype=np.int16)[place]
    return buckets


def _told(work: Work, rows: Longs) -> NDArray[np.int16]:
    """Buckets that an operator around the captured launch proved; where the kernel's own name
    knows the part of that group better, its part."""
    told = work.trace.table("captured_nodes")["told"]
    codes = np.array([_bucket(str(word)) for word in told.cat.categories], dtype=np.int16)
    said = codes[told.cat.codes.to_numpy()[work.node[rows]]]
    named = np.array([_bucket(".".join(name.role or ("", ""))) for name in work.names])
    better = named[work.name_code[rows]]
    same: NDArray[np.bool_] = (said != _OPEN) & (better != _OPEN) & (_GROUP[said] == _GROUP[better])
    buckets: NDArray[np.int16] = np.where(same, better, said).astype(np.int16)
    return buckets


_GROUP = np.array([GROUPS.index(group) for group, _ in BUCKETS], dtype=np.int8)


def _bucket(word: str) -> int:
    group, _, part = word.partition(".")
    return BUCKET_CODE.get((group, part), _OPEN)


def by_annotation(work: Work, roles: Roles, out: Attribution) -> None:
    """Nodes of graphs that the program itself marked (`torch.cuda.graph_annotations`)."""
    table = work.trace.table("graph_annotations")
    if not len(table):
        return
    at = lookup(table["event"].to_numpy(), work.event)
    rows = np.flatnonzero(at != NONE)
    codes = table["annotation"].cat.codes.to_numpy()[at[rows]]
    roles_named = [
        role_of_words(_without_prefix(str(t))) for t in table["annotation"].cat.categories
    ]
    buckets = [
        _in_named(roles_named[code], work.names[name])
        for code, name in zip(codes.tolist(), work.name_code[rows].tolist(), strict=True)
    ]
    out.fill(rows, np.array(buckets, dtype=np.int16), "graph", 0.9)


def _without_prefix(annotation: str) -> str:
    """A module's range names a path and a class: the path says more."""
    return split_range_name(annotation)[0] if annotation.startswith("module::") else annotation


def _in_named(role: str, kernel: KernelName) -> int:
    if not role:
        return _OPEN
    own = "linear" if kernel.token == "GEMM" else role
    return decide((own, role if role in BLOCK_WORDS else ""), "", kernel, 0)
