"""Moments that the threads of a program note, each with a number that says what was there."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

# Numbers of a moment.
WIDTH = 2


class _Own(threading.local):
    """What one thread noted: another may have its identity when it is gone, but not this."""

    def __init__(self, all_: list[tuple[int, list[int]]]) -> None:
        self.moments: list[int] = []
        all_.append((threading.get_native_id(), self.moments))


class ThreadNotes:
    """Each thread extends its `own.moments` by `(time_ns, number)`: one call of C code, which an
    interruption leaves whole. One number made of both takes twice as long."""

    def __init__(self) -> None:
        self._all: list[tuple[int, list[int]]] = []
        self.own = _Own(self._all)

    def columns(self) -> tuple[Longs, Longs, Longs]:
        """Times, threads as the operating system numbers them, and numbers, of all threads."""
        noted = [(thread, _pairs(list(moments))) for thread, moments in list(self._all)]
        threads = np.array([thread for thread, _ in noted], dtype=np.int64)
        counts = [len(pairs) for _, pairs in noted]
        pairs = np.concatenate([_pairs([]), *(pairs for _, pairs in noted)])
        return pairs[:, 0], threads.repeat(counts), pairs[:, 1]


def _pairs(moments: list[int]) -> Longs:
    return np.array(moments, dtype=np.int64).reshape(-1, WIDTH)
