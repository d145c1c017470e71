"""Programs of every kind do under a trace what they do without one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.profiler import profile

from tracer import trace
from tracer.collectors.modules.module_tree import ModuleTree
from tracer.collectors.stack_samples import StackSamples
from tracer.live.capture import Capture
from tracer.live.options import Detail
from tracer.recorder import Recording

DETAILS: tuple[Any, ...] = get_args(Detail)


class Named(nn.Linear):
    """Takes arguments of names that a wrapper might have for its own."""

    def forward(self, input: Any, module: Any = None, original: Any = None) -> Any:
        return super().forward(input) + module + original


@pytest.mark.parametrize("detail", DETAILS)
def test_an_argument_may_have_any_name(detail: Detail) -> None:
    model = Named(4, 4)
    with trace(detail=detail), torch.no_grad():
        for _ in range(6):
            model(torch.ones(2, 4), module=1, original=2)


# How a program waits for all that it has begun.
WAITS = {
    "joins": """
    for other in threading.enumerate():
        if other is not threading.main_thread():
            other.join()
""",
    "counts": """
    while threading.active_count() > 1:
        time.sleep(0.01)
""",
}
PROGRAM_THAT_WAITS = """
import logging, os, threading, time, torch
from tracer import trace

torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
with trace(watchdog={{"seconds": 0.01, "directory": os.devnull}}) as t:
    threading.Thread(target=lambda: (model(torch.ones(2, 4)), time.sleep(0.2))).start()
    with t.step():
        time.sleep(0.1)
    {waits}
print("waited")
"""


@pytest.mark.parametrize("way", WAITS)
def test_a_program_may_wait_until_all_other_threads_have_ended(way: str) -> None:
    assert run(PROGRAM_THAT_WAITS.format(waits=WAITS[way])).stdout == "waited\n"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, where it may lock up."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


ALARMS = """
import gc, signal
from tracer import trace

class Late(Exception):
    pass

def late(*args):
    raise Late

signal.signal(signal.SIGALRM, late)
kept, raised = [[number] for number in range(100_000)], 0
with trace(detail="light"):
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            for _ in range(200):  # the time of each is spent in the collector
                gc.collect()
        except Late:
            raised += 1
print(raised)
"""


def test_what_a_signal_raises_in_a_collection_reaches_the_program() -> None:
    """Below a callback of the collector it would only be printed, as it is below one of a weak
    reference of somebody else's that is collected just then."""
    assert int(run(ALARMS).stdout) > 10


def test_each_collection_has_its_generation() -> None:
    was = gc.isenabled()
    gc.disable()
    try:
        with trace(detail="light") as t:
            for generation in (1, 0, 2, 0):
                gc.collect(generation)
    finally:
        (gc.enable if was else gc.disable)()
    table = t.trace.table("collections")
    assert list(table["generation"]) == [1, 0, 2, 0]
    assert (table["end_ns"] > table["start_ns"]).all()


