"""Rule fallback.communication: ranks that reach each other by a slower way than there is.

From logs of NCCL with NCCL_DEBUG=INFO, with the bandwidth that was measured beside what the link of
such GPUs gives.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from tracer.analysis import RuleResult
from tracer.findings import Check, Finding, Severity
from tracer.rank_records import NcclLog

TRANSPORT = "fallback.communication"
_GB = 1e9
_SWITCHED_ON = re.compile(r"^(1|true|yes)$", re.IGNORECASE)
_NO_PEERS = ("LOC", "0")  # levels of NCCL_P2P_LEVEL
_MOST_RANKS = 8


@dataclass(frozen=True)
class Measured:
    """Bandwidth of large messages in the recordings: what each rank moves, nccl-tests' busbw."""

    op: str
    group: str
    busbw_bytes_per_s: float
    bytes: int  # of one message


@dataclass(frozen=True)
class Link:
    """What joins GPUs of a kind, one direction of one GPU."""

    name: str
    bytes_per_s: float

    @property
    def is_fast(self) -> bool:
        """Whether it is more than the bus of the host."""
        return not self.name.startswith("PCIe")


def judge_transport(
    logs: Sequence[NcclLog], devices: Sequence[str], measured: Sequence[Measured]
) -> RuleResult:
    """The rule over the logs of one run; `devices`: names of its GPUs, as far as they are known."""
    if not logs:
        reason = "no log of NCCL (NCCL_DEBUG=INFO) was given"
        return RuleResult(checks=(Check(TRANSPORT, "not_checked", reason),))
    link = next((found for name in devices if (found := link_of(name)) is not None), None)
    slow = [way for log in logs if (way := _slow_way(log, link)) is not None]
    findings = tuple(
        _finding(kind, [way for way in slow if way.kind == kind], link, measured)
        for kind in dict.fromkeys(way.kind for way in slow)
    )
    if findings:
        return RuleResult(findings, (Check(TRANSPORT, "found", ""),))
    return RuleResult(checks=(_unfound(logs),))


def _unfound(logs: Sequence[NcclLog]) -> Check:
    ways = sorted({_family(channel.via) for log in logs for channel in log.channels})
    if not ways:
        reason = "the logs name no channel: the program ended before a collective, or was cut"
        return Check(TRANSPORT, "not_checked", reason)
    return Check(TRANSPORT, "clear", f"ranks reach each other by {', '.join(ways)}")


def link_of(device: str) -> Link | None:
    """What joins GPUs of this name, as their makers say; None when it is not known."""
    lower = device.lower()
    return next((link for pattern, link in _links() if pattern.search(lower)), None)


@lru_cache(maxsize=1)
def _links() -> tuple[tuple[re.Pattern[str], Link], ...]:
    text = files("tracer.analyzers.rules").joinpath("links.csv").read_text(encoding="utf-8")
    return tuple(
        (re.compile(row["name"]), Link(row["link"], float(row["bytes_per_s"])))
        for row in csv.DictReader(text.splitlines())
    )


# --- one log -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slow:
    """A slower way in one log. certain: something faster is known to exist."""

    kind: str  # shared-memory, sockets, staged-through-host
    log: NcclLog
    channels: int
    reason: str
    setting: str
    certain: bool


def _family(via: str) -> str:
    """`P2P`, `SHM`, `NET/Socket`, `NET/IB` of a way as written."""
    if via.lower().startswith(("direct", "shm")):
        return "SHM"
    parts = via.split("/")
    return "/".join(parts[:2]) if parts[0] == "NET" and len(parts) > 1 else parts[0]


def _slow_way(log: NcclLog, link: Link | None) -> _Slow | None:
    counts: dict[str, int] = {}
    for channel in log.channels:
        family = _family(channel.via)
        counts[family] = counts.get(family, 0) + channel.count
    if counts.get("SHM"):
        return _shared_memory(log, counts["SHM"], link)
    if counts.get("NET/Socket"):
        return _sockets(log, counts["NET/Socket"])
    network = sum(count for family, count in counts.items() if family.startswith("NET/"))
    if network and log.rdma_disabled:
        reason = "GPU Direct RDMA is disabled: data goes through the memory of the host"
        return _Slow("staged-through-host", log, network, reason, "", True)
    return None


