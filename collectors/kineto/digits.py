"""Numbers out of text, eight digits at a time, for many places at once.

Eight bytes are taken as one 64-bit word, and the digits in it are joined pairwise: three
multiplications for a number of eight digits, in vector arithmetic.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]

_U = np.uint64
_DOT, _MINUS = 46, 45
_LONGEST = 16  # digits
_PART_BYTES = 1 << 17
_BYTES_A_PLACE = 6
_FARTHEST_US = 2**62 // 1000
_FRACTION_SCALE = np.array([0, 100, 10, 1], dtype=np.uint64)


class Numbers(NamedTuple):
    """Values, and which of them could be read."""

    values: Ints
    good: Flags


class Text:
    """A text as bytes and as the 64-bit word that begins at each byte."""

    def __init__(self, raw: bytearray) -> None:
        self.raw = raw
        self._places = np.empty(len(raw) // _BYTES_A_PLACE, dtype=np.int64)
        self.bytes: NDArray[np.uint8] = np.frombuffer(raw, dtype=np.uint8)
        self.words: NDArray[np.uint64] = np.ndarray(
            shape=(len(raw) - 7,), dtype="<u8", buffer=raw, strides=(1,)
        )

    def places_of(self, byte: int, begin: int, end: int) -> Ints:
        """Positions of a byte in text[begin:end], in order; valid until the next call. Looking at
        a part that fits the processor's cache at a time halves the time and saves memory."""
        count = 0
        for start in range(begin, end, _PART_BYTES):
            stop = min(start + _PART_BYTES, end)
            found = np.flatnonzero(self.bytes[start:stop] == byte)
            if count + len(found) >= len(self._places):
                self._places = np.resize(self._places, 2 * len(self._places))
            part = self._places[count : count + len(found)]
            np.add(found, start, out=part)
            count += len(found)
        return self._places[:count]

    def ending_at(self, stops: Ints) -> Words:
        """The eight bytes before each position."""
        found: Words = self.words[stops - 8]
        return found


def _eight(words: Words, lengths: Ints | int) -> tuple[Words, Words]:
    """The number in the last `lengths` bytes of each word, and a mask of what is no digit."""
    words = words ^ _U(0x3030303030303030)
    shift = np.asarray((8 - lengths) * 8).astype(np.uint64)
    words >>= shift
    words <<= shift
    wrong = ((words + _U(0x7676767676767676)) | words) & _U(0x8080808080808080)
    words = (words * _U(10) + (words >> _U(8))) & _U(0x00FF00FF00FF00FF)
    words = (words * _U(100) + (words >> _U(16))) & _U(0x0000FFFF0000FFFF)
    words = (words * _U(10_000) + (words >> _U(32))) & _U(0xFFFFFFFF)
    return words, wrong


def _uniform(lengths: Ints) -> Ints | int:
    """The one length that all have, or all lengths."""
    first = int(lengths[0])
    return first if bool((lengths == first).all()) else lengths


def _one_number(words: Words, length: int) -> tuple[Words, Flags]:
    """Words that are all the same: a process, a thread, a stream."""
    values, wrong = _eight(words[:1], length)
    good = bool(wrong[0] == 0) and length > 0
    return np.full(len(words), values[0]), np.full(len(words), good)


def _digits(text: Text, starts: Ints, stops: Ints) -> tuple[Words, Flags]:
    lengths = stops - starts
    longest = int(lengths.max())
    if longest <= 8:
        words = text.ending_at(stops)
        length = _uniform(lengths)
        if isinstance(length, int) and bool((words == words[0]).all()):
            return _one_number(words, length)
        values, wrong = _eight(words, length)
        return values, (wrong == 0) & (lengths > 0)
    values, wrong = _eight(text.ending_at(stops), _uniform(np.minimum(lengths, 8)))
    above = _uniform(np.clip(lengths - 8, 0, 8))
    high, wrong_too = _eight(text.ending_at(stops - 8), above)
    values += high * _U(100_000_000)
    return values, ((wrong | wrong_too) == 0) & (lengths > 0) & (lengths <= _LONGEST)


def integers(text: Text, starts: Ints, stops: Ints) -> Numbers:
    """Whole numbers of up to sixteen digits, with or without a sign."""
    values, good = _digits(text, starts, stops)
    numbers: Ints = values.view(np.int64)
    if not good.all():
        negative = np.flatnonzero(~good & (text.bytes[starts] == _MINUS))
        if len(negative):
            below, good[negative] = _digits(text, starts[negative] + 1, stops[negative])
            numbers[negative] = -below.view(np.int64)
    return Numbers(numbers, good)


def thousandths(text: Text, starts: Ints, stops: Ints) -> Numbers:
    """Decimals with up to three places, times a thousand."""
    places = _places(text.bytes, stops)
    whole, good = _digits(text, starts, stops - places - (np.asarray(places) > 0))
    fraction, wrong = _eight(text.ending_at(stops), places)
    fraction *= _FRACTION_SCALE[places]
    good &= (wrong == 0) & (whole < _U(_FARTHEST_US))
    return Numbers((whole * _U(1000) + fraction).view(np.int64), good)


def _places(found: NDArray[np.uint8], stops: Ints) -> Any:
    """Digits after the point: three everywhere as the profiler writes them, fewer once the file
    went through a program that drops zeros."""
    three = found[stops - 4] == _DOT
    if three.all():
        return 3
    two, one = found[stops - 3] == _DOT, found[stops - 2] == _DOT
    return np.where(three, 3, np.where(two, 2, np.where(one, 1, 0)))
