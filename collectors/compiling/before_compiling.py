"""Undo patches before a compiler could find them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from tracer.collectors import torch_private


def _nothing() -> None:
    pass


def before_compiling(
    undo: Callable[[], None], after: Callable[[], None] = _nothing
) -> Callable[[], None]:
    """Call `undo` before anything is compiled and `after` when it is; returns what ends that."""

    def compiling(*args: Any) -> None:
        undo()

    def compiled(*args: Any) -> None:
        after()

    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is None:
        return _around_compile(undo, after)
    handler.register_start_callback(compiling)
    handler.register_end_callback(compiled)

    def forget() -> None:
        _forget(handler.start_callbacks, compiling)
        _forget(handler.end_callbacks, compiled)

    return forget


def _around_compile(undo: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Dynamo is not even loaded: whatever compiles comes through `torch.compile` first."""
    original = torch.compile

    def compile_(*args: Any, **kwargs: Any) -> Any:
        undo()
        try:
            return original(*args, **kwargs)
        finally:
            after()

    def restore() -> None:
        if torch.compile is compile_:
            torch.compile = original

    torch.compile = compile_
    return restore


def _forget(callbacks: list[Any], callback: Any) -> None:
    if callback in callbacks:  # a reset of the compiler forgets them all
        callbacks.remove(callback)


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
