"""Logs of NCCL: which way ranks reach each other, and whether there is a faster one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tracer import cli
from tracer.analyzers.rules.transport import Measured, judge_transport, link_of
from tracer.collectors.logs.nccl_log import LiveNcclLog, read_nccl_log
from tracer.collectors.sniff import sniff
from tracer.errors import NotATraceError

Capture = pytest.CaptureFixture[str]

_INIT = "ncclCommInitRank comm 0x5 rank {rank} nranks {ranks} cudaDev 0 busId 60 - Init START"


def log_of(path: Path, *lines: str, rank: int = 0, ranks: int = 16, nodes: int = 2) -> Path:
    """A log with these lines of the library."""
    head = [
        "NCCL version 2.21.5+cuda12.4",
        "some text of the program",
        _INIT.format(rank=rank, ranks=ranks),
        f"comm 0x5 rank {rank} nRanks {ranks} nNodes {nodes} localRanks 8 localRank 0 MNNVL 0",
    ]
    prefixed = [f"host-a:71:72 [0] NCCL INFO {line}" for line in (*head[2:], *lines)]
    path.write_text("\n".join([*head[:2], *prefixed]) + "\n")
    return path


def causes(path: Path, *devices: str) -> list[tuple[str, str]]:
    """Cause and severity of what is found in a log."""
    found = judge_transport(read_nccl_log(path), devices, []).findings
    return [(f.detail["cause"], f.severity) for f in found]


def test_the_two_recorded_logs(shared: Path) -> None:
    folder = shared / "h200x2"
    fine = read_nccl_log(folder / "nccl_debug_info_nvlink.rank0.log")
    (log,) = fine
    assert (log.rank, log.ranks, log.nodes, log.network) == (0, 2, 1, "Socket")
    assert [(c.via, c.count) for c in log.channels] == [("P2P/CUMEM", 24)]
    result = judge_transport(fine, [], [])
    assert result.findings == ()
    assert result.checks[0].status == "clear"

    slow = read_nccl_log(folder / "nccl_debug_info_p2p_disabled.rank0.log")
    (finding,) = judge_transport(slow, [], []).findings
    assert finding.rule == "fallback.communication"
    assert finding.severity == "warning"
    assert finding.detail["cause"] == "shared-memory"
    assert finding.detail["setting"] == "NCCL_P2P_DISABLE"
    assert "shared memory" in finding.title
    assert "unset NCCL_P2P_DISABLE" in finding.advice


def test_measured_bandwidth_stands_beside_the_link(shared: Path) -> None:
    logs = read_nccl_log(shared / "h200x2" / "nccl_debug_info_p2p_disabled.rank0.log")
    measured = [Measured("all_reduce", "0", 25.8e9, 1 << 24)]
    (finding,) = judge_transport(logs, ["NVIDIA H200"], measured).findings
    assert "26 GB/s were measured" in finding.title
    assert "NVLink gives up to 450 GB/s" in finding.title
    assert finding.detail["link_bytes_per_s"] == 450e9


@pytest.mark.parametrize(
    ("lines", "nodes", "devices", "expected"),
    [
        (["Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"], 2, [], []),
        (["Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA"], 2, [], []),
        (
            [
                "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
                "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0",
            ],
            2,
            [],
            [("sockets", "warning")],
        ),
        (
            [
                "NCCL_IB_DISABLE set by environment to 1.",
                "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0",
            ],
            2,
            [],
            [("sockets", "warning")],
        ),
        (
            [
                "NET/IB : No device found.",
                "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0",
            ],
            2,
            [],
            [("sockets", "info")],
        ),
        (
            [
                "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
                "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0",
            ],
            2,
            [],
            [("staged-through-host", "warning")],
        ),
        (["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"], 1, [], []),
        (
            ["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"],
            1,
            ["NVIDIA H100 80GB HBM3"],
            [("shared-memory", "warning")],
        ),
        (["Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"], 1, ["NVIDIA L4"], []),
        (
            [
                "P2P is disabled between connected GPUs 0 and 1.",
                "Channel 00 : 0[17000] -> 1[65000] via direct shared memory",
            ],
            1,
            [],
            [("shared-memory", "warning")],
        ),
        (["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read"], 1, [], []),
        (["Using network Socket"], 2, [], []),
    ],
)
def test_ways(
    tmp_path: Path,
    lines: list[str],
    nodes: int,
    devices: list[str],
    expected: list[tuple[str, str]],
) -> None:
    assert causes(log_of(tmp_path / "n.log", *lines, nodes=nodes), *devices) == expected


def test_rccl_and_several_processes_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "all.log"
    text = (
        "[rank0]: node1:10:11 [0] NCCL INFO RCCL version : 2.22.3-HEAD:9a\n"
        "node1:10:11 [0] NCCL INFO Channel 00/0 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0x1\n"
        "node1:20:21 [1] NCCL INFO Channel 00/0 : 1[c6000] -> 0[c1000] via SHM/direct/direct\n"
        "node1:20:21 [1] NCCL WARN something went wrong\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    first, second = read_nccl_log(path)
    assert [channel.via for channel in first.channels] == ["P2P/IPC"]
    assert second.warnings == ("something went wrong",)
    assert causes(path, "AMD Instinct MI300X") == [("shared-memory", "warning")]


@pytest.mark.parametrize(
    ("device", "link"),
    [
        ("NVIDIA H200", "NVLink"),
        ("NVIDIA A100-SXM4-80GB", "NVLink"),
        ("NVIDIA A100 80GB PCIe", "PCIe 4.0 x16"),
        ("NVIDIA GeForce RTX 4090", "PCIe 4.0 x16"),
        ("AMD Instinct MI300X", "Infinity Fabric"),
    ],
)
def test_links(device: str, link: str) -> None:
    found = link_of(device)
    assert found is not None
    assert found.name == link


def test_unknown_device_has_no_link() -> None:
    assert link_of("Accelerator 9000") is None


def test_text_without_a_line_of_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("all is well, and NCCL is not in it\n")
    with pytest.raises(NotATraceError):
        read_nccl_log(path)


def test_logs_beside_ranks(shared: Path, tmp_path: Path, capsys: Capture) -> None:
    source = shared / "h200x2" / "nccl_debug_info_p2p_disabled.rank0.log"
    assert sniff(source).name == "nccl-log"
    (tmp_path / source.name).write_bytes(source.read_bytes())
    assert cli.main(["ranks", str(tmp_path), "--fail-on", "fallback.communication"]) == 1
    assert "shared memory" in capsys.readouterr().out


def test_live_log_is_asked_for_and_taken_back(tmp_path: Path) -> None:
    environment = {"WORLD_SIZE": "2"}
    live = LiveNcclLog(environment)
    live.start()
    assert environment["NCCL_DEBUG"] == "INFO"
    import os

    written = Path(environment["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid())))
    written.write_text("host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    saved = live.save(tmp_path, 1)
    live.stop()
    assert environment == {"WORLD_SIZE": "2"}
    assert saved == tmp_path / "nccl_debug.rank1.log"
    assert len(read_nccl_log(saved)) == 1
    saved.write_text("of the run before")
    assert live.save(tmp_path, 1, keep=True) == saved
    assert (tmp_path / ".old" / saved.name).read_text() == "of the run before"
    assert len(read_nccl_log(saved)) == 1


def test_live_log_leaves_a_single_process_and_a_log_of_its_own_alone(tmp_path: Path) -> None:
    for environment in ({}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "2", "NCCL_DEBUG": "WARN"}):
        before = dict(environment)
        live = LiveNcclLog(environment)
        live.start()
        assert environment == before
        assert live.save(tmp_path, 0) is None
        live.stop()
