"""The vocabulary of Kineto's JSON: which category is what, and which arguments are kept where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Form = Literal["int", "time", "text", "json", "product"]
Place = Literal["thread", "args", "ids", "nowhere"]

EVENTS = "events"
# Columns that a trace does not have: `kineto_columns` folds them into those that it has.
CALLS = "_calls"
PEER_SOURCE, PEER_TARGET = "_source", "_target"


class Field(NamedTuple):
    """One value of an event: its key in the file, the column it fills and how it is written."""

    key: str
    table: str
    column: str
    form: Form


@dataclass(frozen=True)
class Family:
    """Categories that are read alike. `place` says what pid and tid mean: a thread, nothing because
    the arguments name the device, the device and stream themselves, or nothing at all. `always`
    names the side tables in which each event has a row, whatever its arguments hold."""

    kind: str
    place: Place
    arguments: tuple[Field, ...] = ()
    always: tuple[str, ...] = ()

    @cached_property
    def by_key(self) -> Mapping[str, Field]:
        """The arguments that are kept, by their key in the file."""
        return {field.key: field for field in self.arguments}

    @cached_property
    def head(self) -> tuple[Field, ...]:
        """What is kept of the event itself, beside its arguments."""
        return _THREAD_HEAD if self.place in ("thread", "ids") else _TIME_HEAD

    @cached_property
    def all_fields(self) -> tuple[Field, ...]:
        return self.head + self.arguments


_TIME_HEAD = (
    Field("name", EVENTS, "name", "text"),
    Field("ts", EVENTS, "start_ns", "time"),
    Field("dur", EVENTS, "duration_ns", "time"),
)
_THREAD_HEAD = (
    *_TIME_HEAD,
    Field("pid", EVENTS, "pid", "int"),
    Field("tid", EVENTS, "tid", "int"),
)


def _columns(table: str, form: Form, pairs: Iterable[tuple[str, str]]) -> tuple[Field, ...]:
    return tuple(Field(key, table, column, form) for key, column in pairs)


_EXTERNAL = _columns(
    EVENTS, "int", [("External id", "external_id"), ("external id", "external_id")]
)
_LAUNCHED = (*_EXTERNAL, Field("correlation", EVENTS, "correlation", "int"))
_ON_DEVICE = (*_LAUNCHED, *_columns(EVENTS, "int", [("device", "device"), ("stream", "stream")]))
_COLLECTIVE = (
    *_columns(
        "collectives",
        "text",
        [
            ("Collective name", "op"),
            ("Process Group Name", "group"),
            ("Process Group Description", "group_description"),
            ("dtype", "dtype"),
        ],
    ),
    *_columns(
        "collectives",
        "json",
        [
            ("Process Group Ranks", "ranks"),
            ("In split size", "in_splits"),
            ("Out split size", "out_splits"),
        ],
    ),
    *_columns(
        "collectives",
        "int",
        [
            ("Group size", "group_size"),
            ("Seq", "sequence"),
            ("In msg nelems", "in_elements"),
            ("Out msg nelems", "out_elements"),
            ("Src Rank", PEER_SOURCE),
            ("Dst Rank", PEER_TARGET),
        ],
    ),
)
_GRAPH_NODE = (
    *_columns("graph_nodes", "int", [("graph id", "graph"), ("graph node id", "node")]),
    # What the program marked when the graph was captured, baked in by the export.
    Field("annotation", "graph_annotations", "annotation", "text"),
)
_BYTES = Field("bytes", "copies", "bytes", "int")

_HOST_RANGE = (
    *_EXTERNAL,
    *_columns(
        "sequences",
        "int",
        [("Sequence number", "sequence"), ("Fwd thread id", "forward_thread")],
    ),
    *_columns(
        "shapes",
        "json",
        [
            ("Input Dims", "input_shapes"),
            ("Input type", "input_types"),
            ("Concrete Inputs", "concrete_inputs"),
        ],
    ),
    *_columns(
        "generated",
        "text",
        [
            ("kernel_backend", "backend"),
            ("kernel_name", "kernel"),
            ("kernel_file", "file"),
            ("kernel_kwargs", "arguments"),
        ],
    ),
    # false where the recording ended within the range, which is then told to end there.
    Field("finished", "unfinished", "finished", "json"),
    *_COLLECTIVE,
)

OPERATOR = Family("operator", "thread", _HOST_RANGE)
ANNOTATION = Family("annotation", "thread", _HOST_RANGE)
# ROCm names the kernel on the call that launches it.
_LAUNCHES = Field("kernel", "named_launches", "kernel", "text")
RUNTIME = Family("runtime", "thread", (*_LAUNCHED, Field("cbid", CALLS, "cbid", "int"), _LAUNCHES))
# Callback ids of the driver count apart from those of the runtime.
DRIVER = Family("runtime", "thread", (*_LAUNCHED, _LAUNCHES))
KERNEL = Family(
    "kernel",
    "args",
    (
        *_ON_DEVICE,
        *_columns("geometry", "product", [("grid", "blocks"), ("block", "threads_per_block")]),
        *_columns(
            "geometry",
            "int",
            [
                ("registers per thread", "registers_per_thread"),
                ("shared memory", "shared_memory_bytes"),
            ],
        ),
        *_GRAPH_NODE,
        *_COLLECTIVE,
    ),
)
MEMCPY = Family("memcpy", "args", (*_ON_DEVICE, _BYTES, *_GRAPH_NODE), ("copies",))
MEMSET = Family("memset", "args", (*_ON_DEVICE, _BYTES, *_GRAPH_NODE), ("copies",))
DEVICE_ANNOTATION = Family("device_annotation", "ids", _EXTERNAL)
DEVICE_WAIT = Family(
    "device_wait",
    "args",
    (
        *_ON_DEVICE,
        Field("cuda_sync_kind", "waits", "sync_kind", "text"),
        Field("wait_on_stream", "waits", "on_stream", "int"),
        Field("wait_on_cuda_event_record_corr_id", "waits", "on", "int"),
    ),
    ("waits",),
)
FRAME = Family(
    "frame",
    "thread",
    _columns(
        "frames",
        "int",
        [
            ("Python id", "frame"),
            ("Python parent id", "parent"),
            ("Python module id", "module"),
        ],
    ),
    ("frames",),
)
MEMORY = Family(
    "memory",
    "thread",
    _columns(
        "memory",
        "int",
        [
            ("Bytes", "bytes"),
            ("Addr", "address"),
            ("Device Type", "device_type"),
            ("Device Id", "device"),
            ("Total Allocated", "allocated_bytes"),
            ("Total Reserved", "reserved_bytes"),
        ],
    ),
    ("memory",),
)
# The profiler writes its own rows with pid -1: they lie on no thread of the program.
OVERHEAD = Family("overhead", "nowhere", _EXTERNAL)
OTHER = Family("other", "thread", _LAUNCHED)

CATEGORIES: Mapping[str, Family] = {
    "cpu_op": OPERATOR,
    "Operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "cuda_runtime": RUNTIME,
    "cuda_driver": DRIVER,
    "Runtime": RUNTIME,
    "hip_runtime": RUNTIME,
    "hip_driver": DRIVER,
    "xpu_runtime": RUNTIME,
    "xpu_driver": DRIVER,
    "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": DRIVER,
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "Memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
    "gpu_user_annotation": DEVICE_ANNOTATION,
    "cuda_sync": DEVICE_WAIT,
    "python_function": FRAME,
    "cpu_instant_event": MEMORY,
    "overhead": OVERHEAD,
}
# Flows repeat what correlation and sequence numbers say; "Trace" is the profiler's own span.
DROPPED_CATEGORIES = frozenset(
    {"ac2g", "fwdbwd", "async", "async_gpu", "async_cpu_to_gpu", "Trace", "__metadata"}
)
MEMORY_NAMES = frozenset({b"[memory]", b"[OutOfMemory]"})
