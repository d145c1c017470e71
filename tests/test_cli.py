"""The command line: exit statuses, one-line errors, what goes to stdout and what to stderr."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.make_traces import TraceMaker
from tracer import cli
from tracer.analyzers import analyze
from tracer.commands import COMMANDS, load_command
from tracer.commands import report as report_command
from tracer.commands.exits import NO_REPORT
from tracer.commands.gates import RULES
from tracer.commands.open import readable_files
from tracer.errors import CaptureError
from tracer.sources import find_sources, open_source
from tracer.store import save_run

Capture = pytest.CaptureFixture[str]


def kineto_events(steps: int = 3, broken: int = 0) -> list[dict[str, Any]]:
    """Steps of one kernel each, with a host that is late."""
    events: list[dict[str, Any]] = []
    for i in range(steps):
        at = 1000.0 * i
        host = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": at, "dur": 900}
            | {"args": {"External id": 100 + i}},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 10, "dur": 100}
            | {"args": {"External id": i + 1}},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 20, "dur": 10}
            | {"args": {"correlation": i + 1, "External id": i + 1}},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": at + 40}
            | {"dur": 200}
            | {"args": {"correlation": i + 1, "device": 0, "stream": 7, "External id": i + 1}},
        ]
    return events


def write_trace(path: Path, steps: int = 3) -> Path:
    """A small trace of the PyTorch profiler."""
    document = {
        "deviceProperties": [{"id": 0, "name": "Test GPU"}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": kineto_events(steps),
    }
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json")


def run_in_process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tracer", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )


def test_help_teaches(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    for taught in (
        "examples:",
        "exit status:",
        "tracer report",
        "with trace() as t",
        "TRACER_DEBUG",
    ):
        assert taught in text
    for name in COMMANDS:
        assert f"\n    {name} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_name_and_help(name: str, capsys: Capture) -> None:
    command = load_command(name)
    assert name == command.NAME
    assert command.HELP
    with pytest.raises(SystemExit) as exit_info:
        cli.main([name, "--help"])
    assert exit_info.value.code == 0
    assert command.HELP[1:60].split("\n")[0][:30] in " ".join(capsys.readouterr().out.split())


def test_the_readme_names_commands_that_exist() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^tracer (\w+)|`tracer (\w+)", text, re.MULTILINE))
    commands = {one or other for one, other in named}
    assert "report" in commands
    assert commands <= set(COMMANDS)


def test_no_command_is_wrong_usage(capsys: Capture) -> None:
    assert cli.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: tracer" in err


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["report", "--nonsense"], ["report", "x", "--width", "wide"]],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_report_without_a_path_is_2(capsys: Capture) -> None:
    assert cli.main(["report"]) == 2
    assert "PATH" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["report", ""],
        ["report", "T", "--html", ""],
        ["report", "T", "--capture", " "],
        ["report", "T", "--fail-on", ""],
        ["report", "T", "--fail-on", "sync.*", " "],
        ["ranks", ""],
        ["ranks", "T", "--fail-on", ""],
        ["diff", "T", ""],
        ["open", "T", ""],
        ["export", "", "--to", "perfetto"],
        ["export", "T", "--to", "perfetto", "--out", ""],
        ["plan", ""],
        ["run", ""],
        ["run", "--", ""],
        ["run", "-m", ""],
        ["run", "--out", "", "x.py"],
    ],
)
def test_an_empty_word_is_no_path_and_no_rule(
    words: list[str],
    trace_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([str(trace_file) if word == "T" else word for word in words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "given is empty" in err
    assert [path.name for path in tmp_path.iterdir()] == [trace_file.name]


def test_the_text_report(trace_file: Path, capsys: Capture) -> None:
    assert cli.main(["report", str(trace_file), "--width", "90"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[0].startswith("Each step waits for the host: the GPU works 200 of")
    assert "Test GPU" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 90


def test_the_json_report(trace_file: Path, capsys: Capture) -> None:
    assert cli.main(["report", "--json", str(trace_file)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert report["schema"] == "tracer.report/1"
    assert report["source"]["path"] == str(trace_file)
    assert report["window"]["kernels"] == 3
    assert [step["name"] for step in report["steps"]] == [f"ProfilerStep#{i}" for i in range(3)]


def test_the_page_is_written_beside_the_report(
    trace_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", str(trace_file), "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Each step waits")
    assert err == f"tracer: wrote {page}\n"
    assert page.read_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_1(
    trace_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert cli.main(["report", str(trace_file), "--html", str(tmp_path / "no" / "page.html")]) == 1
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.json", None, "no such file"),
        ("empty.json", b"", "empty"),
        ("page.html", b"<!doctype html><html></html>", "HTML"),
        ("text.txt", b"hello\n", "no JSON"),
        ("lfs.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("other.json", b'{"a": 1}', "traceEvents"),
        ("nothing.json", b'{"traceEvents": []}', ""),
    ],
)
def test_what_is_no_trace_is_3_with_one_line(
    name: str, content: bytes | None, said: str, tmp_path: Path, capsys: Capture
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["report", str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("tracer: ")
    assert str(path) in err
    assert said in err
    assert "Traceback" not in err


def test_a_cut_file_is_reported_with_4(tmp_path: Path, capsys: Capture) -> None:
    whole = write_trace(tmp_path / "whole.json", steps=50).read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(len(whole) * 0.6)])
    assert cli.main(["report", str(cut)]) == 4
    out = capsys.readouterr().out
    assert out.startswith("As far as recorded, ")
    assert "trace.truncated" in out
    assert cli.main(["report", "--json", str(cut)]) == 4
    assert json.loads(capsys.readouterr().out)["integrity"]["status"] == "partial"


def test_a_gate_fails_with_1(
    trace_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_findings(monkeypatch, "sync.hidden")
    assert cli.main(["report", str(trace_file), "--fail-on", "fallback.*", "sync.*"]) == 1
    assert "--fail-on: found sync.hidden" in capsys.readouterr().err
    assert cli.main(["report", str(trace_file), "--fail-on", "fallback.*"]) == 0
    assert cli.main(["report", "--fail-on", "sync.hidden", str(trace_file)]) == 1


def test_a_gate_says_in_which_recording(
    trace_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _with_findings(monkeypatch, "sync.hidden")
    for name in ("before", "after"):
        shutil.copy(trace_file, tmp_path / f"{name}.json")
    assert cli.main(["report", str(tmp_path), "--fail-on", "sync.*"]) == 1
    assert "--fail-on: found sync.hidden in after.json, before.json" in capsys.readouterr().err


def _with_findings(monkeypatch: pytest.MonkeyPatch, *rules: str) -> None:
    """Let every analysis find these rules, and not look at two others, or in part."""
    from dataclasses import replace

    from tracer.findings import Check, Finding

    real = report_command.analyse_source
    findings = tuple(Finding(rule, "warning", "planted", 1) for rule in rules)
    checks = (
        Check("gap.gc", "not_checked", "no record of collections"),
        Check("gap.host", "partial", "in the first steps"),
        Check("gap.input", "clear"),
    )
    monkeypatch.setattr(
        report_command,
        "analyse_source",
        lambda path, captures=(): replace(real(path, captures), findings=findings, checks=checks),
    )


def test_a_gate_that_could_not_be_looked_at_is_said(
    trace_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_findings(monkeypatch)
    assert cli.main(["report", str(trace_file), "--fail-on", "gap.gc"]) == 0
    assert "gap.gc was not checked: no record of collections" in capsys.readouterr().err
    assert cli.main(["report", str(trace_file), "--fail-on", "gap.*"]) == 0
    said = capsys.readouterr().err
    assert "gap.host was checked in part: in the first steps" in said
    assert "gap.compile was not checked" in said
    assert "gap.input" not in said


def test_every_rule_that_is_judged_can_be_a_gate() -> None:
    judged = {check.rule for check in analyze(TraceMaker().build()).checks}
    assert {"gap.host", "loop.between", "training.recompute"} <= judged
    assert judged <= set(RULES)


def test_a_gate_that_matches_no_rule_is_2(trace_file: Path, capsys: Capture) -> None:
    assert cli.main(["report", str(trace_file), "--fail-on", "snyc.*"]) == 2
    assert "snyc.*" in capsys.readouterr().err


def test_several_files_and_directories(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write_trace(folder / "a.json")
    write_trace(folder / "b.json.gz", steps=2)
    (folder / "README.md").write_text("about these\n")
    assert cli.main(["report", "--json", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert [len(report["steps"]) for report in json.loads(out)["reports"]] == [3, 2]
    assert "left out, no recordings: README.md" in err
    assert cli.main(["report", str(folder / "a.json"), str(folder / "b.json.gz")]) == 0
    assert capsys.readouterr().out.count("WHERE THE TIME GOES") == 2


def test_one_unreadable_file_among_several_is_4(tmp_path: Path, capsys: Capture) -> None:
    good, bad = write_trace(tmp_path / "good.json"), tmp_path / "bad.json"
    bad.write_bytes(b"")
    assert cli.main(["report", "--json", str(bad), str(good)]) == 4
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["integrity"]["status"] == "partial"
    assert report["integrity"]["notes"][0]["rule"] == "trace.empty"
    assert len(report["reports"]) == 1
    assert err.count("\n") == 1
    assert cli.main(["report", str(bad), str(tmp_path / "none.json")]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


def test_a_directory_without_recordings_is_3(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    assert cli.main(["report", str(tmp_path)]) == 3
    assert "no recording in this directory" in capsys.readouterr().err


def test_recordings_of_the_directories_in_a_directory_are_found(
    trace_file: Path, tmp_path: Path
) -> None:
    """As profilers write them, a directory for each time; other files there say nothing."""
    text = trace_file.read_bytes()
    for name in ("all/1/a.json", "all/2/a.json", "all/2/deeper/a.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    (tmp_path / "all/2/config.json").write_text('{"model": "x"}')
    found = find_sources(tmp_path / "all")
    assert [str(path.relative_to(tmp_path)) for path in found] == ["all/1/a.json", "all/2/a.json"]


def test_what_is_given_twice_is_reported_once(
    trace_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "all/1").mkdir(parents=True)
    inner = tmp_path / "all/1/a.json"
    inner.write_bytes(trace_file.read_bytes())
    paths = [str(inner), str(tmp_path / "all"), str(tmp_path / "all/1")]
    assert cli.main(["report", "--json", *paths]) == 0
    assert json.loads(capsys.readouterr().out)["source"]["path"] == str(inner)
    assert readable_files(paths) == [inner]


def test_a_saved_run_is_reported_as_one(trace_file: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "runs" / "a"
    save_run(open_source(trace_file), run)
    assert find_sources(run) == [run]
    assert find_sources(run.parent) == [run]
    assert cli.main(["report", "--json", str(run)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["source"]["kind"] == "run"
    assert report["source"]["path"] == str(run)
    assert cli.main(["report", "--json", str(trace_file)]) == 0
    other = json.loads(capsys.readouterr().out)
    for key in ("window", "breakdown", "steps", "kernels"):
        assert report[key] == other[key]


def _command(run: Callable[[argparse.Namespace], int], **more: Any) -> Any:
    return SimpleNamespace(
        NAME="report", HELP="x", add_arguments=report_command.add_arguments, run=run, **more
    )


def _raise(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def _main_with(monkeypatch: pytest.MonkeyPatch, command: Any) -> int:
    monkeypatch.setattr(cli, "COMMANDS", ("report",))
    monkeypatch.setattr(cli, "load_command", lambda name: command)
    return cli.main(["report"])


def test_an_unexpected_error_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.delenv("TRACER_DEBUG", raising=False)
    command = _command(_raise(ZeroDivisionError("two\nlines \x1b[31m")))
    assert _main_with(monkeypatch, command) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "tracer: unexpected ZeroDivisionError: two lines ␛[31m "
        "(a fault of tracer: TRACER_DEBUG=1 shows the traceback)\n"
    )


def test_the_traceback_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        _main_with(monkeypatch, _command(_raise(ZeroDivisionError())))


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (CaptureError("busy"), 3)]
)
def test_known_ends(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert _main_with(monkeypatch, _command(_raise(error))) == status
    assert capsys.readouterr().err == ("tracer: busy\n" if status == 3 else "")


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), SystemExit(7)])
def test_a_traced_program_keeps_its_end(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)):
        _main_with(monkeypatch, _command(_raise(error), TRANSPARENT=True))


def test_a_closed_pipe_is_quiet(trace_file: Path) -> None:
    code = (
        "import os, sys; from tracer.cli import main\n"
        "reader, writer = os.pipe(); os.close(reader); os.dup2(writer, 1)\n"
        f"sys.exit(main(['report', {str(trace_file)!r}]))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert ended.returncode == cli.BROKEN_PIPE


def test_a_file_cut_before_its_device_rows_is_damaged_input(tmp_path: Path) -> None:
    """Nothing can be said of the device, and the file is cut all the same."""
    document = json.loads(write_trace(tmp_path / "whole.json").read_text())
    events = document["traceEvents"]
    hosts = [event for event in events if event["cat"] != "kernel"]
    document["traceEvents"] = hosts + [event for event in events if event["cat"] == "kernel"]
    text = json.dumps(document)
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.index('"kernel"')])
    assert cli.main(["report", str(cut), "--json"]) == 4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_a_full_disk_is_no_fault_of_ours(trace_file: Path) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tracer", "report", str(trace_file)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == NO_REPORT
    assert ended.stderr.startswith("tracer: the report could not be written")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}])
def test_a_terminal_of_ascii_gets_ascii(locale: dict[str, str], trace_file: Path) -> None:
    ended = run_in_process("report", trace_file, **locale)
    assert ended.returncode == 0
    assert ended.stdout.isascii()
    assert "|?" in ended.stdout or "|:" in ended.stdout or "|l" in ended.stdout


def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.commands.output import wants_color

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert wants_color()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not wants_color()


def test_progress_shows_only_long_work_to_somebody(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from tracer.commands import output

    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("tracer.commands.output.time.monotonic", lambda: now.s)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with output.Progress("reading x") as progress:
        progress(1, 10)
        assert capsys.readouterr().err == ""
        now.s += 1.5
        progress(5, 10)
        progress(6, 10)  # at once after the other: not drawn
        assert capsys.readouterr().err == "\r\x1b[Kreading x: 50 %"
    assert capsys.readouterr().err == "\r\x1b[K"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with output.Progress("reading x") as progress:
        now.s += 5
        progress(5, 10)
    assert capsys.readouterr().err == ""


def test_a_line_is_said_with_its_end_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.commands import output

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, encoding="utf-8"))
    output.say("report written to a.json")
    # Two ranks that share a pipe: what comes in two writes comes apart.
    assert [text for text in written if text] == ["tracer: report written to a.json\n"]


_HEAVY = "torch textual opentelemetry transformers"


@pytest.mark.parametrize(
    "code",
    [
        "import tracer",
        "import tracer.cli; tracer.cli.build_parser()",
        "import tracer.cli; assert tracer.cli.main(['report', PATH]) == 0",
        "import tracer.cli; assert tracer.cli.main(['report', PATH, '--json']) == 0",
        "import tracer.cli as c; assert c.main(['report', PATH, '--html', PATH + '.html']) == 0",
    ],
)
def test_reading_and_reporting_load_nothing_heavy(code: str, trace_file: Path) -> None:
    program = (
        f"PATH = {str(trace_file)!r}\n{code}\nimport sys\n"
        f"loaded = set({_HEAVY!r}.split()) & set(sys.modules)\nassert not loaded, loaded\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_command_line_loads_no_tables_before_it_needs_them() -> None:
    program = (
        "import sys, tracer.cli\ntracer.cli.build_parser()\n"
        "loaded = {'pandas', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_the_recording_of_the_demo_is_found_in_the_package() -> None:
    from importlib.resources import files

    from tracer.commands.demo import RECORDING

    assert (files("tracer.recordings") / RECORDING).is_file()


@pytest.mark.slow
def test_the_demo_runs(capsys: Capture) -> None:
    assert cli.main(["demo", "--width", "100"]) == 0
    out = capsys.readouterr().out
    first, second = out.split("\n2. From a file")
    assert "16 decode, 1 prefill" in first
    assert "32" in second
    assert "What to try next" in second


def test_synthetic_traces_are_made_in_order() -> None:
    maker = TraceMaker()
    maker.launch("late", start=50, run=(60, 70), operator="aten::mm")
    maker.copy("host_to_device", 1024, start=5, run=(10, 20))
    maker.annotation("step", 0, 100)
    trace = maker.build()
    assert trace.events["name"].tolist() == [
        "step",
        "cudaMemcpyAsync",
        "Memcpy host_to_device",
        "aten::mm",
        "cudaLaunchKernel",
        "late",
    ]
    assert trace.table("copies")["event"].tolist() == [2]
    assert trace.events["correlation"].tolist() == [-1, 2, 2, -1, 1, 1]


def test_an_unknown_option_gets_the_usage_of_its_command(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", "x.json", "--jsn"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: tracer report" in said and "did you mean --json?" in said


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["repot", "x.json"], "report"),
        (["run", "--detail", "lihgt", "x.py"], "light"),
        (["export", "x.json", "--to", "perfeto"], "perfetto"),
    ],
)
def test_a_misspelt_choice_says_what_was_meant(
    words: list[str], meant: str, capsys: Capture
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"(did you mean {meant}?)\n")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("sync.hiden", " (did you mean sync.hidden?)"),
        ("snyc.*", " (did you mean sync.*?)"),
        ("SYNC.HIDDEN", " (did you mean sync.hidden?)"),
        ("Trace.*", " (did you mean trace.*?)"),
        ("trace", " (did you mean trace.*?)"),
        ("x", ""),
    ],
)
@pytest.mark.parametrize("command", ["report", "ranks"])
def test_a_misspelt_rule_is_no_gate(
    command: str, pattern: str, meant: str, capsys: Capture, tmp_path: Path
) -> None:
    assert cli.main([command, str(tmp_path), "--fail-on", pattern]) == 2
    assert f"--fail-on {pattern}: no such rule{meant}; " in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["sync.*,fallback.*", "trace.*, capture.*"])
@pytest.mark.parametrize("command", ["report", "ranks"])
def test_rules_with_a_comma_between_them_are_no_gate(
    command: str, pattern: str, capsys: Capture, tmp_path: Path
) -> None:
    assert cli.main([command, str(tmp_path), "--fail-on", pattern]) == 2
    first, second = (part.strip() for part in pattern.split(","))
    said = capsys.readouterr().err
    assert said.endswith(f"give each by itself: --fail-on '{first}' --fail-on '{second}'\n")


def test_a_recording_in_the_place_of_a_command_is_meant_to_be_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("after.json", "my trace.json"):
        with pytest.raises(SystemExit):
            cli.main([name])
        assert "did you mean" not in capsys.readouterr().err
        write_trace(tmp_path / name)
        with pytest.raises(SystemExit) as ended:
            cli.main([name, "--json"])
        assert ended.value.code == 2
        said = f"(did you mean tracer report {shlex.quote(name)}?)\n"
        assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("command", ["diff", "ranks"])
def test_who_writes_no_page_says_what_it_writes(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "a", "b", "--html", "x.html"])
    said = f"(tracer {command} writes text, or JSON with --json)\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_recording_is_meant_before_a_page_of_that_name(tmp_path: Path, capsys: Capture) -> None:
    for name in ("after.json.gz", "after.html", "afetr.txt"):
        (tmp_path / name).touch()
    for typed, meant in (("afetr.json", "after.json.gz"), ("afetr.html", "after.html")):
        assert cli.main(["report", str(tmp_path / typed)]) == 3
        assert f"(did you mean {meant}?)" in capsys.readouterr().err


def test_many_files_that_are_no_recordings_are_counted(
    trace_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    for number in range(50):
        (tmp_path / f"n{number:02}.txt").write_text("hello\n")
    assert cli.main(["report", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert err.endswith("no recordings: n00.txt, n01.txt, n02.txt, n03.txt, n04.txt, n05.txt, "
                        "n06.txt, n07.txt and 42 more\n")  # fmt: skip


@pytest.mark.parametrize("command", ["report", "open", "ranks"])
def test_a_misspelt_path_says_what_lies_beside_it(
    command: str, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "decode.json.gz").touch()
    assert cli.main([command, str(tmp_path / "decod.json.gz")]) == 3
    said = "decod.json.gz: there is no such file or directory (did you mean decode.json.gz?)"
    assert said in capsys.readouterr().err
    (tmp_path / ".cache.json").touch()
    for far in ("rank7.json.gz", "cache.json", "ca", ".rank7"):  # the ending is no likeness
        assert cli.main([command, str(tmp_path / far)]) == 3
        assert "did you mean" not in capsys.readouterr().err
    assert cli.main([command, str(tmp_path / ".cach.json")]) == 3
    assert "(did you mean .cache.json?)" in capsys.readouterr().err


def test_runs_one_folder_deeper_are_found_and_empty_files_left_out(
    trace_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    save_run(open_source(trace_file), tmp_path / "all" / "job" / "one")
    (tmp_path / "all" / "job.out").touch()
    assert cli.main(["report", str(tmp_path / "all"), "--json"]) == 0
    out, said = capsys.readouterr()
    assert json.loads(out)["source"]["path"].endswith("one")
    assert "left out, no recordings: job.out" in said


def test_a_terminal_is_told_where_the_index_of_many_reports_is(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, trace_file: Path
) -> None:
    again = trace_file.with_name("again.json")
    again.write_bytes(trace_file.read_bytes())
    words = ["report", str(trace_file), str(again)]
    assert cli.main(words) == 0
    piped = capsys.readouterr()
    assert piped.out.startswith("RECORDINGS  2 in") and piped.err == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.main(words) == 0
    assert "index is at the top" in capsys.readouterr().err
    assert cli.main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and json.loads(shown.out)["reports"]
