"""Where commands write: the report to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import TracebackType

from tracer.errors import OutputError

_SILENT_S = 1.0
_EVERY_S = 0.1
_MOST_NAMES = 8


def say(message: str) -> None:
    """One line on stderr."""
    from tracer.exporters.names import ascii_only, inert

    if sys.stderr is None:  # closed; `print` would take stdout for it
        return
    line = "tracer: " + inert(" ".join(message.split()))
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    plain = line if encoding.lower().startswith("utf") else ascii_only(line)
    # The line and its end in one write: ranks say their lines into one pipe.
    print(plain + "\n", end="", file=sys.stderr)


def few_names(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """`a, b, c and 42 more`: as many names as a line can take."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def write_report(text: str) -> None:
    """The report, on stdout."""
    with _output_errors():
        sys.stdout.write(text)


def flush_report() -> None:
    """Write out what stdout still holds, so that a closed pipe shows now."""
    with _output_errors():
        sys.stdout.flush()


@contextmanager
def _output_errors() -> Generator[None, None, None]:
    """Of a full disk, say; a closed pipe ends the program like others."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        reason = error.strerror or str(error)
        raise OutputError(f"the report could not be written: {reason}") from error


def close_stdout() -> None:
    """Keep Python from writing the rest of the buffer, and from complaining, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def wants_color() -> bool:
    """Whether stdout is a terminal that shows colour and its user wants it."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


class Progress:
    """A line on stderr for work that takes longer than a second; nothing where nobody looks."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started_s = time.monotonic()
        self.drawn_s = 0.0
        self.visible = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """So much of the work is done."""
        share = f" {100 * done // total} %" if total > 0 else ""
        self._draw(f"{self.what}:{share}")

    def stage(self, name: str) -> None:
        """What is being done now."""
        self._draw(f"{self.what}: {name}", at_once=True)

    def _draw(self, text: str, at_once: bool = False) -> None:
        now_s = time.monotonic()
        if not self.visible or now_s - self.started_s < _SILENT_S:
            return
        if at_once or now_s - self.drawn_s >= _EVERY_S:
            self.drawn_s = now_s
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.drawn_s:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
