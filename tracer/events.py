"""What was recorded: the columnar schema and `Trace`, the one thing collectors make.

A trace is a few pandas tables. `events` has one row for each recorded activity, ordered by start
and, among equal starts, the longer first, so that a caller stands before its callee. Rare fields
live in side tables keyed by `event`, the row number in `events`. Times are integer nanoseconds of
the Unix clock; -1 in a link column means none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.errors import TracerError

KINDS: tuple[str, ...] = (
    "operator",  # an operator of the framework on the host
    "annotation",  # a range the user, an engine or the framework named
    "module",  # a range `module::<qualified name>::<class>` around a module's call
    "frame",  # a Python function, recorded with stacks
    "runtime",  # a call of the CUDA or HIP runtime or driver
    "kernel",
    "memcpy",
    "memset",
    "device_annotation",  # the profiler's projection of an annotation on a stream: no device work
    "device_wait",  # a wait row of the device (cuda_sync): no device work
    "overhead",  # the profiler's own work, and driver work that it names
    "memory",  # an allocation or a release
    "other",
)
KIND_CODE: Mapping[str, int] = MappingProxyType({kind: code for code, kind in enumerate(KINDS)})
DEVICE_WORK: tuple[str, ...] = ("kernel", "memcpy", "memset")
NONE = -1

# Column -> dtype of each table. "text" is a string categorical, "object" a plain Python value,
# "int" 32 bits where all values of the recording fit them, else 64, and "short" 16 where they do.
EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "kind": "kind",  # categorical over KINDS, so codes are stable
        "name": "text",
        "start_ns": "int64",
        "duration_ns": "int",
        "thread": "short",  # row of `threads`; -1 for device rows
        "device": "short",  # device index; -1 for host rows
        "stream": "short",  # stream of the device; -1 for host rows
        "correlation": "int",  # joins a runtime call and the device work it launched
        "external_id": "int",  # of an operator: its own; of a call or device row: its operator's
    }
)

SIDE_TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        # Host threads. name is "" when unknown.
        "threads": {"pid": "int64", "tid": "int64", "name": "text"},
        # Devices seen. memory_bytes, sm_count, major and minor are -1 when unknown, name "".
        "devices": {
            "device": "int32",
            "name": "text",
            "memory_bytes": "int64",
            "sm_count": "int32",
            "major": "int32",
            "minor": "int32",
        },
        # Autograd: the forward and its backward share `sequence`; forward_thread 0 on the forward.
        "sequences": {"event": "int64", "sequence": "int64", "forward_thread": "int64"},
        # Operator arguments as the profiler wrote them (JSON text).
        "shapes": {
            "event": "int64",
            "input_shapes": "text",
            "input_types": "text",
            "concrete_inputs": "text",
        },
        # memcpy and memset. direction: host_to_device, device_to_host, device_to_device,
        # peer_to_peer, host_to_host, set, unknown. source, target: pageable, pinned, device,
        # managed, unknown. bytes -1 when not recorded.
        "copies": {
            "event": "int64",
            "bytes": "int64",
            "direction": "text",
            "source": "text",
            "target": "text",
        },
        # Ranges of the host within which the recording ended: their ends are its own.
        "unfinished": {"event": "int64", "finished": "text"},
        # Kernels and copies of a graph replay, where the format names the node.
        "graph_nodes": {"event": "int64", "graph": "int64", "node": "int64"},
        # Launch geometry of kernels: products of grid and block; -1 when not recorded.
        "geometry": {
            "event": "int64",
            "blocks": "int",
            "threads_per_block": "int",
            "registers_per_thread": "int32",
            "shared_memory_bytes": "int",
        },
        # Collective metadata, on the kernel or on the host range that carries it.
        # op is as recorded ("allreduce"); dtype as recorded ("BFloat16"); elements and group_size
        # -1, texts "" when not recorded. ranks: JSON list text. splits: JSON list texts.
        "collectives": {
            "event": "int64",
            "op": "text",
            "group": "text",
            "group_description": "text",
            "ranks": "text",
            "group_size": "int64",
            "sequence": "int64",
            "dtype": "text",
            "in_elements": "int64",
            "out_elements": "int64",
            "in_splits": "text",
            "out_splits": "text",
            "peer": "int64",
        },
        # Python frames: identity of the frame and its caller; module >= 0 for nn.Module frames.
        "frames": {"event": "int64", "frame": "int64", "parent": "int64", "module": "int64"},
        # Launches of generated kernels (Triton, Inductor C++): what the host row says of them.
        "generated": {
            "event": "int64",
            "backend": "text",
            "kernel": "text",
            "file": "text",
            "arguments": "text",
        },
        # Launches whose row names the kernel (ROCm).
        "named_launches": {"event": "int64", "kernel": "text"},
        # Allocator events. bytes < 0 releases. device_type as in c10 (0 CPU, 1 CUDA, 20 HIP).
        "memory": {
            "event": "int64",
            "bytes": "int64",
            "address": "int64",
            "device_type": "int32",
            "device": "int32",
            "allocated_bytes": "int64",
            "reserved_bytes": "int64",
        },
        # Waits of streams and contexts (device_wait rows).
        "waits": {"event": "int64", "sync_kind": "text", "on_stream": "int64", "on": "int64"},
        # Live only. Steps that the program announced, in order; phase "" when not given.
        "announced_steps": {
            "name": "text",
            "phase": "text",
            "start_ns": "int64",
            "end_ns": "int64",
            "thread": "int64",  # the operating system's thread id
        },
        # Live only. Calls of root modules. tokens: new tokens of a sequence in this call; cached:
        # 1 when a filled cache came in, 0 when none did, -1 unknown; graded: 1 when autograd
        # recorded; trains: 1 when the module was in training mode, 0 in evaluation mode; fills: 1
        # when a cache was given or returned, for later calls. call: "forward" or the name of the
        # generation method around it ("generate"); callers: JSON list of [file, line, function],
        # the user's lines around a call, or around the first of a generation, innermost first.
        # past: tokens in the cache when it began, -1 unknown.
        "root_calls": {
            "root": "text",
            "type": "text",
            "start_ns": "int64",
            "end_ns": "int64",
            "thread": "int64",
            "batch": "int64",
            "tokens": "int64",
            "cached": "int32",
            "graded": "int32",
            "call": "text",
            "generation": "int64",  # counts calls of the generation method; -1 outside one
            "part": "text",  # "decoder", "encoder" or "" when the root is whole
            "trains": "int32",
            "fills": "int32",
            "callers": "text",
            "past": "int64",
        },
        # Live only. Every module of each root: parameters are counted without its children's; file
        # and line are those of its class's `forward`.
        "model_modules": {
            "path": "text",
            "type": "text",
            "parameters": "int64",
            "parameter_bytes": "int64",
            "dtype": "text",
            "device": "text",
            "trainable": "int32",
            "file": "text",
            "line": "int64",
        },
        # Live only. Samples of device counters; value NaN is never stored, a missing one is absent.
        "metrics": {
            "device": "int32",
            "metric": "text",
            "time_ns": "int64",
            "value": "float64",
        },
        # Live only. Waits with their line, from the hook of the recorder. cause: "warned" when it
        # was seen inside the operator that waits, "called" right before it; thread: as the
        # operating system numbers it; user_…: the innermost line of the user's, "" and -1 for none.
        "host_sites": {
            "time_ns": "int64",
            "thread": "int64",
            "cause": "text",
            "file": "text",
            "line": "int64",
            "function": "text",
            "user_file": "text",
            "user_line": "int64",
            "user_function": "text",
        },
        # Live only. Where threads were, looked at now and then. file, line, function: the innermost
        # of the user, "" and -1 for none; inner_…: the innermost that is not the framework's;
        # called: what that line of the user calls (`torch.save`), "" unknown; awaited: "lock" or
        # "thread" where a call that is not in Python waits for one, "" for none and unknown;
        # thread: as the operating system numbers it.
        "stack_samples": {
            "time_ns": "int64",
            "thread": "int64",
            "file": "text",
            "line": "int64",
            "function": "text",
            "inner_file": "text",
            "inner_line": "int64",
            "inner_function": "text",
            "called": "text",
            "awaited": "text",
        },
        # Live only. Calls of scaled_dot_product_attention, right before each; of calls of a model
        # that are alike, those in some of them. arguments: JSON object; refused: JSON object,
        # backend -> what the framework has against them, "" where it was not asked.
        "attention_calls": {
            "time_ns": "int64",
            "thread": "int64",
            "arguments": "text",
            "refused": "text",
            "file": "text",
            "line": "int64",
            "function": "text",
        },
        # Live only. Warnings and log lines of the frameworks about slower ways; time_ns: the first.
        "warnings": {"time_ns": "int64", "source": "text", "message": "text", "count": "int64"},
        # Live only. Automatic collections of Python's garbage collector.
        "collections": {"start_ns": "int64", "end_ns": "int64", "generation": "int32"},
        # Graphs whose capture was seen. origin: "" for one in this recording, else where it was
        # seen: an earlier trace of the process, or a file given beside. label: the range around it.
        "graph_captures": {
            "capture": "int64",
            "nodes": "int64",
            "end_ns": "int64",
            "origin": "text",
            "label": "text",
        },
        # Nodes of these graphs in order of capture. kind: kernel, memcpy, memset. kernel: its name,
        # "" unknown; exact: 1 when the launch itself named it. type, role and block: of the module
        # at `path`, and of the block around it; place: bits of `attribution.AFTER_*`; told: group
        # and part that an operator around it proves, "" none; direction: as in the work table.
        "captured_nodes": {
            "capture": "int64",
            "node": "int64",
            "kind": "text",
            "kernel": "text",
            "exact": "int32",
            "path": "text",
            "type": "text",
            "role": "text",
            "block": "text",
            "operator": "text",
            "place": "int64",
            "told": "text",
            "direction": "text",
        },
        # Modules around the nodes above, and those around them.
        "captured_modules": {"path": "text", "type": "text", "role": "text"},
        # What `mark_kernels` of torch says of the nodes of a graph, where it was used.
        "graph_annotations": {"event": "int64", "annotation": "text"},
        # Live only. Graphs of the compiler that ran. key: as in the range `## Call CompiledFxGraph
        # <key> ##`; backward 1 for one of the backward pass; basis: what told the modules of its
        # kernels (provenance, source nodes, parameters), "" nothing did; root: the module whose
        # frame was compiled, whose like may run the same code.
        "compiled_graphs": {
            "graph": "int64",
            "key": "text",
            "compile_id": "text",
            "backward": "int32",
            "file": "text",
            "basis": "text",
            "root": "text",
            "root_type": "text",
        },
        # What such a graph calls, in order. form: generated, extern. operators: JSON list of texts.
        "compiled_calls": {
            "graph": "int64",
            "call": "int64",
            "kernel": "text",
            "form": "text",
            "operators": "text",
        },
        # Modules that a call computes for, one row each; they share its time equally. operators:
        # what the call does for the module, JSON list. call -1: a module around others.
        "compiled_modules": {
            "graph": "int64",
            "call": "int64",
            "path": "text",
            "type": "text",
            "operators": "text",
        },
        # Live only. What the compiler did. kind: compile, recompile, backward (of the compilation
        # with the same number, compiled when it is first called), graph_break, cudagraph_skip,
        # recompile_limit (it would have compiled again, and gives up on the function). reason:
        # first line of the compiler's own words, of a limit its name and value and then the guard
        # that failed; end_ns equals start_ns for an instant.
        "compile_events": {
            "kind": "text",
            "start_ns": "int64",
            "end_ns": "int64",
            "compile_id": "text",
            "reason": "text",
            "file": "text",
            "line": "int64",
            "function": "text",
        },
        # Live only. Steps of the same loop that ran without the profiler, for the observer effect.
        # From the beginning of one to that of the next. phase: of the first call of a model in it,
        # "" unknown; calls: 1 where each call of a model counts as a step, 0 for announced steps.
        "unprofiled_steps": {
            "start_ns": "int64",
            "end_ns": "int64",
            "phase": "text",
            "calls": "int32",
        },
    }
)

_DEFAULTS = {"text": "", "float64": np.nan}


class SchemaError(TracerError):
    """A table does not have the columns and types of the schema: a fault of a collector."""

    rule = "trace.schema"


@dataclass(frozen=True)
class Note:
    """One thing a reader of the report must know about the recording."""

    rule: str
    message: str
    count: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False  # the input was damaged, cut or lacks something it should hold


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from and what its header says. None: not recorded."""

    source_kind: str = "kineto"  # live, kineto, nsys, rocprof
    path: str | None = None
    framework: str | None = None  # "torch 2.13.0"
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None  # of torch.distributed
    process_groups: tuple[Mapping[str, Any], ...] = ()
    clock: str = "unix"  # "unix" or "relative": the file has no absolute origin
    detail: str | None = None  # of a live capture
    # shapes, stacks, memory, modules; every_launch: False where calls were left out between others
    recorded: Mapping[str, bool] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # header fields kept as they are


