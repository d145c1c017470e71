"""The frames of all threads, asked for so that the traced program cannot lock up."""

from __future__ import annotations

import gc
import sys
from operator import methodcaller
from types import FrameType
from typing import Any

# Later ones collect between two instructions alone.
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)
_called = methodcaller("__call__")


def frames_of_threads() -> dict[int, FrameType]:
    """The innermost frame of each thread, by its `threading.get_ident()`.

    Python makes these objects while it holds the lock of all threads. If that sets off a garbage
    collection, and this one finalizes a `threading.local`, or lets a thread run that begins or
    ends, each waits for the other forever (https://github.com/python/cpython/issues/106883).
    """
    if not (_COLLECTS_ANYWHERE and gc.isenabled()):
        return sys._current_frames()
    frames: Any
    try:
        # No instruction in between: no other thread runs, or sees, while nothing is collected.
        _, frames, _ = map(_called, (gc.disable, sys._current_frames, gc.enable))
    except BaseException:
        gc.enable()
        raise
    found: dict[int, FrameType] = frames
    return found
