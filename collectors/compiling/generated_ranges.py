"""Ranges around the C++ kernels that Inductor generates: they leave no row of their own.

A generated module finds its kernels among its globals, so a kernel with a range around it takes the
place of the plain one there while a trace records, and the plain one is put back after it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.autograd.profiler as autograd_profiler

from tracer.collectors.torch_private import range_functions

_DEFINED = re.compile(r"^(\w+) = async_compile\.cpp\w*\(", re.M)


class GeneratedRanges:
    """Wraps kernels of modules that are loaded at `start` or later, until `close`."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[ModuleType, str, Any, Any]] = []
        self._done = 0
        self._cache: Any = None

    def watch(self, codecache: ModuleType) -> None:
        """Begin with the modules that this cache of the compiler holds."""
        self._cache = getattr(codecache, "PyCodeCache", None)
        self.look()

    def look(self) -> None:
        """Wrap what was loaded since the last look."""
        loaded = getattr(self._cache, "modules", None)
        if not isinstance(loaded, list) or len(loaded) == self._done:
            return
        new, self._done = loaded[min(self._done, len(loaded)) :], len(loaded)
        for module in new:
            self._wrap(module)

    def _wrap(self, module: ModuleType) -> None:
        for name in _kernels_of(module):
            kernel = vars(module).get(name)
            if callable(kernel) and not isinstance(kernel, _RangedKernel):
                ranged = _RangedKernel(name, kernel)
                setattr(module, name, ranged)
                self._wrapped.append((module, name, kernel, ranged))

    def close(self) -> None:
        """Put every kernel back."""
        while self._wrapped:
            module, name, kernel, ranged = self._wrapped.pop()
            if vars(module).get(name) is ranged:
                setattr(module, name, kernel)


class _RangedKernel:
    """A kernel that writes a range when it is called."""

    def __init__(self, name: str, kernel: Any) -> None:
        self._name, self._kernel = name, kernel
        self._closed: list[tuple[Callable[[], object], Callable[[], object]]] = []

    def __call__(self, *args: Any) -> Any:
        if not autograd_profiler._is_profiler_enabled:
            return self._kernel(*args)
        # A range is taken while it is open: two threads may call the kernel.
        try:
            closed = self._closed.pop()
        except IndexError:
            closed = range_functions(self._name)
        enter, leave = closed
        enter()
        try:
            return self._kernel(*args)
        finally:
            leave()
            self._closed.append(closed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


@functools.lru_cache(maxsize=1024)
def _kernels_in(path: str) -> tuple[str, ...]:
    try:
        with open(path, encoding="utf-8") as file:
            return tuple(_DEFINED.findall(file.read()))
    except (OSError, ValueError):
        return ()


def _kernels_of(module: ModuleType) -> tuple[str, ...]:
    path = getattr(module, "__file__", None)
    return _kernels_in(path) if path else ()
