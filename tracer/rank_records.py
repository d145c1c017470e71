"""What ranks left besides their recordings: flight-recorder dumps and logs of NCCL."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.findings import Where


@dataclass(frozen=True)
class FlightEntry:
    """One collective, or send or receive, that a rank called.

    state: scheduled, started or completed. frames: the caller first.
    """

    group: str
    description: str
    sequence: int
    is_p2p: bool
    operation: str  # as recorded: "nccl:all_reduce", "nccl:send 0->1"
    state: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    input_types: tuple[str, ...]
    frames: tuple[Where, ...]
    record: int
    created_ns: int | None
    timeout_ms: int | None

    @property
    def completed(self) -> bool:
        """Whether it ended."""
        return self.state == "completed"


@dataclass(frozen=True)
class FlightDump:
    """The flight recorder of one rank. members: ranks of each group, as far as they are said."""

    path: str
    rank: int | None
    version: str
    entries: tuple[FlightEntry, ...]
    members: dict[str, tuple[int, ...]]
    last_completed: dict[str, int]
    last_enqueued: dict[str, int]


@dataclass(frozen=True)
class Channel:
    """How one rank reaches another: `via` as written ("P2P/CUMEM", "NET/Socket/0"); -1 unknown."""

    source: int
    target: int
    via: str
    count: int


@dataclass(frozen=True)
class NcclLog:
    """What the log of one process says. settings: NCCL variables that the environment set."""

    path: str
    version: str
    rank: int | None
    ranks: int | None
    nodes: int | None
    channels: tuple[Channel, ...]
    settings: dict[str, str]
    network: str
    infiniband: bool | None  # None: the log does not say
    peer_access: bool | None  # whether the GPUs of the host can reach each other's memory
    rdma_disabled: bool
    peers_disabled: bool  # "P2P is disabled between connected GPUs"
    nvlink: bool | None
    warnings: tuple[str, ...]
