"""Undo patches before a compiler could find them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tracer.collectors import torch_private
from tracer.collectors.import_watch import ImportWatch

_DYNAMO = "torch._dynamo"


def before_compiling(undo: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call `undo` before anything is compiled, or Dynamo is loaded, which looks at what it will
    meet, and `after` when that is done; returns what ends that. Where this Dynamo does not tell,
    `after` is never called once it is loaded."""
    ends: list[Callable[[], None]] = []

    def follow(dynamo: ModuleType) -> bool:
        handler = getattr(dynamo, "callback_handler", None)
        if handler is None:
            return False
        ends.append(_call_at_each(handler.start_callbacks, undo))
        ends.append(_call_at_each(handler.end_callbacks, after))
        return True

    def loaded(dynamo: ModuleType) -> None:
        if follow(dynamo):
            after()

    dynamo = sys.modules.get(_DYNAMO)
    if dynamo is None:
        watch = ImportWatch({_DYNAMO: loaded}, before=undo)
        watch.start()
        ends.append(watch.close)
    else:
        follow(dynamo)

    def end() -> None:
        while ends:
            ends.pop()()

    return end


def _call_at_each(callbacks: list[Any], action: Callable[[], None]) -> Callable[[], None]:
    """Call something at each turn of a list that a reset of the compiler empties: it comes back
    when it goes."""
    alive: list[weakref.ref[Any]] = []

    def register(gone: object = None) -> None:
        def callback(*args: Any) -> None:
            action()

        alive[:] = [weakref.ref(callback, register)]
        callbacks.append(callback)

    def forget() -> None:
        callback = alive.pop()()
        if callback in callbacks:
            callbacks.remove(callback)

    register()
    return forget


def compiled_code_checks(name: str) -> bool:
    """Whether code that Dynamo compiled in this process may check at each call that a function of
    this name is still the same: it is compiled again where one is patched. True where this torch
    does not tell."""
    parts = torch_private.compiled_guards()
    return has_compiled() if parts is None else any(name in part for part in parts)


def has_compiled() -> bool:
    """Whether Dynamo has compiled a frame in this process. It counts no frames of `fullgraph=True`,
    only their graphs."""
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    return bool(counters and (counters.get("frames") or counters.get("stats")))
