"""Which group and part each piece of device work belongs to, by the best evidence there is.

The ladder of DESIGN 5: the module it ran in, a graph's capture, a compiler's provenance, the
operator that asked for it, its place in the layer pattern, its name. Each rung fills what the
rungs above it left open; `ladder` lists the rungs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tracer.analysis import BUCKET_CODE, HOW, TRANSFER, UNATTRIBUTED
from tracer.analyzers.compiled import CompiledWork
from tracer.analyzers.host import Host, Launches
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.kernel_table import KernelName, describe
from tracer.analyzers.layer_pattern import LayerPattern
from tracer.analyzers.modules import ModuleTree
from tracer.analyzers.operator_names import operator_role
from tracer.analyzers.roles import Roles, find_roles, with_saved_roles
from tracer.events import KIND_CODE, Note, Trace

HOW_CODE = {how: code for code, how in enumerate(HOW)}
COMPUTE, COLLECTIVE, TRANSFER_CLASS = 0, 1, 2
# Where work stands in its attention block: bits of `place` in the decisions below.
AFTER_CORE, AFTER_NEGATION = 1, 2
_OPEN = -1

_KV_OPERATORS = (
    "aten::index_copy_",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::slice_scatter",
    "aten::scatter_",
)
# These rotate queries and keys before the core; after it, and others, they prepare or finish it.
_ROTATING = (
    "aten::mul",
    "aten::mul_",
    "aten::neg",
    "aten::cat",
    "aten::add",
    "aten::add_",
    "aten::sub",
    "aten::addcmul",
    "aten::sin",
    "aten::cos",
    "aten::view_as_complex",
    "aten::view_as_real",
)
_CORE_OPERATORS = ("aten::softmax", "aten::_softmax", "aten::bmm", "aten::baddbmm", "aten::matmul")


@dataclass(frozen=True)
class Hints:
    """What tables beside the events tell of work: the row of `captured_nodes` (-1: of none), what
    compiled code called, and the module (row of the tree) that follows."""

    node: Longs
    compiled: CompiledWork
    module: Longs


@dataclass(frozen=True)
class Work:
    """Everything that can fill time, with the host's side of it. Arrays are aligned with `event`;
    `site` is the host row that stands for it: its launch, the captured launch for a node of a graph
    replay, or the leaf operator itself."""

    trace: Trace
    host: Host
    launches: Launches
    tree: ModuleTree
    event: Longs
    site: Longs
    launch: Longs
    work_class: NDArray[np.int8]
    cpu_only: bool
    replayed: NDArray[np.bool_]  # nodes of graph replays whose capture was seen
    notes: tuple[Note, ...] = ()
    hints: Hints | None = None

    @cached_property
    def _none(self) -> Longs:
        return np.full(self.event.size, NONE, dtype=np.int64)

    @property
    def node(self) -> Longs:
        """Row of `captured_nodes` of a replay whose capture was seen elsewhere; -1 else."""
        return self._none if self.hints is None else self.hints.node

    @cached_property
    def compiled(self) -> CompiledWork:
        """What compiled code called."""
        if self.hints is None:
            return CompiledWork(self._none, self._none, (), self._none)
        return self.hints.compiled

    @property
    def call(self) -> Longs:
        """Row of `compiled_calls` of what compiled code called; -1 else."""
        return self.compiled.call

    @cached_property
    def name_code(self) -> NDArray[np.int32]:
        codes: NDArray[np.int32] = self.trace.name_codes[self.event]
        return codes

    @cached_property
    def operator(self) -> Longs:
        if self.cpu_only:
            return self.event
        of_node = take(self.host.operator, np.where(self.replayed, self.site, NONE))
        return np.where(of_node == NONE, self.launches.operator[self.event], of_node)

    @cached_property
    def forward(self) -> Longs:
        """The forward operator whose backward this is; -1 for work of the forward pass."""
        return take(self.host.forward_of, np.where(self.site == NONE, self.operator, self.site))

    @cached_property
    def module_event(self) -> Longs:
        """The module range it lies in; backward work lies where its forward operator did."""
        own = take(self.tree.range_event, self.site)
        own = np.where(own == NONE, take(self.tree.range_event, self.operator), own)
        return np.where(own == NONE, take(self.tree.range_event, self.forward), own)

    @cached_property
    def module(self) -> Longs:
        own = take(self.tree.own, self.module_event)
        if self.hints is None:
            return own
        return np.where(self.hints.module == NONE, own, self.hints.module)

    @cached_property
    def names(self) -> list[KernelName]:
        """What is known of each distinct name of the trace; index it with `name_code`."""
        used = set(np.unique(self.name_code).tolist())
        return [describe(n) if i in used else _UNKNOWN for i, n in enumerate(self.trace.names)]

    @cached_property
    def orphaned(self) -> NDArray[np.bool_]:
        """Launched before the recording: it has launches, this row has none."""
        if self.cpu_only or not self.launches.launching.any():
            return np.zeros(self.event.size, dtype=bool)
        orphans: NDArray[np.bool_] = self.launch == NONE
        return orphans

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        kernels: NDArray[np.bool_] = self.trace.kind_codes[self.event] == KIND_CODE["kernel"]
        return kernels | self.cpu_only


@dataclass
class Attribution:
    """Bucket, evidence and confidence of each work row, filled rung by rung."""

    bucket: NDArray[np.int16]
    how: NDArray[np.int8]
    confidence: NDArray[np.float64]
    direction: NDArray[np.int8]
    replayed: NDArray[np.bool_]
    step: Longs  # the step of each row; -1: in none
    patterns: list[LayerPattern] = field(default_factory=list)  # of layers, the largest first
    notes: list[Note] = field(default_factory=list)

    def fill(self, rows: Longs, bucket: NDArray[np.int16], how: str, confidence: float) -> None:
        """Give these rows a bucket where they have none yet and `bucket` is one."""
        take_it = (self.bucket[rows] == _OPEN) & (bucket != _OPEN)
        rows = rows[take_it]
        self.bucket[rows] = bucket[take_it]
        captured = self.replayed[rows] & (how in ("module", "operator"))
        self.how[rows] = np.where(captured, HOW_CODE["graph"], HOW_CODE[how])
        self.confidence[rows] = confidence

    @property
    def open(self) -> Longs:
        return np.flatnonzero(self.bucket == _OPEN)


DIRECTIONS = ("", "forward", "backward", "optimizer", "recompute")
Rung = Callable[[Work, Roles, Attribution], None]


def attribute(work: Work, step: Longs, rungs: tuple[Rung, ...]) -> tuple[Attribution, Roles]:
    """Fill the ladder from the top; what nothing explains is other.unattributed. `step`: that of
    each work row, -1 for none."""
    size = work.event.size
    out = Attribution(
        np.full(size, _OPEN, dtype=np.int16),
        np.full(size, HOW_CODE["none"], dtype=np.int8),
        np.zeros(size),
        find_directions(work),
        work.replayed,
        step,
    )
    roles = with_saved_roles(find_roles(work.tree, core_modules(work)), work.tree, work.trace)
    out.fill(np.flatnonzero(work.orphaned), _constant(work.orphaned, UNATTRIBUTED), "none", 0.0)
    for rung in rungs:
        rung(work, roles, out)
    left = out.open
    out.fill(left, np.full(left.size, UNATTRIBUTED, dtype=np.int16), "none", 0.0)
    return out, roles


def _constant(rows: NDArray[np.bool_], bucket: int) -> NDArray[np.int16]:
    return np.full(int(rows.sum()), bucket, dtype=np.int16)


def find_directions(work: Work) -> NDArray[np.int8]:
    """Training only: which way each piece of work goes."""
    host, site = work.host, np.where(work.site == NONE, work.operator, work.site)
    node = take(host.backward_node, site)
    optimizer = _within(host, site, "Optimizer.")  # its step, and the gradients it clears
    learning = (node != NONE).any() or optimizer.any()
    out = np.full(site.size, 1 if learning else 0, dtype=np.int8)
    out[node != NONE] = 2
    inside = take(work.tree.range_event, site)
    recomputed = (node != NONE) & (inside != NONE)
    recomputed &= work.trace.start_ns[np.maximum(inside, 0)] >= work.trace.start_ns[node]
    again = take(_graded_operators(host), site)
    recomputed |= (node != NONE) & (again != NONE) & (again >= node)
    out[recomputed] = 4
    out[optimizer] = 3
    return _with_captured(work, out)


def _graded_operators(host: Host) -> Longs:
    """For each event the innermost operator around it that autograd recorded as a forward one:
    inside the backward pass that is a checkpoint, which computes it again."""
    sequences = host.trace.table("sequences")
    graded = np.zeros(len(host.trace.events), dtype=bool)
    graded[sequences["event"].to_numpy()[sequences["forward_thread"].to_numpy() <= 0]] = True
    return host.nearest(graded & host.of_kind("operator"))


def _with_captured(work: Work, directions: NDArray[np.int8]) -> NDArray[np.int8]:
    """Nodes of captures seen elsewhere go the way that they went there."""
    known = np.flatnonzero(work.node != NONE)
    if not known.size:
        return directions
    said = work.trace.table("captured_nodes")["direction"].astype(str)
    codes = said.map({way: code for code, way in enumerate(DIRECTIONS)}).to_numpy()
    out = directions.copy()
    out[known] = codes[work.node[known]]
    return out


def _within(host: Host, site: Longs, prefix: str) -> NDArray[np.bool_]:
    named = host.trace.names_matching(lambda name: name.startswith(prefix))[host.trace.name_codes]
    ranges = named & (host.of_kind("annotation") | host.of_kind("operator"))
    inside: NDArray[np.bool_] = take(host.nearest(ranges), site) != NONE
    return inside


def core_modules(work: Work) -> list[int]:
    """Modules in which an attention core ran, by operator, by kernel, or as a softmax between two
    products that the module itself computed. A router's softmax has none."""
    if not work.tree.paths or not work.names:
        return []
    token = np.array([name.token for name in work.names], dtype=object)[work.name_code]
    size = work.tree.parent.size + 1  # the last place is for work in no module
    core = (token == "CORE") | (operator_buckets(work) == BUCKET_CODE["attention", "core"])
    cores, softmaxes, products = (
        np.bincount(work.module[rows] % size, minlength=size)[:-1]
        for rows in (core, token == "SOFTMAX", token == "GEMM")
    )
    unfused = (softmaxes > 0) & (products >= 2 * softmaxes)
    return [int(module) for module in np.flatnonzero((cores > 0) | unfused)]