def empty_table(columns: Mapping[str, str]) -> pd.DataFrame:
    """A table with these columns and no row."""
    return make_table(columns, {})


@cache
def _empty_side_table(name: str) -> pd.DataFrame:
    """One for all traces: making it anew took a fifth of the time of a small analysis."""
    return empty_table(SIDE_TABLES[name])


def make_table(columns: Mapping[str, str], values: Mapping[str, Any]) -> pd.DataFrame:
    """Build a table of the schema from arrays or lists; a column left out gets its default."""
    length = max((len(v) for v in values.values()), default=0)
    unknown = set(values) - set(columns)
    if unknown:
        raise SchemaError(f"unknown columns {sorted(unknown)}")
    return pd.DataFrame(
        {name: _column(kind, values.get(name), length) for name, kind in columns.items()},
        copy=False,
    )


def _column(kind: str, values: Any, length: int) -> Any:
    if isinstance(values, pd.Categorical):
        return values
    if kind == "kind":
        codes = np.asarray([] if values is None else values)
        if codes.dtype.kind in "iu" or codes.size == 0:
            return pd.Categorical.from_codes(codes.astype(np.int8), categories=pd.Index(KINDS))
        return pd.Categorical(codes, categories=list(KINDS))
    if kind == "text":
        return pd.Categorical([""] * length if values is None else values)
    if kind in WIDTHS:
        found = np.full(length, NONE, np.int16) if values is None else np.asarray(values)
        return found.astype(next(w for w in WIDTHS[kind] if fits(found, w)), copy=False)
    if values is None:
        return np.full(length, _DEFAULTS.get(kind, NONE), dtype=kind)
    return np.asarray(values, dtype=kind)


