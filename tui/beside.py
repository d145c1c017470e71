"""The explorer on a thread of its own, beside a program that runs on."""

from __future__ import annotations

import atexit
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracer.tui.app import Explorer, run_explorer
from tracer.tui.messages import Finished
from tracer.tui.session import Report, Source

if TYPE_CHECKING:
    from tracer.analysis import Analysis

_CLOSING_S = 5.0


class _Signals(ModuleType):
    """`signal` as the driver of Textual uses it: handlers are the program's, and Python lets only
    the main thread set any."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    @staticmethod
    def signal(number: int, handler: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return signal.signal(number, handler)
        return signal.getsignal(number)


class Beside:
    """A running explorer. `wait` until the user leaves it, or `close` it."""

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tracer-beside", daemon=True)

    def start(self) -> Beside:
        """Take the terminal. It is given back at the latest when the program ends."""
        atexit.register(self.close)
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            run_explorer(self.explorer)
        except BaseException as error:
            # The border to the program: the explorer's trouble is told, and not the program's.
            self.error = error

    def finish(self, analysis: Analysis) -> None:
        """The capture has ended: show all of it, no number provisional any more."""
        if self._thread.is_alive():
            self.explorer.post_message(Finished(analysis))

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        """Until the user has left."""
        self._thread.join()
        atexit.unregister(self.close)

    def close(self) -> None:
        """Leave the screen; the terminal is as before when this returns."""
        if self._thread.is_alive():
            self.explorer.end_from_outside()
            self._thread.join(_CLOSING_S)
        atexit.unregister(self.close)


def open_beside(newest: Callable[[], Analysis | None], *, name: str = "live capture") -> Beside:
    """Show a capture that still runs, on a thread: returns at once.

    `newest` returns what is known by now (None: nothing new); it is asked at most four times a
    second, never twice at once, on a thread of its own. What the program prints meanwhile is kept
    and printed when the explorer has closed.
    """
    _let_threads_run_the_driver()
    explorer = Explorer([Source(name, _never)], newest=newest, watch_size=True)
    return Beside(explorer).start()


def _never(report: Report) -> Analysis:
    raise NotImplementedError("a live capture is asked for its newest state, not read")


def _let_threads_run_the_driver() -> None:
    """Textual's driver sets signal handlers, which fails on any thread but the main one."""
    try:
        driver = import_module("textual.drivers.linux_driver")
    except ImportError:
        return  # another system: its driver sets none
    if not isinstance(vars(driver)["signal"], _Signals):
        vars(driver)["signal"] = _Signals("signal")
