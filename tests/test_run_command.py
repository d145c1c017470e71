"""`tracer run`: the program runs as if nobody watched, and then there is a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tracer.commands.run import _program
from tracer.live.deferred import FirstUse
from tracer.program import Program
from tracer.store import is_run, load_run

ROOT = Path(__file__).resolve().parents[1]
MODEL = """
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
ids = torch.randint(9, (2, 4))
with torch.no_grad():
    for _ in range(3):
        model(ids)
"""


@dataclass
class Done:
    status: int
    out: str
    err: str


class Runner:
    """Runs a script plainly and under `tracer run`, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        self.environment.pop("KINETO_LOG_LEVEL", None)

    def script(self, code: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return name

    def plain(self, *words: str) -> Done:
        return self._run([sys.executable, *words])

    def traced(self, *words: str, options: tuple[str, ...] = ()) -> Done:
        return self._run([sys.executable, "-m", "tracer", "run", *options, *words])

    def report(self, *words: str) -> tuple[Done, dict[str, object]]:
        done = self.traced(*words, options=("--report", "report.json"))
        return done, json.loads((self.folder / "report.json").read_text())

    def _run(self, command: list[str]) -> Done:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def without_ours(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith("tracer: "))


def test_a_program_is_traced_and_reported(runner: Runner) -> None:
    script = runner.script(MODEL + "print('result', 42)")
    done = runner.traced(script)
    assert (done.status, done.out) == (0, "result 42\n")
    assert "STEPS" in done.err
    assert "Sequential" in done.err
    assert "Traceback" not in done.err


def test_report_and_run_are_written_where_asked(runner: Runner) -> None:
    script = runner.script(MODEL + "import os; os.chdir('/')")
    done = runner.traced(script, options=("--out", "run", "--report", "report.html"))
    assert done.status == 0
    assert "<html" in (runner.folder / "report.html").read_text()
    assert (runner.folder / "run" / "meta.json").is_file()
    assert [line.split(":")[0] for line in done.err.splitlines()] == ["tracer", "tracer"]


FAILING = """
import tracer.analyzers
def fail(trace):
    raise RuntimeError("a rule is broken")
tracer.analyzers.analyze = fail
"""


def test_a_run_is_saved_before_it_is_analysed(runner: Runner) -> None:
    script = runner.script(MODEL + FAILING)
    done = runner.traced(script, options=("--out", "run"))
    assert done.status == 0
    said = done.err.splitlines()
    assert said[0].startswith("tracer: run saved: ")
    assert said[1] == "tracer: no report could be made: RuntimeError: a rule is broken"
    assert len(load_run(runner.folder / "run").table("root_calls")) == 3


def test_a_run_that_cannot_be_saved_is_still_reported(runner: Runner) -> None:
    (runner.folder / "taken").write_text("a file")
    done = runner.traced(runner.script(MODEL), options=("--out", "taken"))
    assert "the run could not be saved" in done.err
    assert "STEPS" in done.err


def test_python_frames_are_recorded_from_the_first_module_call_on(runner: Runner) -> None:
    script = runner.script("import torch\nimport wave\n" + MODEL)
    done = runner.traced(script, options=("--detail", "full", "--out", "run"))
    run = load_run(runner.folder / "run")
    assert len(run.table("root_calls")) == 3
    assert any("forward" in name for name in run.names)
    assert not any("wave.py" in name for name in run.names)
    assert "STEPS" in done.err
    operators = runner.script("import torch\ntorch.ones(3) + 1", "operators.py")
    nothing = runner.traced(operators, options=("--detail", "full"))
    assert "called no module of torch; `--detail modules` also records" in nothing.err


SLOW_START = MODEL.replace("with torch", "import time; time.sleep(1.5)\nwith torch")
LONG = """
    import time
    end = time.time() + 3
    while time.time() < end:
        model(ids)
        time.sleep(0.01)
"""


def test_seconds_count_from_the_first_work_and_the_cut_is_said(runner: Runner) -> None:
    script = runner.script(SLOW_START + LONG)
    done = runner.traced(script, options=("--seconds", "1", "--report", "report.json"))
    report = json.loads((runner.folder / "report.json").read_text())
    (note,) = [n for n in report["integrity"]["notes"] if n["rule"] == "capture.limit"]
    assert report["integrity"]["status"] == "partial"
    assert report["window"]["wall_ns"] >= 1_000_000_000  # none of it went to the start
    assert note["calls_after"] > 0 and note["after_ns"] > 0
    assert "the recording ends at its limit (1 s)" in done.err


WORLD = """
import json, sys, os, __main__
names = {k: repr(v) for k, v in globals().items() if not k.startswith("_") or k in (
    "__name__", "__file__", "__package__", "__spec__", "__doc__", "__cached__")}
loaded = [m for m in ("torch", "numpy", "pandas") if m in sys.modules]
print(json.dumps([sys.argv, sys.path, os.getcwd(), loaded, __main__ is sys.modules[__name__],
                  __name__, __file__, repr(__package__), type(__builtins__).__name__,
                  sys.flags.safe_path if hasattr(sys.flags, "safe_path") else None]))
"""


def test_a_script_finds_the_world_as_without_us(runner: Runner) -> None:
    script = runner.script(WORLD, "inner/script.py")
    words = ("inner/script.py", "--detail", "full", "-m", "x", "--", "-h")
    assert script == words[0]
    plain, traced = runner.plain(*words), runner.traced(*words)
    assert traced.out == plain.out
    assert traced.status == plain.status == 0


def test_a_module_finds_the_world_as_without_us(runner: Runner) -> None:
    runner.script("", "package/__init__.py")
    runner.script(WORLD, "package/tool.py")
    words = ("-m", "package.tool", "--out", "elsewhere", "word")
    plain, traced = runner.plain(*words), runner.traced(*words)
    assert traced.out == plain.out
    assert traced.status == plain.status == 0


LATE = """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()
"""
ENDINGS = {
    "exit": ("import sys; sys.exit(3)", 3),
    "message": ("import sys; sys.exit('sorry')", 1),
    "nothing": ("raise SystemExit", 0),
    "error": ("def inner():\n    raise ValueError('boom')\n\ninner()", 1),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
    "syntax": ("this is not Python", 1),
    "terminated": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "hook": ("import sys; sys.excepthook = lambda *a: print('mine'); 1 / 0", 1),
    "thread": (LATE, 0),
    "atexit": ("import atexit; atexit.register(print, 'last')\nraise KeyboardInterrupt", -2),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_every_ending_is_the_programs_own(runner: Runner, name: str) -> None:
    code, status = ENDINGS[name]
    script = runner.script(code)
    plain, traced = runner.plain(script), runner.traced(script)
    assert plain.status == status
    assert traced.status == status
    assert traced.out == plain.out
    assert without_ours(traced.err) == plain.err


def test_an_error_after_work_keeps_status_traceback_and_recording(runner: Runner) -> None:
    script = runner.script(MODEL + "model(ids + 100)")
    plain = runner.plain(script)
    traced, report = runner.report(script)
    assert traced.status == plain.status == 1
    ours = [line for line in traced.err.splitlines() if "/tracer/" in line]
    assert all("module_ranges" in line for line in ours)  # the module call that it went through
    assert plain.err.splitlines()[-1] in traced.err.splitlines()
    integrity = report["integrity"]
    assert isinstance(integrity, dict)
    assert integrity["status"] == "partial"
    assert "capture.interrupted" in {note["rule"] for note in integrity["notes"]}


def test_work_of_a_thread_that_outlives_main_is_recorded(runner: Runner) -> None:
    code = MODEL + "import threading\nthreading.Thread(target=lambda: model(ids)).start()\n"
    _, report = runner.report(runner.script(code))
    steps = report["steps"]
    assert isinstance(steps, list)
    assert len(steps) >= 4


def test_a_terminated_program_leaves_its_run(runner: Runner) -> None:
    code = MODEL + "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    done, report = runner.report(runner.script(code))
    assert done.status == -signal.SIGTERM
    notes = report["integrity"]
    assert isinstance(notes, dict)
    assert "Terminated" in str(notes)


def test_the_programs_own_handler_of_signals_wins(runner: Runner) -> None:
    code = """
    import os, signal, sys
    signal.signal(signal.SIGTERM, lambda *a: (print("handled"), sys.exit(5)))
    os.kill(os.getpid(), signal.SIGTERM)
    """
    done = runner.traced(runner.script(code))
    assert (done.status, done.out) == (5, "handled\n")


def test_a_forked_child_reports_nothing(runner: Runner) -> None:
    code = """
    import os
    pid = os.fork()
    if pid == 0:
        print("child", flush=True)
    else:
        os.waitpid(pid, 0)
        print("parent")
    """
    done = runner.traced(runner.script(code))
    assert done.out == "child\nparent\n"
    assert done.err.count("nothing to report") == 1


def test_processes_started_by_the_program_find_its_main(runner: Runner) -> None:
    code = """
    import multiprocessing

    def double(x):
        return 2 * x

    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [1, 2]))
    """
    done = runner.traced(runner.script(code))
    assert (done.status, done.out) == (0, "[2, 4]\n")


def test_a_trace_of_the_programs_own_takes_the_place_of_ours(runner: Runner) -> None:
    code = MODEL + (
        "from tracer import trace\n"
        "with trace() as t:\n"
        "    model(ids)\n"
        "print(len(t.analysis.steps), [n.rule for n in t.trace.notes if 'capture' in n.rule])\n"
    )
    done, report = runner.report(runner.script(code))
    assert done.out == "1 []\n"
    assert "a trace that the program started" in str(report["integrity"])


def test_a_wrong_call_says_what_to_do(runner: Runner) -> None:
    missing = runner.traced("nowhere.py")
    assert (missing.status, missing.out) == (2, "")
    assert missing.err == "tracer: nowhere.py: no such script; a module runs with -m nowhere\n"
    runner.script(MODEL, "jobs/train.py")
    below = runner.traced("train.py")
    assert below.err == "tracer: train.py: no such script; did you mean jobs/train.py?\n"
    runner.script(MODEL, ".venv/tune.py")
    runner.script(MODEL, ".tunes.py")
    hidden = runner.traced("tune.py")
    assert hidden.err == "tracer: tune.py: no such script; a module runs with -m tune\n"
    runner.script(MODEL, "generate.py")
    near = runner.traced("genrate.py")
    assert near.err == "tracer: genrate.py: no such script; did you mean generate.py?\n"
    no_terminal = runner.traced(runner.script(MODEL), options=("--open",))
    assert (no_terminal.status, no_terminal.out) == (2, "")
    assert "--open needs a terminal" in no_terminal.err and "--out" in no_terminal.err
    for options, words in (
        (("--seconds", "-3"), "--seconds -3"),
        (("--report", "nowhere/a.html"), "nothing can be written in"),
        (("--out", "script.py/a"), "nothing can be written in"),
    ):
        refused = runner.traced(runner.script(MODEL), options=options)
        assert (refused.status, refused.out) == (2, "")
        assert words in refused.err and len(refused.err.splitlines()) == 1
    nothing = runner.traced()
    assert nothing.status == 2
    assert "tracer run train.py" in nothing.err


def test_words_of_the_program_are_not_ours() -> None:
    from argparse import ArgumentParser

    from tracer.commands.run import add_arguments

    parser = ArgumentParser()
    add_arguments(parser)

    def parsed(*words: str) -> Program:
        return _program(parser.parse_args(words))

    assert parsed("a.py", "--detail", "x") == Program("a.py", ("--detail", "x"))
    assert parsed("--detail", "full", "a.py", "-m", "b") == Program("a.py", ("-m", "b"))
    assert parsed("-m", "a.b", "--out", "c") == Program("a.b", ("--out", "c"), is_module=True)
    assert parsed("--", "a.py", "--", "-h") == Program("a.py", ("--", "-h"))
    assert parser.parse_args(["--detail", "light", "a.py"]).detail == "light"


def test_the_finder_of_torch_leaves_no_trace() -> None:
    """torch is loaded here: the action comes at once, and nothing stays in the import system."""
    import torch

    acted: list[bool] = []
    before = list(sys.meta_path)
    watch = FirstUse(lambda: acted.append(True))
    watch.watch()
    watch.close()
    assert sys.meta_path == before
    if not torch.version.cuda:
        assert acted == [True]


def test_where_there_may_be_a_gpu_the_first_module_call_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from torch import nn

    import tracer.live.deferred as deferred

    monkeypatch.setattr(deferred, "_DEVICE_FILES", ("/",))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    queued: list[object] = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    acted: list[str] = []
    watch = FirstUse(lambda: acted.append("began"))
    watch.watch()
    assert (acted, len(queued)) == ([], 1)
    assert torch.equal(nn.Identity()(torch.ones(2)), torch.ones(2))
    nn.Identity()(torch.ones(2))
    assert acted == ["began"]
    queued[0]()  # type: ignore[operator]
    assert acted == ["began"]
    watch.close()


def test_ranks_of_a_job_that_ended_its_group_do_not_overwrite_each_other(runner: Runner) -> None:
    script = runner.script(MODEL)
    (runner.folder / "runs").mkdir()
    for rank in ("0", "1"):
        runner.environment.update(RANK=rank, WORLD_SIZE="2")
        options = ("--out", "runs/job", "--report", "runs/a.html")
        assert runner.traced(script, options=options).status == 0
    assert sorted(p.name for p in (runner.folder / "runs/job").iterdir()) == ["rank0", "rank1"]
    pages = sorted(path.name for path in (runner.folder / "runs").glob("*.html"))
    assert pages == ["a.rank0.html", "a.rank1.html"]


@pytest.mark.parametrize("name", ["", "train_step"])
def test_ranges_of_a_script_are_its_steps(runner: Runner, name: str) -> None:
    ranged = f"torch.profiler.record_function({name!r})" if name else "torch.no_grad()"
    calls = f"for _ in range(3):\n    with {ranged}:\n        model(ids), model(ids)\n"
    _, report = runner.report(runner.script(MODEL.split("with torch.no_grad")[0] + calls))
    steps = report["steps"]
    assert isinstance(steps, list)
    assert [(step["name"], step["phase"]) for step in steps[-3:]] == 3 * [
        (name, "training") if name else ("Sequential", "forward")
    ]
    assert len(steps) == (3 if name else 6)


def test_an_option_behind_the_script_is_the_programs_and_mentioned(runner: Runner) -> None:
    script = runner.script("import sys; print(sys.argv[1:])" + MODEL)
    done = runner.traced(script, "--detail", "full", options=("--out", "runs/a"))
    assert done.out == "['--detail', 'full']\n"
    assert "--detail full stands behind the program" in done.err


def test_a_run_in_the_place_of_another_says_where_that_is_kept(runner: Runner) -> None:
    script = runner.script(MODEL)
    first = runner.traced(script, options=("--out", "runs/a"))
    assert "kept" not in first.err
    again = runner.traced(script, options=("--out", "runs/a"))
    kept = runner.folder / "runs" / ".old" / "a"
    assert f"runs/a; the run that was there is kept as {kept}\n" in again.err
    assert is_run(kept)
