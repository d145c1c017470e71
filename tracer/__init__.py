"""tracer: where did the time of this transformer step go, and what do I change?

The names below load on first use, so that reading a file needs neither torch nor a screen.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tracer.version import VERSION as __version__

if TYPE_CHECKING:
    from tracer.recorder import trace as trace

_HOMES = {"trace": "tracer.recorder", "TracerError": "tracer.errors", "Trace": "tracer.events"}

__all__ = ["__version__", "trace"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    return getattr(import_module(home), name)
