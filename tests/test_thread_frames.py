"""The frames of all threads, while garbage waits to be collected."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from tracer.collectors.thread_frames import frames_of_threads

# The next object made sets off a collection of objects that ask for the lock of all threads.
PROGRAM = """
import gc, threading
from tracer.collectors.thread_frames import frames_of_threads

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
    frames = frames_of_threads()
    assert len(frames) == 9, frames
print("looked")
"""


def test_garbage_that_asks_for_the_same_lock_is_collected_later() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "looked\n"


@pytest.mark.parametrize("enabled", [True, False])
def test_whether_garbage_is_collected_stays_as_it_was(enabled: bool) -> None:
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        found = frames_of_threads()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert found[threading.get_ident()].f_code.co_name == "frames_of_threads"


@pytest.mark.parametrize("enabled", [True, False])
def test_a_look_that_fails_leaves_it_as_it_was(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(sys, "_current_frames", fail)
    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(MemoryError):
            frames_of_threads()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
