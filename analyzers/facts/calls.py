"""What kinds of runtime calls and host rows there are, by name: waits, allocations, compilation.

Kind is decided by what the CUDA and HIP interfaces and PyTorch call things, not by any program.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import COMPILE_RANGE, HOST_KINDS, Host, Launches
from tracer.analyzers.intervals import NONE, Longs, lean, lookup, take
from tracer.events import Trace

_SYNCHRONIZE = re.compile(r"(cuda|cu|hip)\w*Synchronize")
_BLOCKING_COPY = re.compile(r"hipMemcpyWithStream|(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?$")
_COPY = re.compile(r"(cuda|cu|hip)Mem(cpy)")
_ALLOCATOR = re.compile(
    r"(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister)"
    r"|cuMem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree|HostAlloc)"
    r"|hipMem(Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree)"
)
_MODULE_LOAD = re.compile(
    r"(cu|hip)(Module(Load|GetFunction|Unload)|Library(Load|GetKernel|GetModule|Unload))"
    r"|(cuda|hip)(ModuleLoad|LibraryLoad)|hiprtc|nvrtc"
)
_COMPILE_FRAME = re.compile(
    r".*triton/compiler/compiler\.py\(\d+\): compile$|.*torch/_dynamo/.*: _?compile(_inner)?$"
    r"|.*torch/_inductor/.*: (compile_fx\w*|benchmark_all_configs|precompile|codegen\w*)$"
)
_AUTOTUNE = re.compile(r"CachingAutotuner\.|.*autotun(e|ing)", re.I)
_OVERHEAD_COMPILE = re.compile(r".*(Lazy Function Loading|Driver Compiler|Module Loading)", re.I)
_OVERHEAD_PROFILER = re.compile(
    r"tracer::|.*(Buffer Flush|Activity Buffer|CUPTI|Instrumentation|Resource|Overhead)", re.I
)
MAKES_INPUT = re.compile(
    r"enumerate\(DataLoader|.*tokeniz|.*[Cc]ollat|.*data_?loader\w*\.(py|__next__)|.*_BaseDataLoader"
    r"|.*torch/utils/data/|.*datasets/",
    re.I,
)
_GENERATION = re.compile(r".*\.py\(\d+\): generate$")
_COLLECTION = re.compile(r"Python GC|gc\.collect|<built-in function collect>|.*gc_collect", re.I)


@lru_cache(maxsize=65536)
def is_synchronize(name: str) -> bool:
    """Whether this runtime call makes the host wait for the device."""
    return _SYNCHRONIZE.match(name) is not None


@lru_cache(maxsize=65536)
def is_allocator(name: str) -> bool:
    """Whether this runtime call asks the driver for memory or gives some back."""
    return _ALLOCATOR.match(name) is not None


@lru_cache(maxsize=65536)
def is_release(name: str) -> bool:
    """Whether an allocator call gives memory back."""
    return is_allocator(name) and re.search(r"Free|Release|Unmap|Unregister", name) is not None


@lru_cache(maxsize=65536)
def is_module_load(name: str) -> bool:
    """Whether this runtime call loads or compiles device code."""
    return _MODULE_LOAD.match(name) is not None


@lru_cache(maxsize=65536)
def is_autotune(name: str) -> bool:
    """Whether this range measures variants of a kernel."""
    return _AUTOTUNE.match(name) is not None


class Calls:
    """Kinds of the host rows of one trace; each property is a mask aligned with `events`."""

    def __init__(self, trace: Trace, host: Host, launches: Launches) -> None:
        self.trace, self.host, self.launches = trace, host, launches

    @property
    def synchronize(self) -> NDArray[np.bool_]:
        return self.trace.named(is_synchronize, "runtime")

    @property
    def blocking_copy(self) -> NDArray[np.bool_]:
        """Copies whose call returned only after the copy itself had ended."""
        copies = np.flatnonzero(self.trace.named(_COPY.match, "runtime"))
        always = self.trace.named(_BLOCKING_COPY.match, "runtime")
        work = self.trace.rows("memcpy")
        copied = take(work, lookup(self.launches.launch[work], copies))
        never = np.iinfo(np.int64).max
        ended = np.where(copied == NONE, never, self.trace.end_ns[np.maximum(copied, 0)])
        mask = np.zeros(len(self.trace.events), dtype=bool)
        mask[copies] = (self.trace.end_ns[copies] >= ended) & ~self._goes_on(copied)
        return mask | always

    def _goes_on(self, copied: Longs) -> NDArray[np.bool_]:
        """Copies with pinned memory on the host, or with none there: their calls do not wait by
        themselves, however long they take."""
        table = self.trace.table("copies")
        at = lookup(table["event"].to_numpy(), copied)
        pinned = table["source"].eq("pinned") | table["target"].eq("pinned")
        on_device = table["direction"].eq("device_to_device")
        found: NDArray[np.bool_] = take((pinned | on_device).to_numpy().astype(np.int64), at) == 1
        return found

    @cached_property
    def blocking(self) -> NDArray[np.bool_]:
        return self.synchronize | self.blocking_copy

    @cached_property
    def allocator(self) -> NDArray[np.bool_]:
        return lean(self.trace.named(is_allocator, "runtime"))

    @cached_property
    def module_load(self) -> NDArray[np.bool_]:
        return lean(self.trace.named(is_module_load, "runtime"))

    @cached_property
    def compiling(self) -> NDArray[np.bool_]:
        ranges = self.trace.named(COMPILE_RANGE.match, "operator", "annotation")
        return lean(ranges | self.trace.named(_COMPILE_FRAME.match, "frame"))

    @cached_property
    def input(self) -> NDArray[np.bool_]:
        """What makes input; what a generation calls for each token is no such thing."""
        named = self.trace.named(MAKES_INPUT.match, *HOST_KINDS)
        generating = self.trace.named(_GENERATION.match, "frame")
        return lean(named & (self.host.nearest(generating) == NONE))

    @cached_property
    def collecting(self) -> NDArray[np.bool_]:
        return lean(self.trace.named(_COLLECTION.match, *HOST_KINDS))

    def overhead_ranges(self, compiles: bool) -> tuple[Longs, Longs]:
        """Starts and ends of the overhead rows that compile or load, or that are the profiler's."""
        pattern = _OVERHEAD_COMPILE if compiles else _OVERHEAD_PROFILER
        rows = np.flatnonzero(self.trace.named(pattern.match, "overhead"))
        return self.trace.start_ns[rows], self.trace.end_ns[rows]
