"""Asking another Python process, so that a crash, a hang or a heavy import there stays there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# The child imports what this interpreter would: same path, same order.
_BOOTSTRAP = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "runpy.run_module(sys.argv[2], run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Answer:
    """What a child said before it ended, and how it ended."""

    replies: tuple[dict[str, Any], ...]
    status: int | None  # None: it was stopped at the deadline
    error: str = ""  # the end of its stderr

    @property
    def crashed(self) -> bool:
        return self.status is not None and self.status < 0

    @property
    def ending(self) -> str:
        """How it ended, in words; empty if it ended well."""
        if self.status == 0:
            return ""
        return describe_ending(self.status)


def describe_ending(status: int | None) -> str:
    """An exit status in words; None is a deadline."""
    if status is None:
        return "did not answer in time"
    if status < 0:
        return f"crashed ({signal_name(-status)})"
    return f"ended with status {status}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ask_python(
    module: str,
    payload: object,
    *,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    path: Sequence[str] | None = None,
) -> Answer:
    """Run `module` as a script in a fresh interpreter, `payload` as JSON on its stdin; it answers
    with one JSON object a line, through `child.reply`."""
    search = json.dumps(list(sys.path if path is None else path))
    command = [sys.executable, "-c", _BOOTSTRAP, search, module]
    # Files instead of pipes: a child's own child may keep a pipe open long after the child died.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=_child_environment(environ),
            start_new_session=True,
        )
        status = _wait(process, json.dumps(payload).encode(), timeout_s)
        out.seek(0)
        err.seek(0)
        return Answer(_parse(out.read()), status, _tail(err.read()))


def _child_environment(environ: Mapping[str, str] | None) -> dict[str, str]:
    child = dict(os.environ if environ is None else environ)
    child["PYTHONFAULTHANDLER"] = "1"  # a crash then names the Python line that it came from
    child["PYTHONIOENCODING"] = "utf-8"
    child.setdefault("KINETO_LOG_LEVEL", "99")
    return child


def _wait(process: subprocess.Popen[bytes], payload: bytes, timeout_s: float) -> int | None:
    try:
        process.communicate(payload, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
        process.wait()
        return None
    _kill_group(process.pid)
    return process.returncode


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _parse(output: bytes) -> tuple[dict[str, Any], ...]:
    replies: list[dict[str, Any]] = []
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # cut off in the middle of a crash
        if isinstance(value, dict):
            replies.append(value)
    return tuple(replies)


def _tail(output: bytes, length: int = 4000) -> str:
    return output.decode("utf-8", "replace")[-length:].strip()
