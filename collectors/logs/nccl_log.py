"""Logs of NCCL (and RCCL) with NCCL_DEBUG=INFO: which way the ranks reach each other.

One file may hold several processes, and other text between; lines of the library are known by
`host:pid:tid [device] NCCL INFO`.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import socket
import tempfile
import weakref
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path

from tracer.aside import put_aside
from tracer.errors import InputError, NotATraceError
from tracer.rank_records import Channel, NcclLog

_LINE = re.compile(
    r"(\S+):(\d+):(\d+) \[(-?\d+)\](?: \S+:\d+)? (?:NCCL|RCCL) (INFO|WARN|TRACE) ?(.*)"
)
_CHANNEL = re.compile(
    r"Channel \S+(?: ?: | )(\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[(?:send|receive)\])? via (\S+)"
)
_RING = re.compile(r"Ring \S+ : (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[\w+\])? via (\S+)")
_INIT = re.compile(r"comm \S+ rank (\d+) n[rR]anks (\d+)")
_NODES = re.compile(r"n[nN]odes (\d+)")
_SETTING = re.compile(r"(NCCL_\w+|RCCL_\w+) set (?:by environment )?to (\S+)")
_VERSION = re.compile(r"(?:NCCL|RCCL) version ?:? ?(\S+)")
_NETWORK = re.compile(r"Using network (.+)")
_NO_IB = re.compile(r"NET/IB : No device found")
_IB = re.compile(r"NET/IB : Using \[\d+\]")
_PEER = re.compile(r"isAllCudaP2p (\d)")
_RDMA_OFF = re.compile(r"GPU Direct RDMA Disabled")
_PEERS_OFF = re.compile(r"P2P is disabled between connected GPUs")
_NVLINK = re.compile(r"NVL\[\d|NVLink|\bNVL/|XGMI")
_VERSION_LINE = re.compile(r"(?m)^(?:NCCL|RCCL) version (\S+)")
_MOST_WARNINGS = 8
MAX_BYTES = 1 << 28


@dataclass
class _Process:
    """What was read of one process so far."""

    version: str = ""
    rank: int | None = None
    ranks: int | None = None
    nodes: int | None = None
    channels: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    settings: dict[str, str] = field(default_factory=dict)
    network: str = ""
    infiniband: bool | None = None
    peer_access: bool | None = None
    rdma_disabled: bool = False
    peers_disabled: bool = False
    nvlink: bool | None = None
    warnings: list[str] = field(default_factory=list)

    def take(self, level: str, text: str) -> None:
        """Take in one line."""
        if level == "WARN" and len(self.warnings) < _MOST_WARNINGS:
            self.warnings.append(text)
        if not self._take_channel(text):
            self._take_identity(text)
            self._take_settings(text)

    def _take_channel(self, text: str) -> bool:
        found = _CHANNEL.search(text) or _RING.search(text)
        if found:
            source, target, via = found.groups()
            self.channels[int(source), int(target), via] += 1
        return found is not None

    def _take_identity(self, text: str) -> None:
        found = _INIT.search(text)
        # The largest communicator is that of all ranks.
        if found and int(found[2]) > (self.ranks or 0):
            self.rank, self.ranks = int(found[1]), int(found[2])
        if found := _NODES.search(text):
            self.nodes = max(self.nodes or 0, int(found[1]))
        if found := _VERSION.search(text):
            self.version = self.version or found[1]
        if found := _PEER.search(text):
            self.peer_access = found[1] == "1"

    def _take_settings(self, text: str) -> None:
        if found := _SETTING.search(text):
            self.settings[found[1]] = found[2].rstrip(".")
        if found := _NETWORK.search(text):
            self.network = found[1].strip()
        if _NO_IB.search(text):
            self.infiniband = self.infiniband or False
        if _IB.search(text):
            self.infiniband = True
        self.rdma_disabled |= _RDMA_OFF.search(text) is not None
        self.peers_disabled |= _PEERS_OFF.search(text) is not None
        if _NVLINK.search(text):
            self.nvlink = True


def read_nccl_log(path: str | PathLike[str]) -> list[NcclLog]:
    """What each process in the log said; refused when no line is the library's."""
    processes: dict[tuple[str, str], _Process] = {}
    version = ""
    for line in _lines(Path(path)):
        found = _LINE.search(line)
        if found is None:
            said = _VERSION_LINE.search(line)
            version = said[1] if said else version
            continue
        host, pid, _, _, level, text = found.groups()
        processes.setdefault((host, pid), _Process()).take(level, text)
    if not processes:
        raise NotATraceError(f"{fspath(path)}: no log of NCCL: no line of NCCL_DEBUG=INFO in it")
    return [_log(fspath(path), process, version) for process in processes.values()]


def _log(path: str, process: _Process, version: str) -> NcclLog:
    channels = [Channel(*pair, count) for pair, count in sorted(process.channels.items())]
    return NcclLog(
        path=path,
        version=process.version or version,
        rank=process.rank,
        ranks=process.ranks,
        nodes=process.nodes,
        channels=tuple(channels),
        settings=process.settings,
        network=process.network,
        infiniband=process.infiniband,
        peer_access=process.peer_access,
        rdma_disabled=process.rdma_disabled,
        peers_disabled=process.peers_disabled,
        nvlink=process.nvlink,
        warnings=tuple(process.warnings),
    )


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            yield from _decoded(file)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    read = 0
    for line in lines:
        read += len(line)
        if read > MAX_BYTES:
            return
        yield line.decode("utf-8", "replace")


class LiveNcclLog:
    """The log of this process while a run is recorded.

    NCCL writes it when its first communicator is made. A log that the program asked for itself is
    taken where it lies; else one is asked for, into a temporary folder, where the process is one
    of several ranks. The environment is as it was after `stop`.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._set: dict[str, str] = {}

    def start(self) -> None:
        """Ask for a log where nobody did."""
        environment = self._environment
        world = environment.get("WORLD_SIZE", "1")
        alone = not world.isdigit() or int(world) < 2
        if alone or "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
            return
        folder = tempfile.mkdtemp(prefix="tracer-nccl-")
        # The library keeps its file open; what was not saved is nobody's after this.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = str(Path(folder) / "nccl.%p.log")
        self._set = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": file}
        environment.update(self._set)

    def stop(self) -> None:
        """Take back what was set."""
        for name, value in self._set.items():
            if self._environment.get(name) == value:
                del self._environment[name]

    def save(self, directory: Path, rank: int | None, keep: bool = False) -> Path | None:
        """Copy the log into a directory, under a name that says the rank; None where there is
        none. `keep`: one that is there already goes where the run went that it belongs to."""
        pattern = self._set.get("NCCL_DEBUG_FILE") or self._environment.get("NCCL_DEBUG_FILE", "")
        host = socket.gethostname()
        written = Path(pattern.replace("%p", str(os.getpid())).replace("%h", host))
        if not pattern or not written.is_file() or not written.stat().st_size:
            return None
        owner = f"rank{rank}" if rank is not None else f"pid{os.getpid()}"
        directory.mkdir(parents=True, exist_ok=True)
        copy = directory / f"nccl_debug.{owner}.log"
        if keep and copy.is_file():
            put_aside(copy)
        return Path(shutil.copyfile(written, copy))
