"""The other side of `ask`: what a probe does in its own process."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_channel: list[int] = []
_context: dict[str, Any] = {}


def open_channel() -> Any:
    """Keep stdout for replies alone, whatever the libraries print, and return the payload."""
    _channel.append(os.dup(1))
    os.dup2(2, 1)
    return json.load(sys.stdin)


def answer_for(**context: Any) -> None:
    """What every reply of this process carries from now on."""
    _context.update(context)


def reply(**values: Any) -> None:
    """One answer; written at once, so that a later crash does not take it along."""
    os.write(_channel[0], (json.dumps({**_context, **values}, default=str) + "\n").encode())
