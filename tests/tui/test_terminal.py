"""In a terminal of its own: whatever ends the explorer, the terminal is as before."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tracer.tui.look import Look
from tracer.tui.terminal import is_utf8, look_for

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 60
# An explorer on a recording that takes for ever to read, or one that breaks on a key.
SLOW = """
import time
from tracer.tui.app import Explorer, run_explorer
from tracer.tui.session import Source
def read(report):
    report("reading", 1, 10)
    time.sleep(600)
run_explorer_status = run_explorer(Explorer([Source("slow.json", read)]))
raise SystemExit(run_explorer_status)
"""
BROKEN = """
from tests.tui.samples import decode_analysis
from tracer.tui.app import Explorer, run_explorer
from tracer.tui.session import Source
class Broken(Explorer):
    def press(self, key, character):
        raise ZeroDivisionError("broken on purpose")
run_explorer(Broken([Source("broken.json", lambda report: decode_analysis())]))
"""
KEPT = """
import signal, sys
from tests.tui.samples import decode_analysis
from tracer.tui.app import open_analysis
def mine(number, frame): pass
names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGWINCH", "SIGTSTP", "SIGCONT")
for name in names: signal.signal(getattr(signal, name), mine)
open_analysis(decode_analysis())
kept = all(signal.getsignal(getattr(signal, name)) is mine for name in names)
print("handlers kept" if kept else "handlers lost")
"""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small recording in a file."""
    events: list[dict[str, object]] = []
    for step in range(3):
        at = 1000.0 * step
        events.append(host_event("user_annotation", f"ProfilerStep#{step}", at, 900))
        for number in range(10):
            begin, link = at + 50 * number, 100 * step + number
            events.append(host_event("cpu_op", "aten::mm", begin, 12))
            events.append(host_event("cuda_runtime", "cudaLaunchKernel", begin + 5, 3, link))
            kernel = {"device": 0, "stream": 7, "correlation": link}
            events.append({"ph": "X", "cat": "kernel", "name": "tiny_gemm_kernel", "pid": 0,
                           "tid": 7, "ts": begin + 9, "dur": 4, "args": kernel})  # fmt: skip
    path = tmp_path_factory.mktemp("recording") / "tiny.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(path)


def host_event(
    category: str, name: str, at: float, length: float, link: int | None = None
) -> dict[str, object]:
    arguments = {} if link is None else {"correlation": link}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at,
            "dur": length, "args": arguments}  # fmt: skip


BESIDE = """
import sys, threading, time
from tests.tui.samples import decode_analysis
from tracer.tui.beside import open_beside
asked = []
def newest():
    asked.append(time.monotonic())
    return decode_analysis(2)
beside = open_beside(newest)
until = time.monotonic() + 50
while len(asked) < 3 and time.monotonic() < until:
    print("the program goes on"); time.sleep(0.1)
print("to stderr", file=sys.stderr)
beside.finish(decode_analysis(5))
beside.wait()
assert beside.error is None, beside.error
gaps = [b - a for a, b in zip(asked, asked[1:])]
print("asked politely" if min(gaps) > 0.2 else f"asked too often: {min(gaps)}")
print("ended in", threading.current_thread() is threading.main_thread())
"""


FOLLOWED = """
import pathlib, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
ids = torch.randint(9, (2, 4))
def call(times):
    for _ in range(times):
        with torch.no_grad():
            model(ids)
print("from the program")
call(3)
seen = pathlib.Path(__file__).parent / "seen"
until = time.monotonic() + 50
while not seen.exists() and time.monotonic() < until:
    time.sleep(0.02)
call(4)
sys.exit(3)
"""