# --- rung: communication and copies, which their kind decides -------------------------------


def by_kind(work: Work, roles: Roles, out: Attribution) -> None:
    transfers = np.flatnonzero(work.work_class == TRANSFER_CLASS)
    out.fill(transfers, np.full(transfers.size, TRANSFER, dtype=np.int16), "operator", 1.0)
    rows = np.flatnonzero(work.work_class == COLLECTIVE)
    ops, recorded = collective_ops(work, rows)
    codes = np.array([BUCKET_CODE["communication", op] for op in ops], dtype=np.int16)
    out.fill(rows[recorded], codes[recorded], "operator", 1.0)
    out.fill(rows, codes, "name", 0.9)


def collective_ops(work: Work, rows: Longs) -> tuple[list[str], NDArray[np.bool_]]:
    """The operation of each collective, and whether metadata or a range said it."""
    by_metadata = _recorded_ops(work)
    ops, recorded = [], np.zeros(rows.size, dtype=bool)
    for place, row in enumerate(rows.tolist()):
        said = by_metadata.get(row, "")
        recorded[place] = bool(said)
        ops.append(said or work.names[work.name_code[row]].op or "other")
    return ops, recorded


def _recorded_ops(work: Work) -> dict[int, str]:
    """Work row -> operation, from the row's own metadata or the host range around its launch."""
    table = work.trace.table("collectives")
    said = dict(zip(table["event"].tolist(), table["op"].astype(str), strict=True))
    ranges = np.zeros(len(work.trace.events), dtype=bool)
    ranges[[event for event in said if work.host.place[event] != NONE]] = True
    named = work.trace.names_matching(lambda n: range_operation(n) != "")[work.trace.name_codes]
    host_rows = work.host.of_kind("operator") | work.host.of_kind("annotation")
    around = take(work.host.nearest(ranges | (named & host_rows)), work.site)
    out: dict[int, str] = {}
    for row in np.flatnonzero(work.work_class == COLLECTIVE).tolist():
        event, holder = int(work.event[row]), int(around[row])
        name = work.trace.names[work.trace.name_codes[holder]] if holder != NONE else ""
        own = work.trace.names[work.trace.name_codes[event]]
        op = normal_operation(said.get(event, "") or said.get(holder, ""))
        op = op or range_operation(name) or (range_operation(own) if work.cpu_only else "")
        if op:
            out[row] = op
    return out


