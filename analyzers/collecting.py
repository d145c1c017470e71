"""What can fill time: device work, or the leaf operators of a recording without a device."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.communication.host_collectives import host_work
from tracer.analyzers.facts.compiled import map_compiled
from tracer.analyzers.facts.cut import was_cut
from tracer.analyzers.facts.host import Host, Launches
from tracer.analyzers.facts.modules import ModuleTree, rows_of_paths
from tracer.analyzers.facts.work import COLLECTIVE, COMPUTE, TRANSFER_CLASS, Hints, Work
from tracer.analyzers.graphs.replays import map_replays
from tracer.analyzers.intervals import NONE, Longs, lookup, take
from tracer.analyzers.names.kernel_table import describe
from tracer.analyzers.names.operations import range_operation
from tracer.events import KIND_CODE, Trace

# `FSDP::all_gather (model.layers.0)`.
_SHARDED = re.compile(r"FSDP::.* \(([\w.]+)\)$")
# The end of a backward pass at a parameter, and the range of the engine around it and its hooks.
_GRADIENT = "torch::autograd::AccumulateGrad"
_HOST_COPIES = ("host_to_device", "device_to_host")


def device_part_cut(trace: Trace) -> bool:
    """The file names a device and was cut: host rows come first, so the device's are what lacks."""
    return was_cut(trace) and len(trace.table("devices")) > 0 and not trace.device_rows.size


def collect_work(trace: Trace, host: Host, launches: Launches, tree: ModuleTree) -> Work:
    """The work of a trace with its launches and classes."""
    rows = trace.device_rows
    cpu_only = not rows.size and not launches.launching.any() and not device_part_cut(trace)
    event, asked = host_work(host) if cpu_only else (rows, rows)
    launch = launches.launch[event]
    replays = map_replays(host, launches, event, launch)
    site = asked if cpu_only else np.where(replays.site == NONE, launch, replays.site)
    compiled = map_compiled(host, launches, tree, event, site, launch)
    of_node = _module_of_node(trace, tree, replays.node)
    module = np.where(of_node == NONE, compiled.module, of_node)
    sharded = _sharded_module(host, tree, site)
    module = np.where(sharded == NONE, module, sharded)
    classes = _classes(trace, host, event, site, cpu_only)
    of_many = _sums_of_buckets(host, site, (classes == COLLECTIVE) & (sharded == NONE))
    return Work(
        trace,
        host,
        launches,
        tree,
        event,
        site,
        launch,
        classes,
        cpu_only,
        replays.site != NONE,
        replays.notes + compiled.notes,
        Hints(replays.node, compiled, module, of_many),
    )


def _sharded_module(host: Host, tree: ModuleTree, site: Longs) -> Longs:
    """The module that FSDP names in its range around work: it gathers and scatters for that one,
    whatever runs meanwhile."""
    trace = host.trace
    paths = [m[1] if (m := _SHARDED.match(name)) else "" for name in trace.names]
    rows = np.where(np.array(paths) == "", NONE, rows_of_paths(tree, paths))
    if not (rows != NONE).any():
        return np.full(site.size, NONE, dtype=np.int64)
    ranges = trace.named(_SHARDED.match, "annotation", "operator")
    around = take(host.nearest(ranges), site)
    return take(rows, take(trace.name_codes.astype(np.int64), around))


def _sums_of_buckets(host: Host, site: Longs, collective: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Collectives that begin as gradients come in, and fewer than these: each is for the gradients
    of several parameters (a bucket of DDP), and begins with whichever of them comes last."""
    gradients = host.trace.named(lambda name: name.endswith(_GRADIENT), "operator", "annotation")
    around = host.outermost(gradients)
    sums: NDArray[np.bool_] = collective & (take(around, site) != NONE)
    count = np.count_nonzero(gradients & (around == np.arange(around.size)))
    return sums if np.count_nonzero(sums) < count else np.zeros(site.size, dtype=bool)


def _module_of_node(trace: Trace, tree: ModuleTree, node: Longs) -> Longs:
    """The module of each node of a capture seen elsewhere; -1 for other work."""
    paths = trace.table("captured_nodes")["path"]
    kinds = trace.table("captured_nodes")["type"]
    rows = rows_of_paths(tree, [str(path) for path in paths.cat.categories])
    of_path = take(rows, paths.cat.codes.to_numpy().astype(np.int64))
    of_path = np.where((kinds == "").to_numpy(), NONE, of_path)  # outside any module
    return take(of_path, node)


def _classes(
    trace: Trace, host: Host, event: Longs, site: Longs, cpu_only: bool
) -> NDArray[np.int8]:
    classes = np.full(event.size, COMPUTE, dtype=np.int8)
    classes[_copies_between(trace, event)] = TRANSFER_CLASS
    classes[_collectives(trace, host, event, site, cpu_only)] = COLLECTIVE
    return classes


def _copies_between(trace: Trace, event: Longs) -> NDArray[np.bool_]:
    """Copies from host to device or back. A copy with no direction counts as one."""
    table = trace.table("copies")
    at = lookup(table["event"].to_numpy(), event)
    crossing = table["direction"].isin([*_HOST_COPIES, "unknown"]).to_numpy().astype(np.int64)
    copies: NDArray[np.bool_] = trace.kind_codes[event] == KIND_CODE["memcpy"]
    transfers: NDArray[np.bool_] = copies & (take(crossing, at) == 1)
    return transfers


def _collectives(
    trace: Trace, host: Host, event: Longs, site: Longs, cpu_only: bool
) -> NDArray[np.bool_]:
    """Communication kernels by name; copies and sets launched inside a collective's range."""
    code = trace.name_codes[event]
    if cpu_only:
        named = trace.names_matching(lambda name: range_operation(name) != "")
        ranged: NDArray[np.bool_] = named[code]
        return ranged
    kernels = trace.kind_codes[event] == KIND_CODE["kernel"]
    used = np.unique(code[kernels])
    communicates = np.zeros(len(trace.names), dtype=bool)
    communicates[used] = [describe(trace.names[c]).category == "communication" for c in used]
    inside = take(host.nearest(trace.named(range_operation, "annotation", "operator")), site) >= 0
    found: NDArray[np.bool_] = (kernels & communicates[code]) | (~kernels & inside)
    return found
