"""Threads of ours beside the traced program, which does not see them among its own."""

from __future__ import annotations

import _thread
import logging
import os
import threading
from collections.abc import Callable

_log = logging.getLogger("tracer")


class OwnThread:
    """Runs a function once, on a thread that `threading` does not list: a program may wait until
    all others that it lists have ended. The interpreter ends without waiting for it, and a forked
    child has none."""

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run
        self._over = _thread.allocate_lock()  # held while it runs
        self._process = self._ident = 0

    def start(self) -> None:
        """Begin to run."""
        self._process = os.getpid()
        self._over.acquire()
        try:
            self._ident = _thread.start_new_thread(self._work, ())
        except BaseException:
            self._over.release()
            raise

    def is_alive(self) -> bool:
        """Whether it runs, in this process."""
        return self._process == os.getpid() and self._over.locked()

    def join(self, timeout: float = -1) -> None:
        """Wait for its end; not in itself: a finalizer of the program may run there."""
        waits = self.is_alive() and self._ident != _thread.get_ident()
        if waits and self._over.acquire(timeout=timeout):
            self._over.release()

    def _work(self) -> None:
        try:
            self._run()
        except Exception as error:  # the border to the traced program: nobody there waits for it
            _log.debug("tracer: a thread of its own failed", exc_info=error)
        finally:
            unlist()
            self._over.release()


def unlist() -> None:
    """List this thread no more, which Python did not start: it began to where a message was logged,
    and before 3.12 it never ends."""
    listed: object = getattr(threading, "_active", None)
    own = threading.get_ident()
    if isinstance(listed, dict) and isinstance(listed.get(own), threading._DummyThread):
        del listed[own]
