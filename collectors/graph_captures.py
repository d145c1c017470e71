"""CUDA graphs that the program captures while a trace lives, and the marks that torch keeps for
their nodes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import torch

_METHOD = "capture_end"
# Where torch keeps what `mark_kernels` was told: public from 2.14 on, private before.
_ANNOTATIONS = ("torch.cuda.graph_annotations", "torch.cuda._graph_annotations")


class GraphCaptures:
    """Counts the captures that end between `start` and `close`."""

    def __init__(self) -> None:
        self.count = 0
        self.annotations: dict[int, str] = {}
        self._original: Any = None
        self._patch: Any = None

    def start(self) -> None:
        """Watch the end of captures, where this torch can capture any."""
        owner = _graph_class()
        original = getattr(owner, _METHOD, None)
        if owner is None or original is None:
            return

        @functools.wraps(original)
        def capture_end(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return original(*args, **kwargs)

        self._original, self._patch = vars(owner).get(_METHOD), capture_end
        setattr(owner, _METHOD, capture_end)

    def close(self) -> None:
        """Take the patch away, and read the marks."""
        owner = _graph_class()
        if (
            owner is not None
            and self._patch is not None
            and vars(owner).get(_METHOD) is self._patch
        ):
            if self._original is None:
                delattr(owner, _METHOD)
            else:
                setattr(owner, _METHOD, self._original)
        self._patch = None
        self.annotations = read_annotations()


def _graph_class() -> type | None:
    """The class of graphs, where torch was built with them."""
    if not hasattr(torch._C, "_CUDAGraph"):
        return None
    return getattr(torch.cuda, "CUDAGraph", None)


def read_annotations() -> dict[int, str]:
    """Number of a node -> what its innermost mark says; empty where nobody marked any."""
    for name in _ANNOTATIONS:
        reader = getattr(sys.modules.get(name), "get_kernel_annotations", None)
        if reader is not None:
            return {int(node): _innermost(marks) for node, marks in dict(reader()).items() if marks}
    return {}


def _innermost(marks: Any) -> str:
    mark = marks[-1] if isinstance(marks, list | tuple) else marks
    if isinstance(mark, Mapping):
        mark = mark.get("name", next(iter(mark.values()), ""))
    return str(mark)