def _shared_memory(log: NcclLog, channels: int, link: Link | None) -> _Slow | None:
    """Shared memory of the host, where the GPUs could reach each other."""
    level = log.settings.get("NCCL_P2P_LEVEL", "").upper() in _NO_PEERS
    for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"):
        if _is_set(log, name) or (level and name == "NCCL_P2P_LEVEL"):
            reason = f"{name}={log.settings[name]} is set in the environment"
            fast = log.peer_access is not False or log.nvlink is True
            return _Slow("shared-memory", log, channels, reason, name, fast)
    if log.nvlink or (link is not None and link.is_fast):
        name = link.name if link is not None else "NVLink"
        reason = f"the GPUs have {name}, and NCCL does not use it between them"
        return _Slow("shared-memory", log, channels, reason, "", True)
    if log.peers_disabled:
        reason = "P2P is disabled between GPUs that are connected"
        return _Slow("shared-memory", log, channels, reason, "", True)
    if log.peer_access and link is None:
        reason = "the GPUs can reach each other's memory, and NCCL does not use that"
        return _Slow("shared-memory", log, channels, reason, "", False)
    return None


def _is_set(log: NcclLog, name: str) -> bool:
    return name.endswith("_DISABLE") and bool(_SWITCHED_ON.match(log.settings.get(name, "")))


def _sockets(log: NcclLog, channels: int) -> _Slow:
    """TCP sockets, between hosts or even inside one."""
    for name in ("NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE"):
        if _is_set(log, name):
            reason = f"{name}={log.settings[name]} is set in the environment"
            return _Slow("sockets", log, channels, reason, name, True)
    net = log.settings.get("NCCL_NET", "")
    if net.lower() == "socket":
        return _Slow("sockets", log, channels, f"NCCL_NET={net} is set", "NCCL_NET", True)
    if log.nodes == 1:
        reason = "all ranks are on one host, which needs no network"
        return _Slow("sockets", log, channels, reason, "", True)
    if log.infiniband:
        reason = "InfiniBand or RoCE devices were found, and NCCL does not use them"
        return _Slow("sockets", log, channels, reason, "", True)
    seen = "NCCL found no InfiniBand device" if log.infiniband is False else "no faster network"
    return _Slow("sockets", log, channels, f"{seen} on this host", "", False)


# --- in words ------------------------------------------------------------------------------------

_TITLES: Mapping[str, str] = {
    "shared-memory": "ranks of one host exchange data through its shared memory",
    "sockets": "ranks exchange data through TCP sockets",
    "staged-through-host": "the network copies through the memory of the host",
}
_ADVICE: Mapping[str, str] = {
    "shared-memory": (
        "Let the GPUs reach each other: {unset}check `nvidia-smi topo -m`, IOMMU and ACS settings, "
        "and that the container shares all GPUs."
    ),
    "sockets": (
        "Give NCCL the fast network: {unset}pass /dev/infiniband into the container, install the "
        "network plug-in of the cloud, and check NCCL_SOCKET_IFNAME and NCCL_IB_HCA."
    ),
    "staged-through-host": (
        "Load the peer-memory module (nvidia-peermem or DMA-BUF), so that the network reads GPU "
        "memory itself."
    ),
}


def _finding(
    kind: str, ways: Sequence[_Slow], link: Link | None, measured: Sequence[Measured]
) -> Finding:
    first = ways[0]
    channels = sum(way.channels for way in ways)
    severity: Severity = "warning" if any(way.certain for way in ways) else "info"
    best = max(measured, key=lambda found: found.busbw_bytes_per_s, default=None)
    unset = f"unset {first.setting}, " if first.setting else ""
    return Finding(
        rule=TRANSPORT,
        severity=severity,
        title=f"{_TITLES[kind]} ({channels} channels): {first.reason}{_beside(best, link)}",
        count=channels,
        detail=_detail(kind, ways, link, best),
        advice=_ADVICE[kind].format(unset=unset),
    )


def _beside(best: Measured | None, link: Link | None) -> str:
    """The measured bandwidth beside what the link gives."""
    if best is None:
        return f"; {link.name} would give {link.bytes_per_s / _GB:.0f} GB/s" if link else ""
    text = f"; {best.busbw_bytes_per_s / _GB:.0f} GB/s were measured ({best.op})"
    return text + (f", {link.name} gives up to {link.bytes_per_s / _GB:.0f} GB/s" if link else "")


def _detail(
    kind: str, ways: Sequence[_Slow], link: Link | None, best: Measured | None
) -> dict[str, Any]:
    first = ways[0]
    return {
        "cause": kind,
        "reason": first.reason,
        "setting": first.setting or None,
        "ranks": sorted({way.log.rank for way in ways if way.log.rank is not None})[:_MOST_RANKS],
        "via": sorted({channel.via for way in ways for channel in way.log.channels}),
        "nccl": first.log.version or None,
        "network": first.log.network or None,
        "nodes": first.log.nodes,
        "measured_busbw_bytes_per_s": best.busbw_bytes_per_s if best else None,
        "measured_op": best.op if best else None,
        "link": link.name if link else None,
        "link_bytes_per_s": link.bytes_per_s if link else None,
    }
