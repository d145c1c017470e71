"""The frames of all threads, while garbage waits to be collected."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from tracer.collectors.thread_frames import FramesOfThreads

# The next object made sets off a collection of objects that ask for the lock of all threads.
PROGRAM = """
import gc, threading
from tracer.collectors.thread_frames import FramesOfThreads

def waits(depth):
    waits(depth - 1) if depth else done.wait()

def leaves_garbage():
    for _ in range(50):
        own = threading.local()
        own.value, own.itself = 1, own
    kept.extend([] for _ in range(2000))
    spare = [{} for _ in range(50)]

done, kept = threading.Event(), []
for _ in range(8):
    threading.Thread(target=waits, args=(3,), daemon=True).start()
for _ in range(20):
    gc.collect()
    gc.disable()
    leaves_garbage()
    gc.enable()
    with FramesOfThreads() as frames:
        assert len(frames) == 9, frames
print("looked")
"""

# In each collection the other threads run, and leave the frames that are being walked through.
WALK = """
import gc, random, threading, time, types
from tracer.collectors.thread_frames import FramesOfThreads

def few(depth, first):
    second = [first] * 3
    return few(depth - 1, {"a": second}) if depth else [{} for _ in range(50)]

def many(depth, a, b, c, d, last={}):
    e = f = g = h = i = {}
    j = [e, f]
    if depth:
        return many(depth - 1, j, b, c, d) if depth % 2 else few(depth - 1, j)
    return [{} for _ in range(9)]

def either(depth, *rest, **named):
    if not depth:
        return named
    return many(depth, {}, {}, {}, {}) if depth % 3 else few(depth, {})

def works():
    calls = (few, 7, {}), (many, 9, {}, {}, {}, {}), (either, 5), (either, 6)
    while not done.is_set():
        call, *given = random.choice(calls)
        call(*given)

def collecting(phase, info):
    if threading.current_thread() is threading.main_thread():
        time.sleep(0.0005)

done = threading.Event()
for _ in range(3):
    threading.Thread(target=works, daemon=True).start()
gc.set_threshold(8)
gc.callbacks.append(collecting)
for _ in range(8_000):
    with FramesOfThreads() as frames:
        for frame in frames.values():
            while frame is not None:
                assert type(frame) is types.FrameType and type(frame.f_code) is types.CodeType
                frame = frame.f_back
done.set()
print("looked")
"""


def test_frames_that_are_left_while_others_are_asked_for_stay_whole() -> None:
    command = [sys.executable, "-c", WALK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "looked\n"


def test_garbage_that_asks_for_the_same_lock_is_collected_later() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "looked\n"


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Generator[bool]:
    """Whether garbage is collected at all."""
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_nothing_is_collected_while_frames_are_looked_at(enabled: bool) -> None:
    with FramesOfThreads() as frames:
        assert gc.isenabled() == (enabled and sys.version_info >= (3, 12))
        assert threading.get_ident() in frames
    assert gc.isenabled() == enabled


def test_a_look_that_fails_leaves_it_as_it_was(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(sys, "_current_frames", fail)
    with pytest.raises(MemoryError), FramesOfThreads():
        pass
    assert gc.isenabled() == enabled
