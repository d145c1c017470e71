"""What kind of terminal this is, and leaving it as it was whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from types import FrameType

from tracer.tui.look import Look

_ENDING = ("SIGTERM", "SIGHUP", "SIGINT")
# Textual installs its own handlers for these; a program that opened the explorer gets its back.
_KEPT = (*_ENDING, "SIGWINCH", "SIGTSTP", "SIGCONT", "SIGTTOU", "SIGTTIN")
# Mouse, paste, focus and in-band resize reports off, keyboard protocol off, wrap on, main screen,
# cursor shown: what a driver that could not finish leaves undone.
_RESET = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?2048l\x1b[?1004l"
    "\x1b[?7h\x1b[<u\x1b[?1049l\x1b[?25h\x1b[0m"
)


def look_for(
    environ: Mapping[str, str], ascii: bool | None = None, light: bool | None = None
) -> Look:
    """How to draw on this terminal; None: judged by the environment."""
    background = environ.get("COLORFGBG", "").rpartition(";")[2]
    return Look(
        ascii=not is_utf8(environ) if ascii is None else ascii,
        color=not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
        light=background in ("7", "15") if light is None else light,
    )


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale of the environment is one of UTF-8."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    plain = environ.get("LANG", "") in ("", "C", "POSIX") and not environ.get("LC_ALL")
    # Python itself sets this in the C locale (PEP 538): the terminal is no wiser for it.
    if plain and environ.get("LC_CTYPE") == "C.UTF-8":
        return False
    return "utf8" in locale.lower().replace("-", "")


def is_served(environ: Mapping[str, str]) -> bool:
    """Whether a browser is the screen: `textual-serve` names the driver in the environment."""
    return bool(environ.get("TEXTUAL_DRIVER"))


def is_terminal() -> bool:
    """Whether there is a terminal to draw on and to read keys from."""
    streams = (sys.__stdin__, sys.__stderr__)
    return all(stream is not None and stream.isatty() for stream in streams)


@contextlib.contextmanager
def kept_terminal(end: Callable[[int], None]) -> Generator[None]:
    """The terminal and the signal handlers are as before afterwards, also after an error.

    `end` is called with the number of a signal that asks the program to end.
    """
    with _kept_modes(), _kept_handlers(end):
        yield


@contextlib.contextmanager
def _kept_handlers(end: Callable[[int], None]) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in _KEPT if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in known}

    def handle(number: int, frame: FrameType | None) -> None:
        end(number)

    for name in _ENDING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not installed from Python cannot be put back.
            if handler is not None:
                signal.signal(number, handler)


@contextlib.contextmanager
def _kept_modes() -> Generator[None]:
    """Terminal modes are put back, and the screen is left, when a driver could not do it."""
    try:
        import termios
    except ImportError:
        yield
        return
    if not is_terminal():
        yield
        return
    descriptor = sys.__stdin__.fileno()  # type: ignore[union-attr]
    before = termios.tcgetattr(descriptor)
    try:
        yield
    finally:
        if termios.tcgetattr(descriptor) != before:
            os.write(sys.__stderr__.fileno(), _RESET.encode())  # type: ignore[union-attr]
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
