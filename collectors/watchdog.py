"""Watches the steps of a live run: when one takes too long, writes what all threads do and what the
flight recorder holds, for `tracer ranks`.

It only looks: the program is neither stopped nor changed, and nothing is written while steps end in
time.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tracer.errors import UsageError
from tracer.events import Note
from tracer.own_thread import OwnThread, unlist

# The functions that give the flight recorder as a pickle, by version of torch.
_DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")
DEFAULT_DIRECTORY = "tracer-watchdog"


@dataclass(frozen=True)
class WatchdogOptions:
    """seconds: how long a step may take; directory: where to write."""

    seconds: float
    directory: str = DEFAULT_DIRECTORY

    @classmethod
    def of(cls, given: float | str | Mapping[str, Any] | WatchdogOptions) -> WatchdogOptions:
        """From what `trace(watchdog=…)` takes: seconds, or a mapping with `directory` too."""
        if isinstance(given, WatchdogOptions):
            return given
        values: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"seconds": given}
        try:
            seconds = float(values.pop("seconds"))
            directory = str(values.pop("directory", DEFAULT_DIRECTORY))
            if values:
                raise ValueError(f"unknown: {', '.join(values)}")
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"watchdog={given!r}: give seconds, or seconds and directory, for example "
                "watchdog=120 or watchdog={'seconds': 120, 'directory': 'hang'}"
            ) from None
        options = cls(seconds, directory)
        if options.seconds <= 0:
            raise UsageError(f"watchdog={given!r}: a step takes more than no time")
        return options


@dataclass(frozen=True)
class Bark:
    """One step that took too long, and the files that say what was going on."""

    step: int
    seconds: float
    stacks: Path | None
    dump: Path | None
    failures: tuple[str, ...]


class Watchdog:
    """Started once, closed once; `begin` and `end` enclose each step."""

    def __init__(
        self,
        options: WatchdogOptions,
        *,
        rank: int | None = None,  # None: what the launcher said, if anything
        on_bark: Callable[[Bark], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._rank = _launched_rank() if rank is None else rank
        self._on_bark = on_bark
        self._clock = clock
        self._changed = threading.Condition()
        self._began: float | None = None
        self._step = -1
        self._barked = -1
        self._closed = False
        self._thread: OwnThread | None = None
        self.barks: list[Bark] = []

    def start(self) -> None:
        """Begin to watch; a step begins with `begin`."""
        self._thread = OwnThread(self._watch)
        self._thread.start()

    def begin(self) -> None:
        """A step begins; one that was still open has ended."""
        with self._changed:
            self._step += 1
            self._began = self._clock()
            self._changed.notify()

    def end(self) -> None:
        """The step has ended."""
        with self._changed:
            self._began = None
            self._changed.notify()

    def close(self) -> None:
        """Stop watching."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left = self._left()
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                step, began = self._step, self._began
                self._barked = step
                self._changed.release()
                try:
                    self._bark(step, self._clock() - (began or 0.0))
                finally:
                    self._changed.acquire()

    def _left(self) -> float | None:
        """Seconds until the open step has taken too long; None when there is nothing to watch."""
        if self._began is None or self._barked == self._step:
            return None
        return self._began + self._options.seconds - self._clock()

    def _bark(self, step: int, seconds: float) -> None:
        failures: list[str] = []
        stacks = self._attempt(failures, self._write_stacks)
        dump = self._attempt(failures, self._write_dump)
        bark = Bark(step, seconds, stacks, dump, tuple(failures))
        self.barks.append(bark)
        if self._on_bark is not None:
            self._on_bark(bark)
            unlist()

    def _attempt(self, failures: list[str], write: Callable[[], Path | None]) -> Path | None:
        try:
            return write()
        except Exception as error:  # the border to the traced program: a full disk is no crash
            failures.append(f"{type(error).__name__}: {error}")
            return None

    def _write_stacks(self) -> Path:
        path = self._path("stacks", ".txt")
        with open(path, "w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
        return path

    def _write_dump(self) -> Path | None:
        content = dump_flight_recorder()
        if content is None:
            return None
        path = self._path("flight_recorder", "")
        path.write_bytes(content)
        return path

    def _path(self, what: str, suffix: str) -> Path:
        """One file a rank: the name says which."""
        folder = Path(self._options.directory)
        folder.mkdir(parents=True, exist_ok=True)
        owner = f"rank_{self._rank}" if self._rank is not None else f"pid_{os.getpid()}"
        return folder / f"{what}_{owner}{suffix}"


def _launched_rank() -> int | None:
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def bark_note(bark: Bark) -> Note:
    """What a reader of the report must know of a step that took too long."""
    files = ", ".join(str(path) for path in (bark.stacks, bark.dump) if path is not None)
    text = f"step {bark.step} was not over after {bark.seconds:.1f} s: "
    text += f"see {files}" if files else f"nothing could be written ({'; '.join(bark.failures)})"
    if bark.stacks is not None and bark.dump is None:
        text += " (no flight recorder: TORCH_FR_BUFFER_SIZE is not set)"
    return Note("capture.step_too_long", text, 1, {"step": bark.step, "seconds": bark.seconds})


def dump_flight_recorder() -> bytes | None:
    """The flight recorder of this process as a pickle; None where torch has none or it is empty.

    torch fills it when TORCH_FR_BUFFER_SIZE (before 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE) is above 0.
    """
    try:
        module = import_module("torch._C._distributed_c10d")
    except ImportError:
        return None
    for name in _DUMPS:
        dump = getattr(module, name, None)
        if dump is not None:
            content = dump()
            return bytes(content) if content else None
    return None
