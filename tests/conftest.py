"""Where the shared recordings are, and a look after every test at what it left behind."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tracer.own_thread import OwnThread

# As pandas 3 always does: arrays of a table are given for reading alone.
if int(pd.__version__.partition(".")[0]) < 3:
    pd.options.mode.copy_on_write = True

_DEFAULT = Path(__file__).resolve().parents[2] / "shared"
SHARED = Path(os.environ.get("TRACER_SHARED", _DEFAULT))
# Variables of the profiler, and ours.
_VARIABLES = ("KINETO", "TEARDOWN_CUPTI", "DISABLE_CUPTI", "TRACER")
# No test takes nearly so long: one that hangs ends its process, which says where, and is named.
_HANGS_S = 900


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Also what holds the interpreter's own lock ends so: no Python has to run for it."""
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(_HANGS_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings with known answers; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no recordings at {SHARED}: set TRACER_SHARED to their folder")
    return SHARED


@pytest.fixture
def one_thread() -> Generator[None]:
    """Operators run on one thread: what others do beside them is not in the way."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def quietly() -> Generator[None]:
    """Without the messages of transformers about tiny configurations."""
    from tests.live_models import quiet

    with quiet():
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Generator[None]:
    """No patch, hook, thread, profiler, handler or variable outlives a test."""
    before = _surroundings()
    yield
    after = _surroundings()
    assert {name: value for name, value in after.items() if value != before[name]} == {}
    assert _torch_faults() == []


def _surroundings() -> dict[str, Any]:
    return {
        "collector callbacks": list(gc.callbacks),
        "log handlers": [logging.getLogger(name).handlers[:] for name in (None, "tracer")],
        "variables": {k: v for k, v in os.environ.items() if k.startswith(_VARIABLES)},
        "threads": sorted(t.name for t in threading.enumerate() if _is_lasting(t)),
        "own threads": sum(map(_is_own, sys._current_frames().values())),
    }


def _is_own(frame: FrameType | None) -> bool:
    """Whether a thread was begun by the tracer: `threading` does not list it."""
    while frame is not None and frame.f_code is not OwnThread._work.__code__:
        frame = frame.f_back
    return frame is not None


def _is_lasting(thread: threading.Thread) -> bool:
    return thread.name.startswith("tracer") or not thread.daemon


def _torch_faults() -> list[str]:
    """What is not as torch made it; empty where torch was never imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    profiler = torch.autograd.profiler
    module = torch.nn.Module
    switch = torch._C._dynamo.eval_frame.set_eval_frame
    faults = {
        "nn.Module.__call__ is patched": module.__call__ is not module._wrapped_call_impl,
        "a profiler runs": profiler._is_profiler_enabled or torch._C._autograd._profiler_enabled(),
        "the profiler's entries are patched": not all(
            type(getattr(profiler, name)).__name__.startswith("builtin")
            for name in ("_prepare_profiler", "_enable_profiler")
        ),
        "attention is patched": torch.nn.functional.scaled_dot_product_attention
        is not torch._C._nn.scaled_dot_product_attention,
        "the compiler's switch is patched": getattr(
            sys.modules.get("torch._dynamo.eval_frame"), "set_eval_frame", switch
        )
        is not switch,
    }
    return [fault for fault, is_there in faults.items() if is_there]
