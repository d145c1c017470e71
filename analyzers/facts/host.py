"""The host's side of a trace: who called whom, and which call put which work on a device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import (
    NONE,
    Forest,
    Longs,
    Rows,
    blocks,
    lean,
    lookup,
    nest,
    nowhere,
    take,
)
from tracer.events import Trace

HOST_KINDS = ("operator", "annotation", "module", "frame", "runtime")
# Operators written in C++: nothing of Python runs inside them.
_NATIVE = ("aten::", "mkldnn::", "quantized::", "prims::", "inductor::")
# What these hold is an attention of its own, whatever they do themselves.
_COMPOSED = ("aten::_native_multi_head_attention", "aten::_transformer_encoder_layer_fwd")
_PRODUCTS = (
    "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::addmm", "aten::addmm_",
    "aten::addmv", "aten::addmv_", "aten::addbmm", "aten::baddbmm", "aten::baddbmm_",
    "aten::_addmm_activation",
)  # fmt: skip
# These leave the work to one of the products, unless there is none in them.
_AROUND_PRODUCTS = ("aten::matmul", "aten::linear", "aten::einsum", "aten::tensordot")
# Products that copy their bias first, lookups that ask for the layout of their input, sums that
# clear their memory and arithmetic that makes a tensor of a number compute themselves, however
# small they are.
_COMPUTING = (
    *_PRODUCTS, "aten::sum", "aten::index", "aten::index_select", "aten::gather", "aten::take",
    *(f"aten::{word}{end}" for word in ("add", "sub", "mul", "div", "pow") for end in ("", "_")),
)  # fmt: skip
# Operators of other libraries, in C++ unless Python functions are seen inside.
_LIBRARY = re.compile(r"(?!aten|autograd|c10d|torch|record_|nccl|gloo|profiler)\w+::\w+$")
# Ranges under which code is compiled.
COMPILE_RANGE = re.compile(
    r"dynamo$|.*\(dynamo_timed\)$|entire_(frame|backward)_compile|compile_file"
    r"|CachingAutotuner\.|_compile\.|.*autotun(e|ing)|CUDAGraphNode\.record|backend_compile|inductor_compile|OutputGraph\.call_user_compiler"
    r"|compile_fx|TorchDynamo Cache Miss|triton\.compile|async_compile"
)
# What a compiled call does around its kernels.
_COMPILED_CALL = re.compile(
    r"TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher |Torch-Compiled Region|## Call "
)
BACKWARD_NODE = "autograd::engine::evaluate_function"
_LAUNCHING = ("launch", "memcpy", "memset", "kernel")
_GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


def is_graph_launch(name: str) -> bool:
    """Whether this runtime call replays a captured graph."""
    return name.startswith(_GRAPH_LAUNCH)


def is_launch(name: str) -> bool:
    """Whether this runtime call puts work on a stream."""
    lower = name.lower()
    if lower.startswith(("cuda", "cu", "hip", "mtia")):
        return any(word in lower for word in _LAUNCHING) and "launchhostfunc" not in lower
    return False


@dataclass(frozen=True)
class Host:
    """Nesting of all host rows of a trace. Every array is aligned with `events`; values are rows
    of `events`, -1 for none."""

    trace: Trace
    rows: Rows  # the host rows, thread by thread
    forest: Forest  # over `rows`

    def _to_events(self, found: Rows) -> Rows:
        # Rows fit 32 bits, and half a dozen of these arrays live through an analysis.
        out = np.full(len(self.trace.events), NONE, dtype=np.int32)
        for part in blocks(self.rows.size):
            out[self.rows[part]] = take(self.rows, found[part])
        return out

    def places_of(self, thread: int) -> slice:
        """Where in `rows` those of a thread stand."""
        threads = self.trace.events["thread"].to_numpy()[self.rows]
        return slice(*np.searchsorted(threads, [thread, thread + 1]).tolist())

    @property
    def nowhere(self) -> Rows:
        """-1 for each event: most of what is asked for does not occur in a recording."""
        return nowhere(len(self.trace.events))

    def nearest(self, wanted: NDArray[np.bool_]) -> Rows:
        """For each event the innermost host row around it, itself counted, that is wanted."""
        if not wanted.any():
            return self.nowhere
        return self._to_events(self.forest.nearest(wanted[self.rows]))

    def outermost(self, wanted: NDArray[np.bool_]) -> Rows:
        """For each event the outermost host row around it, itself counted, that is wanted."""
        if not wanted.any():
            return self.nowhere
        return self._to_events(self.forest.outermost(wanted[self.rows]))

    def of_kind(self, *kinds: str) -> NDArray[np.bool_]:
        """Which events are of one of these kinds."""
        return self.trace.of_kind(*kinds)

    @cached_property
    def operator(self) -> Rows:
        """The innermost operator around each event."""
        return self.nearest(self.of_kind("operator"))

    @cached_property
    def outer_operator(self) -> Rows:
        """The outermost operator around each event."""
        return self.outermost(self.of_kind("operator"))

    @cached_property
    def module(self) -> Rows:
        """The innermost module range around each event."""
        return self.nearest(self.of_kind("module"))

    @cached_property
    def parent(self) -> Rows:
        """The host row right around each event."""
        return self._to_events(self.forest.parent)

    @cached_property
    def leaf_operators(self) -> Longs:
        """What a CPU-only recording did: operators with none inside, and those of ATen that spend
        most of their time themselves, whatever small operators they call on the way (a matrix
        product copies its bias first). A compiler's trial runs compute nothing."""
        trace = self.trace
        around_calls = trace.named(lambda name: _COMPILED_CALL.match(name), "operator")
        operators = self.of_kind("operator") & ~self.compiling & ~around_calls
        operators = operators[self.rows]
        around = self._operator_around(operators)
        holds = np.zeros(self.rows.size, dtype=bool)
        holds[around[around != NONE]] = True
        absorbing = operators & holds & self._mostly_itself(operators, around)
        outer = self.forest.outermost(absorbing)
        own = absorbing & (outer == np.arange(self.rows.size))
        leaves: Longs = np.sort(self.rows[own | (operators & ~holds & (outer == NONE))])
        return leaves

    @cached_property
    def compiling(self) -> NDArray[np.bool_]:
        """Host rows inside a range in which code is compiled."""
        ranges = lean(self.trace.named(COMPILE_RANGE.match, "operator", "annotation"))
        if not ranges.any():
            return ranges
        inside: NDArray[np.bool_] = self.nearest(ranges) != NONE
        return inside

    def _operator_around(self, operators: NDArray[np.bool_]) -> Longs:
        """For each host row that is an operator the next operator around it, by position."""
        around = np.full(self.rows.size, NONE, dtype=np.int32)
        rows = np.flatnonzero(operators)
        around[rows] = self.forest.around(rows, operators)
        return around

    def _mostly_itself(self, operators: NDArray[np.bool_], around: Longs) -> NDArray[np.bool_]:
        """ATen operators whose own code takes half of their time or more, in most calls of a name:
        a first call can be long for reasons of its own. Products and sums always do."""
        length = self.trace.end_ns[self.rows] - self.trace.start_ns[self.rows]
        inside = np.bincount(
            around[around != NONE], weights=length[around != NONE], minlength=length.size
        )
        codes = self.trace.name_codes[self.rows]
        size = len(self.trace.names)
        calls = np.bincount(codes[operators], minlength=size)
        own = np.bincount(codes[operators & (2 * inside <= length)], minlength=size)
        native = self.trace.names_matching(
            lambda name: name.startswith(_NATIVE) and name not in _COMPOSED
        )
        library = self.trace.names_matching(lambda name: _LIBRARY.match(name) is not None)
        library[codes[self._holding_frames]] = False
        always = self.trace.names_matching(lambda name: name in _COMPUTING)
        mostly: NDArray[np.bool_] = (always | ((native | library) & (2 * own >= calls)))[codes]
        return mostly & ~self._around_products(codes, around)

    def _around_products(self, codes: NDArray[Any], around: Longs) -> NDArray[np.bool_]:
        """Operators that leave their work to a product in them, by position."""
        held = np.zeros(codes.size, dtype=bool)
        rows = np.flatnonzero(self.trace.names_matching(lambda name: name in _PRODUCTS)[codes])
        while rows.size:
            rows = np.unique(around[rows])
            rows = rows[rows != NONE]
            rows = rows[~held[rows]]
            held[rows] = True
        leaving = self.trace.names_matching(lambda name: name in _AROUND_PRODUCTS)
        out: NDArray[np.bool_] = held & leaving[codes]
        return out

    @property
    def _holding_frames(self) -> NDArray[np.bool_]:
        """Operators in which Python functions ran, by position."""
        frames = self.of_kind("frame")[self.rows]
        inside = take(
            self.forest.nearest(self.of_kind("operator")[self.rows]), np.flatnonzero(frames)
        )
        holds = np.zeros(self.rows.size, dtype=bool)
        holds[inside[inside != NONE]] = True
        return holds

    @cached_property
    def backward_node(self) -> Longs:
        """The autograd node being evaluated around each event."""
        return self.outermost(
            self.trace.named(lambda name: name.startswith(BACKWARD_NODE), "operator")
        )

    @cached_property
    def forward_of(self) -> Longs:
        """For each event inside the backward pass the forward operator whose gradient it computes.

        Joined by sequence number: the forward operator with that number that began last. A node
        that accumulates a gradient has none and follows the node evaluated before it."""
        sequences = self.trace.table("sequences")
        if not len(sequences):
            return self.nowhere
        event = sequences["event"].to_numpy()
        number = sequences["sequence"].to_numpy()
        backward = sequences["forward_thread"].to_numpy() > 0
        own = np.full(len(self.trace.events), NONE, dtype=np.int32)
        at = lookup(number[~backward], number[backward])
        own[event[backward]] = take(event[~backward], at)
        self._accumulate(own)
        return take(own, self.nearest(own != NONE))

    def _accumulate(self, own: Longs) -> None:
        nodes = np.unique(self.backward_node[self.backward_node != NONE])
        thread = self.trace.events["thread"].to_numpy()
        nodes = nodes[np.argsort(thread[nodes], kind="stable")]
        if not nodes.size:
            return
        have = np.where(own[nodes] != NONE, np.arange(nodes.size), NONE)
        before = np.maximum.accumulate(have)
        source = nodes[np.maximum(before, 0)]
        fill = (own[nodes] == NONE) & (before != NONE) & (thread[source] == thread[nodes])
        own[nodes[fill]] = own[source[fill]]


