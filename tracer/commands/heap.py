"""Memory that a command has done with stays with its process."""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), and what they are set to.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_BYTES = 256 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Arrays of megabytes come and go by the hundred in an analysis. The C library would give each
    back to the system and ask for clean pages again, which takes a tenth of the time. Where it is
    another library nothing changes."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    set_option(_MMAP_THRESHOLD, _LARGEST_BYTES)
    set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