_OPERATIONS = (
    ("all_reduce", ("allreduce", "all_reduce")),
    ("reduce_scatter", ("reduce_scatter", "reducescatter")),
    ("all_gather", ("allgather", "all_gather", "_allgather")),
    ("all_to_all", ("all_to_all", "alltoall", "all2all")),
    ("broadcast", ("broadcast",)),
    ("send_recv", ("send", "recv", "batch_isend", "coalesced")),
    ("other", ("barrier", "reduce", "gather", "scatter", "wait")),
)


@lru_cache(maxsize=4096)
def normal_operation(recorded: str) -> str:
    """The part of communication for an operation as torch.distributed records it; "" for none."""
    lower = recorded.lower()
    for part, words in _OPERATIONS:
        if lower and any(word in lower for word in words):
            return part
    return ""


@lru_cache(maxsize=65536)
def range_operation(name: str) -> str:
    """The operation of a range such as nccl:all_reduce or c10d::allreduce_; "" for others."""
    prefix, _, rest = name.partition(":")
    if prefix in ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl", "c10d", "_c10d_functional"):
        return normal_operation(rest)
    return ""


# --- rung: the module ------------------------------------------------------------------------


def by_module(work: Work, roles: Roles, out: Attribution) -> None:
    rows = np.flatnonzero((work.module != NONE) & (out.bucket == _OPEN))
    if not rows.size:
        return
    buckets = module_buckets(work, roles, rows, work.module[rows])
    out.fill(rows, buckets, "module", 1.0)


