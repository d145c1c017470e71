"""`tracer diff`: what it reads, what it prints where, its exit statuses; a planted line, live."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from tests.test_cli import run_in_process, write_trace
from tests.test_graph_maps import captured, replayed
from tracer import cli
from tracer.analyzers.graphs.maps import only_maps
from tracer.commands.diff import is_slower, parse_percent
from tracer.diff_analysis import Measure
from tracer.errors import UsageError
from tracer.sources import open_source
from tracer.store import save_run

Capture = pytest.CaptureFixture[str]


def trace(path: Path, us: float, steps: int = 4) -> Path:
    """A small trace of steps whose kernel takes so long."""
    write_trace(path, steps)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event["cat"] == "kernel":
            event["dur"] = us
        if event["cat"] == "user_annotation":
            event["dur"] = 100 + us
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return str(trace(tmp_path / "a.json", 200)), str(trace(tmp_path / "b.json", 300))


def test_the_answer_is_the_first_line(pair: tuple[str, str], capsys: Capture) -> None:
    assert cli.main(["diff", *pair, "--width", "100"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("B is 33 % slower a step: 300 -> 400 us; ")
    assert err == ""


def test_json_is_one_document(pair: tuple[str, str], capsys: Capture) -> None:
    assert cli.main(["diff", *pair, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tracer.diff/1"
    assert [document[side]["path"] for side in ("before", "after")] == list(pair)
    assert document["phases"][0]["step"]["change_ns"] == 100_000


def test_runs_and_directories_are_read_as_report_reads_them(
    pair: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    run, folder = tmp_path / "run", tmp_path / "folder"
    save_run(open_source(pair[0]), run)
    folder.mkdir()
    shutil.copy(pair[1], folder)
    (folder / "notes.txt").write_text("no recording")
    (folder / "job.out").touch()
    assert cli.main(["diff", str(run), str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["phases"][0]["step"]["change_ns"] == 100_000


@pytest.mark.parametrize(
    ("allowed", "status"), [("5%", 1), ("33.2 %", 1), ("33.4%", 0), ("50%", 0)]
)
def test_a_slowdown_beyond_the_limit_fails(
    allowed: str, status: int, pair: tuple[str, str], capsys: Capture
) -> None:
    assert cli.main(["diff", *pair, "--max-slowdown", allowed]) == status
    out, err = capsys.readouterr()
    assert out  # the report is made all the same
    told = f"tracer: --max-slowdown {allowed.replace(' ', '')}: a step is 33 % slower in B"
    assert (told in err) == bool(status)
    assert err.count("\n") == status
    assert cli.main(["diff", *reversed(pair), "--max-slowdown", allowed]) == 0


def test_the_limit_itself_is_allowed() -> None:
    assert not is_slower(Measure(1_000, 1_050), Fraction(5, 100))
    assert is_slower(Measure(1_000, 1_051), Fraction(5, 100))
    assert not is_slower(Measure(1_000, 900), Fraction(0))
    assert is_slower(Measure(0, 1), Fraction(1))


@pytest.mark.parametrize("text", ["5", "0.05", "-5%", "five%", "%", "nan%", "1e3%", ""])
def test_a_limit_is_a_percentage(text: str) -> None:
    with pytest.raises(UsageError, match="write a percentage, for example 5%"):
        parse_percent(text)


def test_what_could_not_be_judged_is_named_and_fails_no_gate(
    pair: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    empty = {"traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0",
                              "pid": 1, "tid": 1, "ts": 0, "dur": 10}]}  # fmt: skip
    (tmp_path / "other.json").write_text(json.dumps(empty))
    status = cli.main(["diff", pair[0], str(tmp_path / "other.json"), "--max-slowdown", "5%"])
    assert status == 0
    assert "--max-slowdown was checked, though not like with like: " in capsys.readouterr().err


def test_several_recordings_are_wrong_usage(
    pair: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    assert cli.main(["diff", str(tmp_path), pair[1]]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "holds 2 recordings (a.json, b.json) that are not the ranks of one job; give" in err


def test_one_recording_alone_is_wrong_usage(pair: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["diff", pair[0]])
    assert exit_info.value.code == 2


def test_without_a_recording_there_is_no_report(
    pair: tuple[str, str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "none").mkdir()
    for path in ("missing.json", "none"):
        assert cli.main(["diff", pair[0], str(tmp_path / path)]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1


def test_damaged_input_is_4_and_a_gate_comes_first(pair: tuple[str, str], capsys: Capture) -> None:
    whole = Path(pair[1]).read_text()
    Path(pair[1]).write_text(whole[: int(0.9 * len(whole))])
    assert cli.main(["diff", *pair]) == 4
    assert "Not like with like (B is damaged, cut or incomplete)" in capsys.readouterr().out
    assert cli.main(["diff", *pair, "--max-slowdown", "1%"]) == 1


def test_captures_of_graphs_are_taken_from_beside(tmp_path: Path, capsys: Capture) -> None:
    save_run(only_maps(captured()), tmp_path / "warmup")
    save_run(replayed(4), tmp_path / "run")
    told = []
    for options in ([], ["--capture", str(tmp_path / "warmup")]):
        paths = [str(tmp_path / "run")] * 2
        assert cli.main(["diff", *paths, "--json", *options]) == 0
        (phase,) = json.loads(capsys.readouterr().out)["phases"]
        told.append(phase["breakdown"]["groups"]["attention"]["before_ns"])
    assert told[0] == 0 < told[1]


def test_the_command_loads_no_torch(pair: tuple[str, str]) -> None:
    code = (
        "import sys; from tracer import cli; "
        f"cli.main(['diff', {pair[0]!r}, {pair[1]!r}]); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


PROGRAM = """
import sys, time
import torch
from torch import nn
from tracer import trace

torch.set_num_threads(1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(),
                                                  nn.Linear(256, 64)) for _ in range(2))
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

def bookkeeping():
    until = time.perf_counter() + 0.03
    while time.perf_counter() < until:
        pass

model, x = Model().eval(), torch.randn(4, 64)
with torch.no_grad():
    model(x)
    with trace(metrics=False) as t:
        for _ in range(8):
            model(x)
            if sys.argv[2] == "slow":
                bookkeeping()
t.save(sys.argv[1])
"""


def test_a_planted_line_and_its_removal_live(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    for name in ("slow", "fast"):
        done = subprocess.run([sys.executable, str(tmp_path / "program.py"), str(tmp_path / name),
                               name], capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
    told = run_in_process("diff", tmp_path / "slow", tmp_path / "fast")
    assert told.returncode == 0, told.stderr
    answer = " ".join(told.stdout.partition("\nA: ")[0].split())
    assert " % faster a" in answer
    assert "from start to start" in answer
    assert "between the steps -" in answer
    assert "gone: host work in bookkeeping" in answer
    assert "program.py:" in answer
    assert "A's report predicted" in answer
    gated = run_in_process("diff", tmp_path / "fast", tmp_path / "slow", "--max-slowdown", "20%")
    assert gated.returncode == 1
    assert "from start to start is" in gated.stderr