# Types of the columns that are as narrow as their values allow, the narrowest first.
WIDTHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"short": ("int16", "int32", "int64"), "int": ("int32", "int64")}
)


def fits(values: NDArray[Any], width: str) -> bool:
    """Whether each of these numbers can be kept in a column of that type."""
    if not values.size or values.dtype == width or width == "int64":
        return True
    limits = np.iinfo(width)
    return bool(values.min() >= limits.min and values.max() <= limits.max)


def text_column(codes: NDArray[Any], values: list[str]) -> Any:
    """A text column from codes into distinct `values`, without looking at each row."""
    return pd.Categorical.from_codes(codes, categories=pd.Index(values, dtype=object))


def _check(name: str, table: pd.DataFrame, columns: Mapping[str, str]) -> None:
    if list(table.columns) != list(columns):
        raise SchemaError(f"table {name} has columns {list(table.columns)}, not {list(columns)}")
    for column, kind in columns.items():
        found = table[column].dtype
        if kind in ("text", "kind"):
            good = isinstance(found, pd.CategoricalDtype)
        else:
            good = str(found) in WIDTHS.get(kind, (kind,))
        if not good:
            raise SchemaError(f"column {column} of {name} has type {found}, not {kind}")


# A column is compared with so many values in the time in which it is looked up in a table.
_FEW_NAMES = 12