def module_buckets(work: Work, roles: Roles, rows: Longs, module: Longs) -> NDArray[np.int16]:
    """Buckets of work rows as work of these modules: one decision for each distinct (role of
    module, operator, kernel, place about the core)."""
    signatures = [signature_of(roles, row) for row in range(len(roles.own))]
    kinds = sorted(set(signatures))
    index = {signature: code for code, signature in enumerate(kinds)}
    signature = np.array([index[s] for s in signatures], dtype=np.int64)[module]
    own_operator = take(work.trace.name_codes.astype(np.int64), decisive_operator(work)[rows])
    after = places_in_block(work)[rows]
    keys = np.stack([signature, own_operator, work.name_code[rows], after])
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    decided = np.array(
        [
            decide(kinds[s], work.trace.names[o] if o != NONE else "", work.names[k], a)
            for s, o, k, a in distinct.T.tolist()
        ],
        dtype=np.int16,
    )
    buckets: NDArray[np.int16] = decided[place.reshape(-1)]
    return buckets


def places_in_block(work: Work) -> Longs:
    """Where each piece of work stands in its attention block: bits of AFTER_CORE and others."""
    return AFTER_CORE * after_core(work) + AFTER_NEGATION * after_negation(work)


def decisive_operator(work: Work) -> Longs:
    return np.where(work.forward == NONE, work.operator, work.forward)


def signature_of(roles: Roles, row: int) -> tuple[str, str]:
    """The role of a module and of the block around it; an adapter is a linear layer to it."""
    block, own = roles.block[row], roles.own[row]
    return "linear" if own == "adapter" else own, roles.own[block] if block != NONE else ""


def after_core(work: Work) -> Longs:
    """1 where the attention core of the same module call began before this work did."""
    is_core = np.array(
        [n.category == "attention" or n.token == "SOFTMAX" for n in work.names], dtype=bool
    )
    core = is_core[work.name_code] if is_core.size else np.zeros(work.event.size, dtype=bool)
    core = core | (operator_buckets(work) == BUCKET_CODE["attention", "core"])
    start = work.trace.start_ns[np.where(work.site == NONE, work.event, work.site)]
    first = np.full(len(work.trace.events), np.iinfo(np.int64).max)
    held = core & (work.module_event != NONE)
    np.minimum.at(first, work.module_event[held], start[held])
    began = np.where(work.module_event == NONE, np.iinfo(np.int64).max, first[work.module_event])
    after: Longs = (start >= began).astype(np.int64)
    return after


def after_negation(work: Work) -> Longs:
    """1 where the work before it, in order of launch, negates: rotating halves joins them so."""
    site = np.where(work.site == NONE, work.event, work.site)
    order = np.argsort(work.trace.start_ns[site], kind="stable")
    negates = work.trace.names_matching(lambda name: name == "aten::neg")
    operator = work.operator[order]
    is_negation = negates[work.trace.name_codes[np.maximum(operator, 0)]] & (operator != NONE)
    out = np.zeros(work.event.size, dtype=np.int64)
    out[order[1:]] = is_negation[:-1]
    return out


def decide(signature: tuple[str, str], operator: str, kernel: KernelName, place: int) -> int:
    own, block = signature
    decide = _BLOCKS.get(block)
    part = decide(own, operator, kernel, place) if decide else _outside(own, operator, kernel)
    return BUCKET_CODE.get(part, _OPEN) if part else _OPEN