@pytest.mark.parametrize("detail", ["light", "modules"])
@pytest.mark.parametrize("place", ["_find_context", "_close_sources", "_end_measuring"])
def test_an_interruption_of_the_beginning_or_the_end_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, place: str, detail: Detail
) -> None:
    """The fixture of all tests looks at what is left."""
    owner = Recording if hasattr(Recording, place) else Capture
    original, model = getattr(owner, place), nn.Linear(4, 4)

    def interrupted(self: Any) -> None:
        monkeypatch.undo()
        original(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, place, interrupted)
    with pytest.raises(KeyboardInterrupt), trace(detail=detail):
        model(torch.ones(2, 4))
    with trace(detail=detail) as t:
        model(torch.ones(2, 4))
    assert len(t.trace.table("root_calls")) == 1


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_an_interruption_in_the_profiler_leaves_none_that_runs(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    original = getattr(profile, method)

    def interrupted(self: Any, *args: Any) -> None:
        monkeypatch.undo()
        if method == "__enter__":
            original(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(profile, method, interrupted)
    with pytest.raises(KeyboardInterrupt), trace():
        torch.ones(2, 4) + 1
    with trace() as t:
        torch.ones(2, 4) + 1
    assert t.trace.rows("operator").size > 0


def test_an_interruption_of_one_source_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any) -> None:
        close(self)
        raise KeyboardInterrupt

    close = StackSamples.close
    monkeypatch.setattr(StackSamples, "close", interrupted)
    with pytest.raises(KeyboardInterrupt), trace():
        torch.ones(2, 4) + 1


def test_a_temporary_folder_that_cannot_be_written_is_only_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    with trace(detail="light") as t:
        pass
    assert "capture.failed" in [note.rule for note in t.trace.notes]


PROGRAM_WITH_A_CHILD = """
import os, sys, torch
from tracer import trace

torch.set_num_threads(1)
x = torch.ones(2, 4)

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def work(count):
    for _ in range(count):
        x + 1

with trace() as t:
    work(10)
    if not os.fork():
        work(10_000)
        before = resident_bytes()
        work(20_000)
        print(resident_bytes() - before < 4_000_000)
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
if not os.fork():
    print("after it")
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc and its file system of processes")
def test_a_forked_child_keeps_nothing_and_ends() -> None:
    assert run(PROGRAM_WITH_A_CHILD).stdout == "True\n3\nafter it\n4\n"


PROGRAM_THAT_HOLDS_LOCKS = """
import os, sys, threading, torch
from tracer import trace
from tracer.collectors.compiling import outside_compiled
from tracer.live import capture

torch.set_num_threads(1)
model, held, done = torch.nn.Linear(4, 4), threading.Event(), threading.Event()

def hold():
    with locks[0], locks[1], locks[2], outside_compiled._lock, capture._owner_lock:
        held.set()
        done.wait()

with trace(detail=sys.argv[1]) as t:
    ranges = t._capture._ranges
    locks = ranges._lock, ranges.tree._lock, ranges.calls._lines._lock
    if sys.argv[2] == "child":
        threading.Thread(target=hold).start()
        held.wait()
        if not os.fork():
            model(torch.ones(2, 4))
            t.__exit__(None, None, None)
            os._exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
        done.set()
    else:
        with locks[0], locks[1], locks[2], outside_compiled._lock:
            for _ in range(4):
                model(torch.ones(2, 4)).sum().item()
            print(torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


@pytest.mark.parametrize(
    ("detail", "who", "said"), [("light", "child", "3"), ("modules", "finalizer", "2.0")]
)
def test_a_lock_that_is_held_keeps_nobody_for_ever(detail: Detail, who: str, said: str) -> None:
    """By another thread where a child is forked, or where a finalizer or a signal comes."""
    assert run(PROGRAM_THAT_HOLDS_LOCKS, detail, who).stdout == f"{said}\n"


def test_threads_that_call_a_recorded_function_at_once_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fixture of all tests looks at what is left."""
    model, calls, start = nn.Linear(4, 4), 6, Capture.start

    def slowly(self: Capture, model: nn.Module | None = None) -> None:
        start(self, model)
        time.sleep(0.05)

    monkeypatch.setattr(Capture, "start", slowly)

    @trace(detail="light")
    def serve(number: int) -> int:
        model(torch.ones(2, 4))
        return number

    with ThreadPoolExecutor(calls) as pool:
        assert list(pool.map(serve, range(calls))) == list(range(calls))
    recording: Recording = serve.recording  # type: ignore[attr-defined]
    assert not recording.running
    serve(1)
    assert len(recording.trace.table("root_calls")) == 1
    assert "capture.busy" not in [note.rule for note in recording.trace.notes]


def test_a_recorded_asynchronous_generator_hears_what_is_sent_and_thrown() -> None:
    heard: list[object] = []

    @trace(detail="light")
    async def converse() -> AsyncGenerator[int, str]:
        try:
            heard.append((yield 1))
            try:
                yield 2
            except ValueError as error:
                heard.append(str(error))
            yield 3
        finally:
            heard.append("closed")

    async def talk() -> list[int]:
        other = converse()
        said = [await anext(other), await other.asend("sent"), await other.athrow(ValueError("no"))]
        await other.aclose()
        return said

    assert asyncio.run(talk()) == [1, 2, 3]
    assert heard == ["sent", "no", "closed"]


class Unequal(nn.Linear):
    """Like no other, and asked whether, it fails."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")


def test_a_model_may_refuse_to_be_compared() -> None:
    inner = Unequal(4, 4)
    outer = nn.Sequential(inner, nn.ReLU())
    with trace() as t:
        for model in (inner, outer, inner):
            model(torch.ones(2, 4))
    assert list(t.trace.table("root_calls")["root"]) == ["0", "", "0"]
    assert "capture.failed" not in [note.rule for note in t.trace.notes]


def test_a_new_model_is_named_without_a_look_at_all_earlier_ones() -> None:
    tree, freed = ModuleTree(), [0]

    class Counted(nn.Linear):
        pass

    for _ in range(300):
        tree.add(Counted(1, 1))
    looked, reference = tree._roots[0], tree._roots[0].module

    def asked() -> nn.Module | None:
        freed[0] += 1
        return reference()

    looked.module = asked  # type: ignore[assignment]
    tree.add(Counted(1, 1))
    assert freed == [0]
    assert tree._roots[-1].label == "Counted_301"


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_program_without_output_keeps_its_status(closed: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, torch\ntorch.nn.Linear(4, 4)(torch.ones(2, 4))\nsys.exit(5)\n")
    shell = f'exec "$0" -m tracer run --detail light "$1" {closed}'
    command = ["sh", "-c", shell, sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (5, "")
    assert "Traceback" not in done.stderr


def test_other_threads_may_work_while_recordings_end() -> None:
    """torch crashes if one is about to write a record then."""
    code = """
import threading, time, torch
from tracer import trace
torch.set_num_threads(1)
model, given, over = torch.nn.Linear(8, 8), torch.ones(2, 8), threading.Event()

def works():
    while not over.is_set():
        model(given).sum().item()

threads = [threading.Thread(target=works) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(40):
    with trace(metrics=False) as t:
        time.sleep(0.05)
over.set()
for thread in threads:
    thread.join()
print("worked", len(t.trace.events) > 0)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert (done.stdout, done.stderr) == ("worked True\n", "")
