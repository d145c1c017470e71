"""Run as a script: import torch once, then fork a child for each thing that may crash or hang.

A child that dies takes nothing along: its ending is told, and the next one starts."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tracer.environment import tasks
from tracer.environment.child import answer_for, open_channel, reply


@dataclass
class _Running:
    """A child at work; its stderr goes to a file of its own."""

    name: str
    pid: int
    stderr: Any
    deadline_s: float


def main() -> None:
    payload = open_channel()
    reply(stage="import torch")
    torch = _import_torch()
    if torch is not None:
        _tell_torch(torch)
    names = _task_names(payload, torch)
    reply(stage="tasks", tasks=names)
    _run_all(names, torch, payload)
    reply(stage="done")


def _tell_torch(torch: Any) -> None:
    """Told by a fork: some of these questions mark a process as one that touched CUDA, after which
    none of its own forks can use a device.
    """
    pid = os.fork()
    if pid == 0:
        try:
            tasks.tell_torch(torch)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _import_torch() -> Any:
    if importlib.util.find_spec("torch") is None:
        reply(torch_error="missing")
        return None
    try:
        return importlib.import_module("torch")
    except BaseException as error:  # the border to an installation that may be broken
        reply(torch_error=f"{type(error).__name__}: {error}")
        return None


def _task_names(payload: Any, torch: Any) -> list[str]:
    """The longest first: they overlap with the rest."""
    extensions = [f"extension:{name}" for name in payload["extensions"]]
    if torch is None:
        return extensions
    return ["device", "profiler", *extensions, "attention:cpu", "interfaces"]


def _run_all(names: Sequence[str], torch: Any, payload: Any) -> None:
    waiting, running = list(names), list[_Running]()
    while waiting or running:
        while waiting and len(running) < int(payload["parallel"]):
            name = waiting.pop(0)
            kind = "cuda" if name in ("device", "profiler") else "import"
            running.append(_start(name, torch, float(payload[f"{kind}_timeout_s"])))
        time.sleep(0.005)
        running = [child for child in running if not _ended(child)]


def _start(name: str, torch: Any, timeout_s: float) -> _Running:
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 (the parent reads it when the child ended)
    pid = os.fork()
    if pid == 0:
        _child(name, torch, stderr)
    return _Running(name, pid, stderr, time.monotonic() + timeout_s)


def _child(name: str, torch: Any, stderr: Any) -> None:
    """Never returns: the forked copy of the parent ends here."""
    status = 1
    try:
        os.setsid()
        _die_with_parent()
        os.dup2(stderr.fileno(), 2)
        os.dup2(2, 1)
        faulthandler.enable(file=2)
        answer_for(task=name)
        _task(name)(torch)
        status = 0
    except BaseException as error:  # the border to installations that may be broken
        reply(error=_first_lines(error))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _die_with_parent() -> None:
    """On Linux: if the parent is stopped at its deadline, its children go too."""
    set_signal_of_parents_death = 1
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(set_signal_of_parents_death, signal.SIGKILL)


def _task(name: str) -> Callable[[Any], None]:
    kind, _, argument = name.partition(":")
    return tasks.TASKS[kind](argument)


def _first_lines(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _ended(child: _Running) -> bool:
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    late = pid == 0 and time.monotonic() > child.deadline_s
    if pid == 0 and not late:
        return False
    if late:
        os.killpg(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    code = None if late else os.waitstatus_to_exitcode(status)
    child.stderr.seek(0)
    text = child.stderr.read().decode("utf-8", "replace")
    child.stderr.close()
    reply(task=child.name, ended=code, late=late, stderr=text[-3000:])
    return True


if __name__ == "__main__":
    main()