Part = tuple[str, str] | None


def _outside(own: str, operator: str, kernel: KernelName) -> Part:
    """In no block: norms, rotary tables, and what a layer does between its blocks."""
    if own == "norm":
        return "other", "norm"
    if own == "rope":
        return "attention", "rope"
    if own != "layer" or operator_role(operator) is not None:
        return None
    if kernel.category == "norm":
        return "other", "norm"
    if kernel.category == "attention":
        return "attention", "core"
    return ("other", "residual") if operator in _ADDS or kernel.token == "ADD" else None


_ADDS = ("aten::add", "aten::add_", "aten::copy_", "aten::mul", "aten::addcmul")


def _in_attention(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "attention", "dequantize"
    if own in ("norm", "rope", "linear"):
        return "attention", "projection" if own == "linear" else own
    role = operator_role(operator)
    if role is not None and role.group == "attention":
        return "attention", role.part
    by_kernel = {
        "attention": "core",
        "kv_cache_write": "kv_cache",
        "rope": "rope",
        "norm": "norm",
    }.get(kernel.category)
    if by_kernel:
        return "attention", by_kernel
    if operator in _CORE_OPERATORS or kernel.token == "SOFTMAX":
        return "attention", "core"
    if operator in ("aten::addmm", "aten::mm", "aten::linear"):
        return "attention", "projection"
    joins = operator == "aten::cat" and not place & AFTER_NEGATION
    if operator in _KV_OPERATORS or joins:
        return "attention", "kv_cache"
    before = not place & AFTER_CORE
    return "attention", "rope" if operator in _ROTATING and before else "core"


def _in_mixer(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "attention", "dequantize"
    if own == "norm":
        return "attention", "norm"
    return "attention", "projection" if own == "linear" else "mixer"


def _in_ffn(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "ffn", "dequantize"
    if own in ("norm", "router", "activation"):
        return "ffn", own
    if own == "experts":
        return "ffn", "experts"
    if own == "linear" or kernel.category == "gemm":
        return "ffn", "projection"
    role = operator_role(operator)
    if role is not None and role.group == "ffn":
        return "ffn", role.part
    if kernel.category == "moe":
        return "ffn", "experts"
    if kernel.category == "norm":
        return "ffn", "norm"
    return "ffn", "activation"


def _in_experts(own: str, operator: str, kernel: KernelName, place: int) -> Part:
    if kernel.category in ("dequantize", "quantize"):
        return "ffn", "dequantize"
    return "ffn", "experts"


def _whole(group: str, part: str) -> Callable[[str, str, KernelName, int], Part]:
    return lambda own, operator, kernel, place: (group, part)


_BLOCKS: dict[str, Callable[[str, str, KernelName, int], Part]] = {
    "attention": _in_attention,
    "mixer": _in_mixer,
    "ffn": _in_ffn,
    "experts": _in_experts,
    "router": _whole("ffn", "router"),
    "embedding": _whole("other", "embedding"),
    "lm_head": _whole("other", "lm_head"),
    "loss": _whole("other", "loss"),
    "sampling": _whole("other", "sampling"),
}


# --- rung: the operator ----------------------------------------------------------------------


def by_operator(work: Work, roles: Roles, out: Attribution) -> None:
    rows = out.open
    out.fill(rows, operator_buckets(work)[rows], "operator", 0.95)


def operator_buckets(work: Work) -> NDArray[np.int16]:
    """Bucket by the innermost operator or range around the launch that says something; for
    backward work by its forward operator as well."""
    trace, host = work.trace, work.host
    told = np.array([_told_by(name) for name in trace.names], dtype=np.int16)
    ranges = host.of_kind("operator") | host.of_kind("annotation")
    speaking = (told[trace.name_codes] != _OPEN) & ranges if told.size else ranges & False
    nearest = host.nearest(speaking)
    out = np.full(work.event.size, _OPEN, dtype=np.int16)
    for site in (work.site, work.operator, work.forward):
        found = take(nearest, site)
        missing = (out == _OPEN) & (found != NONE)
        out[missing] = told[trace.name_codes[found[missing]]]
    return out


@lru_cache(maxsize=65536)
def _told_by(name: str) -> int:
    role = operator_role(name)
    return _OPEN if role is None else BUCKET_CODE.get((role.group, role.part), _OPEN)


# --- rung: the name --------------------------------------------------------------------------

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
        return _OPEN
    return BUCKET_CODE.get(name.role or ("", ""), _OPEN)


_UNKNOWN = describe("")
