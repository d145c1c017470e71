"""Ranges around the C++ kernels that Inductor generates: they leave no row of their own.

A generated module finds its kernels among its globals, so a kernel with a range around it takes the
place of the plain one there while a trace records, and the plain one is put back after it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch.autograd.profiler as autograd_profiler

from tracer.collectors.torch_private import range_functions

_DEFINED = re.compile(r"^(\w+) = async_compile\.cpp\w*\(", re.M)


class GeneratedRanges:
    """Wraps the kernels of graphs that are shown to `wrap`, until `close`."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[dict[str, Any], str, Any, Any]] = []

    def wrap(self, graph: Any) -> None:
        """Wrap what this graph calls. The graph itself leads there: the compiler forgets the
        modules that it loaded when its caches are switched off."""
        names = _globals_of(graph)
        for name in _kernels_in(str(names.get("__file__", ""))):
            kernel = names.get(name)
            if callable(kernel) and not isinstance(kernel, _RangedKernel):
                ranged = _RangedKernel(name, kernel)
                names[name] = ranged
                self._wrapped.append((names, name, kernel, ranged))

    def close(self) -> None:
        """Put every kernel back."""
        while self._wrapped:
            names, name, kernel, ranged = self._wrapped.pop()
            if names.get(name) is ranged:
                names[name] = kernel


def _globals_of(graph: Any) -> dict[str, Any]:
    """The globals of the module that was generated for a graph; empty where it shows none. Its
    runner keeps the generated function, whatever is laid around what is called."""
    runner = getattr(graph, "compiled_fn_runner", None)
    called = getattr(runner, "call", None) or getattr(graph, "current_callable", None)
    function = called.__func__ if isinstance(called, MethodType) else called
    found = getattr(function, "__globals__", None)
    return found if isinstance(found, dict) else {}


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
