"""Hangs: which collective never completed, who did not call it; dumps that are none; watchdog."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tracer import cli
from tracer.analyzers.rules.hang import judge_hang
from tracer.collectors.logs.flight_recorder import read_flight_dump
from tracer.collectors.watchdog import Bark, Watchdog, WatchdogOptions
from tracer.errors import NotATraceError, UsageError
from tracer.findings import Finding

Capture = pytest.CaptureFixture[str]
Entry = dict[str, Any]


def entry(
    sequence: int,
    state: str = "completed",
    operation: str = "nccl:all_reduce",
    group: str = "0",
    sizes: Sequence[Sequence[int]] = ((1024,),),
    line: int = 10,
    p2p: bool = False,
) -> Entry:
    """One entry of a dump."""
    return {
        "process_group": (group, "default_pg" if group == "0" else group),
        "collective_seq_id": 0 if p2p else sequence,
        "p2p_seq_id": sequence if p2p else 0,
        "is_p2p": p2p,
        "record_id": sequence,
        "profiling_name": operation,
        "state": state,
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float"] * len(sizes),
        "output_sizes": [],
        "time_created_ns": 1000 + sequence,
        "frames": [
            {"filename": "/x/torch/distributed/distributed_c10d.py", "line": 3068, "name": "f"},
            {"filename": "/home/me/train.py", "line": line, "name": "step"},
        ],
    }


def dump(
    path: Path,
    rank: int,
    entries: Sequence[Entry],
    groups: Mapping[str, Sequence[int]] | None = None,
    completed: Mapping[str, int] | None = None,
) -> Path:
    """The dump of one rank."""
    members = groups or {"0": (0, 1, 2)}
    values = {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "ranks": json.dumps(list(ranks))}
            for name, ranks in members.items()
        },
        "pg_status": {
            name: {"last_completed_collective": last} for name, last in (completed or {}).items()
        },
        "entries": list(entries),
    }
    file = path / f"nccl_trace_rank_{rank}"
    file.write_bytes(pickle.dumps(values, protocol=2))
    return file


def hangs(folder: Path) -> list[Finding]:
    """What is found in the dumps of a folder."""
    return list(judge_hang([read_flight_dump(path) for path in sorted(folder.iterdir())]).findings)


def test_the_recorded_pair(shared: Path) -> None:
    dumps = [read_flight_dump(shared / "h200x2" / f"flight_recorder_hang_rank_{r}") for r in (0, 1)]
    assert [found.rank for found in dumps] == [0, 1]
    (finding,) = judge_hang(dumps).findings
    assert finding.rule == "comm.hang"
    assert finding.severity == "critical"
    assert (finding.detail["rank"], finding.detail["sequence"]) == (1, 6)
    assert finding.detail["waiting"] == [0]
    assert finding.detail["states"] == {"0": "scheduled"}
    frames = [f for e in dumps[0].entries if e.sequence == 6 for f in e.frames]
    own = next(frame for frame in frames if "torch" not in (frame.file or "").split("/"))
    assert (finding.where.file, finding.where.line) == (own.file, own.line)
    last = finding.detail["last_calls"]["1"]
    assert (last["sequence"], last["state"]) == (5, "completed")
    assert "rank 1 never called all_reduce 6" in finding.title


def test_two_ranks_did_not_call(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(1), entry(2, "started", line=44)])
    dump(tmp_path, 1, [entry(1)])
    dump(tmp_path, 2, [entry(1)])
    (finding,) = hangs(tmp_path)
    assert finding.detail["ranks"] == [1, 2]
    assert finding.where.line == 44


def test_ranks_called_different_operations(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(1), entry(2, "started")], {"0": (0, 1)})
    dump(tmp_path, 1, [entry(1), entry(2, "started", "nccl:broadcast")], {"0": (0, 1)})
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == "different-operation"


def test_ranks_gave_different_sizes(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(1, "started")], {"0": (0, 1)})
    dump(tmp_path, 1, [entry(1, "started", sizes=((1023,),))], {"0": (0, 1)})
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == "different-sizes"
    assert "sizes" in finding.title


def test_uneven_exchange_is_no_mismatch(tmp_path: Path) -> None:
    for rank, size in ((0, 10), (1, 20)):
        sizes = ((size,),)
        calls = [entry(1, "started", "nccl:all_to_all", sizes=sizes)]
        dump(tmp_path, rank, calls, {"0": (0, 1)})
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == "network"


@pytest.mark.parametrize(
    ("state", "cause"), [("started", "network"), ("scheduled", "blocked-before-it")]
)
def test_all_called_with_equal_sizes(tmp_path: Path, state: str, cause: str) -> None:
    for rank in (0, 1):
        dump(tmp_path, rank, [entry(1), entry(2, state)], {"0": (0, 1)})
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == cause


def test_a_rank_without_a_dump_is_not_accused(tmp_path: Path) -> None:
    dump(tmp_path, 0, [entry(1), entry(2, "started")])
    dump(tmp_path, 1, [entry(1), entry(2, "started")])
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == "no-dump"
    assert finding.detail["without_dump"] == [2]
    assert "never called" not in finding.title


def test_the_cause_is_one_finding_and_not_what_follows_from_it(tmp_path: Path) -> None:
    """Rank 1 left; rank 0 waits for it in group a, and rank 2 for rank 0 in group b."""
    groups = {"a": (0, 1), "b": (0, 2)}
    dump(tmp_path, 0, [entry(1, group="a"), entry(2, "started", group="a")], groups)
    dump(tmp_path, 1, [entry(1, group="a")], groups)
    dump(tmp_path, 2, [entry(7, "started", group="b")], groups)
    (finding,) = hangs(tmp_path)
    assert (finding.detail["group"], finding.detail["ranks"]) == ("a", [1])


def test_groups_called_in_different_order(tmp_path: Path) -> None:
    groups = {"a": (0, 1), "b": (0, 1)}
    dump(tmp_path, 0, [entry(1, "started", group="a")], groups)
    dump(tmp_path, 1, [entry(1, "started", group="b")], groups)
    (finding,) = hangs(tmp_path)
    assert finding.detail["cause"] == "different-order"


def test_a_send_without_its_receive(tmp_path: Path) -> None:
    groups = {"0": (0, 1)}
    dump(tmp_path, 0, [entry(3, "started", "nccl:send 0->1", p2p=True)], groups)
    dump(tmp_path, 1, [entry(2, "completed", "nccl:recv 1<-0", p2p=True)], groups)
    (finding,) = hangs(tmp_path)
    assert finding.detail["ranks"] == [1]
    assert finding.detail["operation"] == "send 0->1"


def test_what_a_group_counts_as_completed_is(tmp_path: Path) -> None:
    """Some backends leave their entries as they were scheduled."""
    for rank in (0, 1):
        calls = [entry(1, "scheduled"), entry(2, "scheduled")]
        # The counter of one of them lags behind.
        dump(tmp_path, rank, calls, {"0": (0, 1)}, {"0": 2 - rank})
    result = judge_hang([read_flight_dump(path) for path in sorted(tmp_path.iterdir())])
    assert result.findings == ()
    assert result.checks[0].status == "clear"


def test_no_dumps() -> None:
    assert judge_hang([]).checks[0].status == "not_checked"


# --- dumps that are none -------------------------------------------------------------------------


class _Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch owned",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"entries": [], "pg_config": _Attack(), "comm_lib_version": ""}),
        pickle.dumps(_Attack()),
        b"\x80\x04cos\nsystem\n(S'touch owned'\ntR.",
        b"\x80\x02}q\x00(X\x07\x00\x00\x00entries",
        pickle.dumps([1, 2, 3]),
        pickle.dumps({"entries": "none"}),
        pickle.dumps({"segments": [], "device_traces": []}),
        b"{not json",
        b"",
    ],
    ids=["nested", "code", "opcode", "cut", "list", "text", "snapshot", "json", "empty"],
)
def test_a_dump_that_is_none_is_refused(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "dump_rank_0"
    path.write_bytes(content)
    with pytest.raises(NotATraceError) as raised:
        read_flight_dump(path)
    assert str(path) in str(raised.value)
    assert not (tmp_path / "owned").exists()


def test_code_in_a_dump_is_said(tmp_path: Path) -> None:
    path = tmp_path / "dump_rank_0"
    path.write_bytes(pickle.dumps({"entries": [_Attack()]}))
    with pytest.raises(NotATraceError, match=r"refused: it holds code \(\w+\.system\)"):
        read_flight_dump(path)


def test_a_bad_dump_leaves_the_others(shared: Path, tmp_path: Path, capsys: Capture) -> None:
    for rank in (0, 1):
        name = f"flight_recorder_hang_rank_{rank}"
        (tmp_path / name).write_bytes((shared / "h200x2" / name).read_bytes())
    bad = {"entries": [_Attack()], "pg_config": {}, "nccl_version": ""}
    (tmp_path / "dump_rank_2").write_bytes(pickle.dumps(bad))
    assert cli.main(["ranks", str(tmp_path)]) == 4
    out = capsys.readouterr().out
    assert "rank 1 never called all_reduce 6" in out
    assert "holds code" in out


def test_a_dump_as_json(tmp_path: Path) -> None:
    path = tmp_path / "fr_rank_3.json"
    path.write_text(json.dumps({"version": "2.10", "entries": [entry(1)], "pg_config": {}}))
    found = read_flight_dump(path)
    assert (found.rank, len(found.entries)) == (3, 1)


# --- the watchdog --------------------------------------------------------------------------------


@pytest.fixture
def dog(tmp_path: Path) -> Any:
    """A watchdog of 50 ms steps, with the barks it gave."""
    barked: list[Bark] = []
    event = threading.Event()

    def heard(bark: Bark) -> None:
        barked.append(bark)
        event.set()

    watchdog = Watchdog(WatchdogOptions(0.05, str(tmp_path / "hang")), rank=1, on_bark=heard)
    watchdog.start()
    yield watchdog, barked, event
    watchdog.close()


def test_a_step_that_takes_too_long_is_written_down(dog: Any, tmp_path: Path) -> None:
    watchdog, barked, event = dog
    watchdog.begin()
    assert event.wait(20)
    watchdog.end()
    (bark,) = barked
    assert bark.step == 0
    assert bark.seconds >= 0.05
    stacks = (tmp_path / "hang" / "stacks_rank_1.txt").read_text()
    assert "test_a_step_that_takes_too_long_is_written_down" in stacks
    assert bark.failures == ()


def test_steps_in_time_write_nothing(tmp_path: Path) -> None:
    now = [0.0]
    watchdog = Watchdog(WatchdogOptions(1.0, str(tmp_path / "hang")), clock=lambda: now[0])
    watchdog.start()
    for _ in range(20):
        watchdog.begin()
        now[0] += 0.9
        watchdog.end()
    watchdog.close()
    assert watchdog.barks == []
    assert not (tmp_path / "hang").exists()


def test_it_barks_once_a_step(dog: Any) -> None:
    watchdog, barked, event = dog
    for step in range(2):
        event.clear()
        watchdog.begin()
        assert event.wait(20)
        watchdog.end()
        assert len(barked) == step + 1


def test_a_disk_that_takes_nothing_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    event = threading.Event()
    options = WatchdogOptions(0.01, str(tmp_path / "file"))
    watchdog = Watchdog(options, on_bark=lambda bark: event.set())
    watchdog.start()
    watchdog.begin()
    assert event.wait(20)
    watchdog.close()
    assert watchdog.barks[0].stacks is None
    assert watchdog.barks[0].failures


@pytest.mark.parametrize("given", [0, -1, "soon", {"directory": "x"}, {"seconds": 1, "limit": 2}])
def test_wrong_options(given: Any) -> None:
    with pytest.raises(UsageError, match="watchdog"):
        WatchdogOptions.of(given)


def test_options() -> None:
    assert WatchdogOptions.of(3) == WatchdogOptions(3.0)
    assert WatchdogOptions.of({"seconds": 2, "directory": "d"}) == WatchdogOptions(2.0, "d")


def test_a_live_run_with_a_watchdog(tmp_path: Path) -> None:
    import time

    import torch

    from tracer import trace

    folder = tmp_path / "hang"
    options = {"seconds": 0.2, "directory": str(folder)}
    with trace(metrics=False, detail="light", watchdog=options) as t:
        with t.step("quick"):
            torch.ones(2).sum()
        with t.step("slow"):
            for _ in range(200):
                time.sleep(0.05)
                if list(folder.glob("stacks_*")):
                    break
    notes = [note for note in t.trace.notes if note.rule == "capture.step_too_long"]
    assert [note.detail["step"] for note in notes] == [1]
    (stacks,) = folder.glob("stacks_*.txt")
    assert "test_a_live_run_with_a_watchdog" in stacks.read_text()