_PART = 1 << 16


def _looked_up(
    passes: NDArray[np.bool_], codes: NDArray[np.signedinteger[Any]]
) -> NDArray[np.bool_]:
    """`passes[codes]`, a part at a time: each code takes 64 bits while it is looked up."""
    found = np.empty(codes.size, dtype=bool)
    for begin in range(0, codes.size, _PART):
        found[begin : begin + _PART] = passes.take(codes[begin : begin + _PART])
    return found


def _any_of(codes: NDArray[Any], wanted: Sequence[int]) -> NDArray[np.bool_]:
    """Which codes are among a few wanted ones."""
    found = np.zeros(codes.size, dtype=bool)
    for code in wanted:
        found |= codes == code
    return found


class Ends:
    """When events end. Index it as a column: only the rows that are asked for are worked out, since
    all of them would be one of the largest columns of an analysis."""

    def __init__(
        self, start_ns: NDArray[np.int64], duration_ns: NDArray[np.signedinteger[Any]]
    ) -> None:
        self._start_ns, self._duration_ns = start_ns, duration_ns

    @overload
    def __getitem__(self, rows: int | np.integer[Any]) -> np.int64: ...
    @overload
    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[np.int64]: ...
    def __getitem__(self, rows: Any) -> Any:
        return self._start_ns[rows] + self._duration_ns[rows]


