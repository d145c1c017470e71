"""The whole content of a file, gzipped or not, as far as it goes."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

from tracer.collectors.kineto.stream import open_source

Progress = Callable[[int, int], None]
_PART_BYTES = 4 << 20


class Content(NamedTuple):
    """`cut`: what was unpacked ends before it should."""

    text: bytes
    cut: bool


def read_content(path: str | PathLike[str], progress: Progress | None = None) -> Content:
    """Read and unpack a file. `progress` is called with the bytes read of it and its size."""
    text = bytearray()
    view = memoryview(bytearray(_PART_BYTES))
    with open_source(path) as (source, size):
        while got := source.read_into(view):
            text += view[:got]
            if progress is not None:
                progress(source.position(), size)
        cut = source.cut
    return Content(bytes(text), cut)
