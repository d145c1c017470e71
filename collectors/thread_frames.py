"""The frames of all threads, looked at so that the traced program cannot lock up or crash."""

from __future__ import annotations

import gc
import sys
from types import FrameType

# Later ones collect between two instructions alone.
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)


class FramesOfThreads:
    """The innermost frame of each thread, by its `threading.get_ident()`, for a `with` block;
    frames around these may be asked for until it ends.

    A frame becomes an object when it is asked for, and to make one may set off a garbage
    collection, in which other threads run. If they leave that frame meanwhile, the object points to
    memory that is used otherwise (https://github.com/python/cpython/issues/97002). If they, or what
    is collected, ask for the lock of all threads, which is held while the innermost ones are made,
    each waits for the other forever (https://github.com/python/cpython/issues/106883).
    """

    def __init__(self) -> None:
        self._collects = False

    def __enter__(self) -> dict[int, FrameType]:
        self._collects = _COLLECTS_ANYWHERE and gc.isenabled()
        if self._collects:
            gc.disable()
        try:
            return sys._current_frames()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *raised: object) -> None:
        if self._collects:
            gc.enable()