@dataclass(frozen=True)
class Trace:
    """A recording: `events`, side tables by name, meta and notes. Nobody changes it after.

    `tables` holds only what was recorded; `table(name)` gives an empty one for the rest.
    """

    events: pd.DataFrame
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    meta: TraceMeta = field(default_factory=TraceMeta)
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        _check("events", self.events, EVENTS)
        for name, table in self.tables.items():
            if name not in SIDE_TABLES:
                raise SchemaError(f"unknown table {name}")
            _check(name, table, SIDE_TABLES[name])
        if not isinstance(self.events.index, pd.RangeIndex):
            raise SchemaError("events must be numbered from 0")
        starts = self.events["start_ns"].to_numpy()
        if starts.size and bool((starts[1:] < starts[:-1]).any()):
            raise SchemaError("events must be ordered by start_ns")

    def table(self, name: str) -> pd.DataFrame:
        """The side table of that name, empty when nothing of it was recorded."""
        found = self.tables.get(name)
        return _empty_side_table(name) if found is None else found

    def with_notes(self, *notes: Note) -> Trace:
        """The same trace with more notes."""
        return replace(self, notes=self.notes + notes)

    @cached_property
    def kind_codes(self) -> NDArray[np.int8]:
        """Codes of `kind` into KINDS, one for each event."""
        codes: NDArray[np.int8] = np.asarray(self.events["kind"].cat.codes, dtype=np.int8)
        return codes

    @cached_property
    def name_codes(self) -> NDArray[np.signedinteger[Any]]:
        """Codes of `name` into `names`, one for each event, in as few bits as there are names."""
        return np.asarray(self.events["name"].cat.codes)

    @cached_property
    def names(self) -> list[str]:
        """The distinct names; `name_codes` points into it."""
        return [str(name) for name in self.events["name"].cat.categories]

    @cached_property
    def start_ns(self) -> NDArray[np.int64]:
        return self.events["start_ns"].to_numpy()

    @cached_property
    def end_ns(self) -> Ends:
        return Ends(self.start_ns, self.events["duration_ns"].to_numpy())

    def rows(self, *kinds: str) -> NDArray[np.int64]:
        """Row numbers of the events of these kinds, in order of start."""
        return np.flatnonzero(self.of_kind(*kinds))

    def of_kind(self, *kinds: str) -> NDArray[np.bool_]:
        """Which events are of one of these kinds."""
        return _any_of(self.kind_codes, [KIND_CODE[kind] for kind in kinds])

    def named(self, test: Callable[[str], object], *kinds: str) -> NDArray[np.bool_]:
        """Which events of these kinds have a name that passes the test."""
        asked = np.flatnonzero(self.names_of(*kinds)).tolist()
        passing = [code for code in asked if test(self.names[code])]
        if not passing:
            return np.zeros(len(self.events), dtype=bool)
        if len(passing) > _FEW_NAMES:
            passes = np.zeros(len(self.names), dtype=bool)
            passes[passing] = True
            return _looked_up(passes, self.name_codes) & self.of_kind(*kinds)
        return _any_of(self.name_codes, passing) & self.of_kind(*kinds)

    def names_of(self, *kinds: str) -> NDArray[np.bool_]:
        """For each distinct name whether an event of one of these kinds has it."""
        codes = [KIND_CODE[kind] for kind in kinds]
        return np.asarray(self._names_by_kind[codes].any(axis=0))

    @cached_property
    def _names_by_kind(self) -> NDArray[np.bool_]:
        pairs = self.name_codes.astype(np.int64) * len(KINDS) + self.kind_codes
        counts = np.bincount(pairs, minlength=len(self.names) * len(KINDS))
        return counts.reshape(-1, len(KINDS)).T > 0

    @cached_property
    def device_rows(self) -> NDArray[np.int64]:
        """Row numbers of device work: kernels, copies, sets."""
        return self.rows(*DEVICE_WORK)

    def names_matching(self, test: Callable[[str], object]) -> NDArray[np.bool_]:
        """For each distinct name whether `test(name)` holds; index it with `name_codes`."""
        return np.fromiter((bool(test(name)) for name in self.names), bool, len(self.names))