class Terminal:
    """A pseudo terminal with a program in it."""

    def __init__(
        self,
        arguments: list[str],
        environ: Mapping[str, str] | None = None,
        size: tuple[int, int] = (100, 30),
    ) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        usual = {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "LC_ALL", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=ROOT,
            env={**kept, **usual, **(environ or {})},
            start_new_session=True,
        )

    def read(self, seconds: float = 0.05) -> None:
        """Take in what the program has drawn."""
        while select.select([self.master], [], [], seconds)[0]:
            self.output += os.read(self.master, 1 << 16)

    def wait_for(self, words: str) -> None:
        """Wait until these words were drawn."""
        until = time.monotonic() + _TIMEOUT_S
        while words not in self.text:
            self.read()
            if self.process.poll() is not None or time.monotonic() > until:
                self.read()
                assert words in self.text, f"{words!r} never came:\n{self.text[-2000:]}"

    def send(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Wait for the program to end; returns its status."""
        until = time.monotonic() + _TIMEOUT_S
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < until, "the explorer does not end"
        self.read()
        return self.process.returncode

    @property
    def text(self) -> str:
        """What was drawn, without the sequences that move and colour."""
        plain = re.sub(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b[=>]", b"", self.output)
        return plain.decode("utf-8", "replace")

    @property
    def is_as_before(self) -> bool:
        """Modes as before, main screen, cursor shown, no mouse, no paste, no focus reports."""
        modes = {
            number: state == b"h"
            for number, state in re.findall(rb"\x1b\[\?(\d+)([hl])", self.output)
        }
        left_on = [
            n for n in (b"1049", b"1000", b"1003", b"1006", b"2004", b"1004") if modes.get(n)
        ]
        hidden = modes.get(b"25") is False
        return termios.tcgetattr(self.slave) == self.before and not left_on and not hidden

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def opened(terminals: list[Terminal], *arguments: str, **options: object) -> Terminal:
    terminal = Terminal(list(arguments), **options)  # type: ignore[arg-type]
    terminals.append(terminal)
    return terminal


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_leaving_by_key(terminals: list[Terminal], sample: str, keys: bytes) -> None:
    terminal = opened(terminals, "-m", "tracer", "open", sample)
    terminal.wait_for("opening tiny.json")
    terminal.wait_for("FINDINGS")
    terminal.send(keys)
    assert terminal.end() == 0
    assert terminal.is_as_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_recording_is_read(terminals: list[Terminal], number: int) -> None:
    terminal = opened(terminals, "-c", SLOW)
    terminal.wait_for("10 %")
    assert not terminal.is_as_before
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    assert terminal.is_as_before


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_leaving_while_a_recording_is_read_does_not_wait_for_it(
    terminals: list[Terminal], keys: bytes
) -> None:
    terminal = opened(terminals, "-c", SLOW)
    terminal.wait_for("10 %")
    terminal.send(keys)
    assert terminal.end() == 0
    assert terminal.is_as_before


def test_a_crash_leaves_the_screen_before_it_is_told(terminals: list[Terminal]) -> None:
    terminal = opened(terminals, "-c", BROKEN)
    terminal.wait_for("FINDINGS")
    terminal.send(b"x")
    assert terminal.end() == 1
    assert terminal.is_as_before
    after = terminal.output.rpartition(b"\x1b[?1049l")[2]
    assert b"ZeroDivisionError: broken on purpose" in after


def test_a_program_that_opened_the_explorer_keeps_its_signal_handlers(
    terminals: list[Terminal],
) -> None:
    terminal = opened(terminals, "-c", KEPT)
    terminal.wait_for("FINDINGS")
    terminal.send(b"q")
    assert terminal.end() == 0
    assert "handlers kept" in terminal.text
    assert terminal.is_as_before


def test_a_program_runs_on_beside_the_explorer_and_keeps_its_output(
    terminals: list[Terminal],
) -> None:
    terminal = opened(terminals, "-c", BESIDE)
    terminal.wait_for("live")
    terminal.wait_for("the capture has ended")
    terminal.wait_for("5 of unknown")
    terminal.send(b"q")
    assert terminal.end() == 0
    assert terminal.is_as_before
    after = terminal.output.rpartition(b"\x1b[?1049l")[2].decode()
    assert "the program goes on" in after and "to stderr" in after
    assert "asked politely" in after and "ended in True" in after


def test_a_run_is_followed_while_it_goes_on_and_then_shown_whole(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    script = tmp_path / "program.py"
    script.write_text(FOLLOWED)
    terminal = opened(terminals, "-m", "tracer", "run", "--open", "--detail", "light", str(script))
    terminal.wait_for("0 findings so far")
    terminal.wait_for("STEPS")
    (tmp_path / "seen").touch()
    terminal.wait_for("7: 7")
    terminal.send(b"q")
    assert terminal.end() == 3
    assert terminal.is_as_before
    assert "from the program" in terminal.text and "STEPS  7" in terminal.text


def test_without_colour_no_colour_is_sent(terminals: list[Terminal], sample: str) -> None:
    terminal = opened(terminals, "-m", "tracer", "open", sample, environ={"NO_COLOR": "1"})
    terminal.wait_for("FINDINGS")
    terminal.send(b"q")
    assert terminal.end() == 0
    codes = re.findall(rb"\x1b\[([\d;]*)m", terminal.output)
    numbers = {int(n) for code in codes for n in code.split(b";") if n}
    assert numbers <= {0, 1, 2, 4, 7}


def test_a_locale_without_unicode_draws_ascii(terminals: list[Terminal], sample: str) -> None:
    environ = {"LANG": "C", "LC_ALL": "C"}
    terminal = opened(terminals, "-m", "tracer", "open", sample, environ=environ)
    terminal.wait_for("FINDINGS")
    terminal.send(b"q")
    assert terminal.end() == 0
    assert terminal.text.isascii()


def test_a_dumb_terminal_gets_lines_and_asks_for_parts(
    terminals: list[Terminal], sample: str
) -> None:
    terminal = opened(terminals, "-m", "tracer", "open", sample, environ={"TERM": "dumb"})
    terminal.wait_for("q quit:")
    assert "PHASES" in terminal.text and "FINDINGS" in terminal.text
    terminal.send(b"4\n")
    terminal.wait_for("tiny_gemm_kernel")
    terminal.send(b"nonsense\n")
    terminal.wait_for("no such part: nonsense")
    terminal.send(b"q\n")
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.output


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [(None, 3, "no such file"), (b"", 3, "empty"), (b"hello, no trace\n", 3, "no JSON")],
)
def test_a_file_that_is_no_recording_is_named_before_the_screen_is_taken(
    terminals: list[Terminal], tmp_path: Path, content: bytes | None, status: int, words: str
) -> None:
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)
    terminal = opened(terminals, "-m", "tracer", "open", str(path))
    assert terminal.end() == status
    assert words in terminal.text and "wrong.json" in terminal.text
    assert b"\x1b[?1049h" not in terminal.output
    assert len(terminal.text.strip().splitlines()) == 1


def test_a_recording_that_breaks_in_its_middle_is_told_after_the_screen_is_left(
    terminals: list[Terminal], tmp_path: Path
) -> None:
    path = tmp_path / "meta.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')
    terminal = opened(terminals, "-m", "tracer", "open", str(path))
    assert terminal.end() == 3
    assert terminal.is_as_before
    assert "meta.json" in terminal.output.rpartition(b"\x1b[?1049l")[2].decode()


def test_without_a_terminal_it_says_what_to_use(sample: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "open", sample],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert "tracer report" in done.stderr


def test_text_mode_needs_no_terminal(sample: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "open", "--text", sample],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "PHASES" in done.stdout and "\x1b" not in done.stdout


def test_the_web_extra_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer.errors import UsageError
    from tracer.tui.web import serve

    monkeypatch.setitem(sys.modules, "textual_serve", None)
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    with pytest.raises(UsageError, match=r"pip install 'llm-stack-tracer\[web\]'"):
        serve(["open", "x"], 8000)


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LC_ALL": "de_DE.utf8"}, True),
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "C"}, False),
        ({}, False),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),  # what Python itself sets in the C locale
        ({"LC_CTYPE": "C.UTF-8", "LANG": "en_US.UTF-8"}, True),
    ],
)
def test_the_locale_decides_between_unicode_and_ascii(
    environ: dict[str, str], wanted: bool
) -> None:
    assert is_utf8(environ) is wanted


def test_the_environment_decides_how_it_looks() -> None:
    utf8 = {"LANG": "C.UTF-8"}
    assert look_for(utf8) == Look()
    assert look_for({**utf8, "NO_COLOR": "1"}) == Look(color=False)
    assert look_for({**utf8, "TERM": "dumb"}) == Look(color=False)
    assert look_for({**utf8, "COLORFGBG": "0;15"}) == Look(light=True)
    assert look_for({**utf8, "COLORFGBG": "15;0"}, ascii=True, light=True) == Look(
        ascii=True, light=True
    )
