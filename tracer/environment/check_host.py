"""The host side: CPU clock, limits of the container, NUMA."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tracer.environment.facts import Facts
from tracer.environment.machine import Machine
from tracer.environment.rows import Row, ok, warning

_CPU = "/sys/devices/system/cpu"
_NODES = "/sys/devices/system/node"


def check_host(facts: Facts) -> Iterable[Row]:
    """What makes launches slow, or ends a process."""
    machine = facts.machine
    yield from _governor_rows(machine)
    yield from _cpu_limit_rows(machine)
    yield from _memory_limit_rows(machine)
    yield from _numa_rows(facts)


def _governor_rows(machine: Machine) -> Iterable[Row]:
    governor = machine.text(f"{_CPU}/cpu0/cpufreq/scaling_governor")
    if governor is None:
        yield ok("host.governor", "CPU governor", "not shown (virtual machine)")
        return
    driver = machine.text(f"{_CPU}/cpu0/cpufreq/scaling_driver") or ""
    # The active intel_pstate driver clocks up by itself under `powersave`.
    if governor == "powersave" and driver not in ("intel_pstate", "amd-pstate-epp"):
        yield warning(
            "host.governor",
            "CPU governor",
            "powersave: every launch is issued at the lowest clock",
            "sudo cpupower frequency-set -g performance",
        )
    else:
        yield ok("host.governor", "CPU governor", governor)


def _cpu_limit_rows(machine: Machine) -> Iterable[Row]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = float(cores or 1)
    quota = _cpu_quota(machine)
    limits = f"{cores} cores"
    if quota is not None and quota < usable:
        usable = quota
        limits += f", limited to {quota:g} by the cgroup"
    throttled = _throttled_ratio(machine)
    if throttled is not None and throttled > 0.05:
        yield warning(
            "host.cpu_throttled",
            "CPU",
            f"{limits}; the limit stopped this container in {throttled:.0%} of its periods",
            "give the container more CPUs: launches wait while it is stopped",
        )
    elif usable < 2:
        yield warning(
            "host.cpu_limit",
            "CPU",
            f"{limits}: one core issues launches, feeds data and collects garbage",
            "give the process at least two cores",
        )
    else:
        yield ok("host.cpu_limit", "CPU", limits)
    yield from _thread_rows(machine, usable)


def _cpu_quota(machine: Machine) -> float | None:
    fields = (machine.text("/sys/fs/cgroup/cpu.max") or "").split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
        return int(fields[0]) / int(fields[1])
    quota = machine.integer("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = machine.integer("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _throttled_ratio(machine: Machine) -> float | None:
    text = machine.text("/sys/fs/cgroup/cpu.stat") or ""
    fields = dict(line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2)
    periods, stopped = fields.get("nr_periods", "0"), fields.get("nr_throttled", "0")
    if periods.isdigit() and stopped.isdigit() and int(periods) >= 100:
        return int(stopped) / int(periods)
    return None


def _thread_rows(machine: Machine, usable: float) -> Iterable[Row]:
    threads = machine.variable("OMP_NUM_THREADS")
    if threads and threads.isdigit() and int(threads) > usable:
        yield warning(
            "host.threads",
            "OMP_NUM_THREADS",
            f"{threads} threads for {usable:g} cores",
            f"export OMP_NUM_THREADS={max(1, int(usable))}",
        )


def _memory_limit_rows(machine: Machine) -> Iterable[Row]:
    limit = machine.integer("/sys/fs/cgroup/memory.max")
    used = machine.integer("/sys/fs/cgroup/memory.current")
    total = _total_memory(machine)
    if limit is None or (total is not None and limit >= total):
        shown = f"{total / 1e9:.0f} GB, no limit" if total else "no limit"
        yield ok("host.memory_limit", "host memory", shown)
        return
    text = f"limited to {limit / 1e9:.1f} GB by the cgroup"
    if used is not None and used > 0.9 * limit:
        yield warning(
            "host.memory_limit",
            "host memory",
            f"{text}, of which {used / 1e9:.1f} GB are taken",
            "raise the container's memory: at the limit the process is killed without a word",
        )
    else:
        yield ok("host.memory_limit", "host memory", text)


def _total_memory(machine: Machine) -> int | None:
    for line in (machine.text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            fields = line.split()
            return int(fields[1]) * 1024 if fields[1].isdigit() else None
    return None


def _numa_rows(facts: Facts) -> Iterable[Row]:
    machine = facts.machine
    nodes = [name for name in machine.names(_NODES) if name[4:].isdigit() and name[:4] == "node"]
    if len(nodes) < 2:
        yield ok("host.numa", "NUMA", "one node")
        return
    gpus = _gpu_nodes(machine)
    text = f"{len(nodes)} nodes" + (f"; {gpus}" if gpus else "")
    balancing = machine.integer("/proc/sys/kernel/numa_balancing")
    if balancing and (gpus or facts.torch.hip is not None):
        yield warning(
            "host.numa_balancing",
            "NUMA",
            f"{text}; the kernel moves pages between nodes, which stalls launches",
            "sudo sysctl kernel.numa_balancing=0",
        )
    else:
        yield ok("host.numa", "NUMA", text)


def _gpu_nodes(machine: Machine) -> str:
    """Which node each GPU hangs on, for binding ranks to it."""
    found = [
        f"GPU at {address} on node {node}"
        for vendor in ("0x10de", "0x1002")
        for address in machine.pci_gpus(vendor)
        if (node := machine.integer(f"/sys/bus/pci/devices/{address}/numa_node")) is not None
        and node >= 0
    ]
    return ", ".join(found)
