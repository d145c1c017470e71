"""Parts of gaps with their causes, and how they make the gaps again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.gaps import DEVICE, UNEXPLAINED, Gaps
from tracer.analyzers.intervals import NONE, Longs, Rows


@dataclass(frozen=True)
class Pieces:
    """Parts of gaps: the piece of idle each came from, its bounds, cause and causing event."""

    source: Rows
    start_ns: Longs
    end_ns: Longs
    cause: NDArray[np.int8]
    event: Rows


def bounded(source: Rows, start: Longs, end: Longs) -> Pieces:
    """Those that last, of no cause yet."""
    keep = end > start
    size = int(keep.sum())
    return Pieces(
        source[keep],
        start[keep],
        end[keep],
        np.full(size, UNEXPLAINED, dtype=np.int8),
        np.full(size, NONE, dtype=np.int32),
    )


def lasting(piece: Pieces) -> Pieces:
    """Those that take time."""
    return chosen(piece, piece.end_ns > piece.start_ns)


def chosen(piece: Pieces, keep: NDArray[np.bool_]) -> Pieces:
    """Those that the mask names."""
    if keep.all():
        return piece
    return Pieces(
        piece.source[keep],
        piece.start_ns[keep],
        piece.end_ns[keep],
        piece.cause[keep],
        piece.event[keep],
    )


def joined(parts: list[Pieces]) -> Pieces:
    """All of these behind each other."""
    return Pieces(
        np.concatenate([part.source for part in parts]),
        np.concatenate([part.start_ns for part in parts]),
        np.concatenate([part.end_ns for part in parts]),
        np.concatenate([part.cause for part in parts]),
        np.concatenate([part.event for part in parts]),
    )


def merged(gaps: Gaps, pieces: Pieces, unrecorded: NDArray[np.bool_], pace_ns: int) -> Gaps:
    """The pieces in order, neighbours of one cause and event joined. unrecorded: of each gap,
    whether the device, where it waited for itself or for nobody knows what, may have been busy
    with what has no rows."""
    order = np.argsort(pieces.start_ns, kind="stable")  # which merges parts that are in order
    if gaps.device.size and gaps.device[0] != gaps.device[-1]:
        order = order[np.argsort(gaps.device[pieces.source[order]], kind="stable")]
    source, cause, event = pieces.source[order], pieces.cause[order], pieces.event[order]
    new = np.ones(source.size, dtype=bool)
    new[1:] = (source[1:] != source[:-1]) | (cause[1:] != cause[:-1]) | (event[1:] != event[:-1])
    first, last = order[new], order[np.append(new[1:], True)[: new.size]]
    kept, cause = source[new], cause[new]
    return Gaps(
        gaps.device[kept],
        pieces.start_ns[first],
        pieces.end_ns[last],
        gaps.step[kept],
        gaps.before[kept],
        gaps.after[kept],
        cause,
        gaps.gap[kept],
        event[new],
        unrecorded[kept] & ((cause == DEVICE) | (cause == UNEXPLAINED)),
        pace_ns,
    )
