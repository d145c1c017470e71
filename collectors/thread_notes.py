"""Moments that the threads of a program note, each with a number that says what was there."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

# A number of so many bits beside each time.
BITS = 20


class _Own(threading.local):
    """What one thread noted: another may have its identity when it is gone, but not this."""

    def __init__(self, all_: list[tuple[int, list[int]]]) -> None:
        self.moments: list[int] = []
        all_.append((threading.get_native_id(), self.moments))


class ThreadNotes:
    """Each thread adds `time_ns << BITS | number` to its `own.moments`. That is one number in one
    list, which an interruption leaves whole, and the cheapest that there is to add."""

    def __init__(self) -> None:
        self._all: list[tuple[int, list[int]]] = []
        self.own = _Own(self._all)

    def columns(self) -> tuple[Longs, Longs, Longs]:
        """Times, threads as the operating system numbers them, and numbers, of all threads."""
        noted = [(thread, list(moments)) for thread, moments in list(self._all)]
        times = [moment >> BITS for _, moments in noted for moment in moments]
        numbers = [moment & (1 << BITS) - 1 for _, moments in noted for moment in moments]
        threads = np.array([thread for thread, _ in noted], dtype=np.int64)
        counts = [len(moments) for _, moments in noted]
        return _longs(times), threads.repeat(counts), _longs(numbers)


def _longs(values: list[int]) -> Longs:
    return np.array(values, dtype=np.int64)
