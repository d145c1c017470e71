"""What the frameworks themselves say about slower ways while a trace lives: warnings and log lines.

Nothing of it is held back: log records are seen where they are made, not where they are handled,
and warnings go on to whoever showed them before.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tracer.collectors.warning_hook import Warned, listen
from tracer.events import SIDE_TABLES, make_table

_FRAMEWORKS = (
    "torch",
    "transformers",
    "vllm",
    "sglang",
    "accelerate",
    "bitsandbytes",
    "peft",
    "triton",
)
# Words about a slower way; what else these programs say is not ours.
_TELLING = re.compile(
    r"fall(s|ing|en)?[ -]?back|fallback|sub-?optimal|slower|slow path|degrad|better performance"
    r"|not (be )?(supported|available|installed|enabled|compatible)|unsupported|unavailable"
    r"|does(n't| not) support|cannot (be used|use)|can't use|will not use|instead of|disabl(ed|ing)"
    r"|offload|not used because|default (\w+ )?config|not been compiled|without \w+ kernels?",
    re.I,
)
_MOST_MESSAGES, _MOST_CHARACTERS = 100, 500
# How torch ends a warning that comes from its C++ code, whatever line of the program was running.
_FROM_INSIDE = " (Triggered internally"
# The profiler's synchronization warnings are collected as lines of waits.
_ELSEWHERE = "called a synchronizing"
_OF_INTERFACES = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)

RecordMaker = Callable[..., logging.LogRecord]


@dataclass
class _Message:
    time_ns: int
    count: int = 0


class FallbackLogs:
    """Collects what is said between `start` and `close`."""

    def __init__(self) -> None:
        self._messages: dict[tuple[str, str], _Message] = {}
        self._undo: list[Callable[[], None]] = []
        self._active = False

    def start(self) -> None:
        """Begin to listen."""
        self._active = True
        self._listen_to_logs()
        self._listen_to_warnings()

    def close(self) -> None:
        """Undo every change, the last first; where another hook stands on ours, ours stays and
        passes everything on."""
        self._active = False
        while self._undo:
            self._undo.pop()()

    def table(self) -> pd.DataFrame:
        """The table `warnings`, each message once."""
        said = self._messages
        return make_table(
            SIDE_TABLES["warnings"],
            {
                "time_ns": [message.time_ns for message in said.values()],
                "source": [source for source, _ in said],
                "message": [text for _, text in said],
                "count": [message.count for message in said.values()],
            },
        )

    def _listen_to_logs(self) -> None:
        make = logging.getLogRecordFactory()

        def make_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            if self._active and record.levelno >= logging.WARNING:
                self._take_record(record)
            return record

        def undo() -> None:
            if logging.getLogRecordFactory() is make_record:
                logging.setLogRecordFactory(make)

        self._undo.append(undo)
        logging.setLogRecordFactory(make_record)

    def _take_record(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] not in _FRAMEWORKS:
            return
        try:
            text = record.getMessage()
        except Exception:  # the program's own arguments: logging will tell it what is wrong
            return
        self._take(record.name, text)

    def _listen_to_warnings(self) -> None:
        def takes(warned: Warned) -> bool:
            if self._active and not issubclass(warned.category, _OF_INTERFACES):
                self._take(_source_of(warned.filename, warned.text), warned.text)
            return False

        self._undo.append(listen(takes))

    def _take(self, source: str, text: str) -> None:
        text = " ".join(text.partition(_FROM_INSIDE)[0].split())[:_MOST_CHARACTERS]
        if not source or _ELSEWHERE in text or not _TELLING.search(text):
            return
        known = self._messages.get((source, text))
        if known is None:
            if len(self._messages) >= _MOST_MESSAGES:
                return
            known = self._messages[source, text] = _Message(time.time_ns())
        known.count += 1


def _source_of(filename: str, text: str) -> str:
    """The framework's module that warned, by its file; "" for the program's own warnings."""
    parts = filename.removesuffix(".py").replace("\\", "/").split("/")
    at = next((at for at, part in enumerate(parts) if part in _FRAMEWORKS), None)
    if at is not None:
        return ".".join(parts[at:])
    return "torch" if _FROM_INSIDE in text else ""