def read_host(trace: Trace) -> Host:
    """Nest the host rows of a trace."""
    rows = trace.rows(*HOST_KINDS).astype(np.int32)
    threads = trace.events["thread"].to_numpy()[rows]
    order = np.argsort(threads, kind="stable")
    rows, threads = rows[order], threads[order]
    return Host(trace, rows, nest(trace.start_ns[rows], trace.end_ns[rows], threads))


@dataclass(frozen=True)
class Launches:
    """`launch`: for each event that is device work, the runtime call that put it there; -1 none.
    `operator`: for each row of device work the innermost operator around that call, or the one the
    row itself names."""

    launch: Rows
    operator: Rows
    launching: NDArray[np.bool_]  # runtime rows that launch work
    graph: NDArray[np.bool_]  # of these, replays of a graph


def link_launches(host: Host) -> Launches:
    """Join device work to its launch by correlation, and to its operator."""
    trace = host.trace
    runtime = trace.of_kind("runtime")
    launching = trace.named(is_launch, "runtime")
    graph = lean(trace.named(is_graph_launch, "runtime"))
    correlation = trace.events["correlation"].to_numpy()
    work = trace.device_rows
    launch = np.full(len(trace.events), NONE, dtype=np.int32)
    launch[work] = _join(correlation, np.flatnonzero(launching), np.flatnonzero(runtime), work)
    operator = take(host.operator, launch[work])
    missing = np.flatnonzero(operator == NONE)
    if missing.size:
        operator[missing] = _by_external_id(trace, host, work[missing])
    return Launches(launch, operator, launching, graph)


def _join(correlation: Longs, launching: Longs, runtime: Longs, work: Longs) -> Longs:
    """A call that launches is preferred to another that carries the same correlation."""
    found = np.full(work.size, NONE, dtype=np.int64)
    for candidates in (launching, runtime):
        left = np.flatnonzero(found == NONE)
        if left.size:
            at = lookup(correlation[candidates], correlation[work[left]])
            found[left] = take(candidates, at)
    return found


def _by_external_id(trace: Trace, host: Host, work: Longs) -> Longs:
    operators = trace.rows("operator", "annotation")
    external = trace.events["external_id"].to_numpy()
    usable = operators[external[operators] > 0]
    at = lookup(external[usable], np.where(external[work] > 0, external[work], NONE))
    return take(host.operator, take(usable, at))
