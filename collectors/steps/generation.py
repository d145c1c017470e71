"""Which call of a generation method a forward belongs to.

A `generate` method that is a plain method is wrapped while the trace lives, and its calls counted.
One that was running already, or that is a generator, is found among the callers' frames.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from types import CodeType, FrameType
from typing import Any, NamedTuple

METHOD = "generate"
_MAX_FRAMES = 64


class Generation(NamedTuple):
    """The call of a generation method around a forward. number -1: none."""

    call: str
    number: int


OUTSIDE = Generation("forward", -1)


class _Local(threading.local):
    current: Generation | None = None
    frame: int = 0  # `id` of the frame of a method that is not wrapped
    framed: Generation = OUTSIDE


class Generations:
    """Counts calls of `generate`, in all threads together."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._local = _Local()
        self._wrapped: dict[type, tuple[Any, Any]] = {}

    def watch(self, model_type: type) -> None:
        """Count calls of the class's generation method from now on."""
        for owner in model_type.__mro__:
            method = vars(owner).get(METHOD)
            if method is None:
                continue
            # A generator runs after its call has returned; another descriptor is no method.
            if owner not in self._wrapped and _is_plain_method(method):
                wrapped = self._wrap(method)
                self._wrapped[owner] = (method, wrapped)
                setattr(owner, METHOD, wrapped)
            return

    def watch_loaded(self) -> None:
        """The same for transformers, where the program has loaded it."""
        module = sys.modules.get("transformers.generation.utils")
        mixin = getattr(module, "GenerationMixin", None)
        if isinstance(mixin, type):
            self.watch(mixin)

    def close(self) -> None:
        """Put every method back, unless somebody else has replaced it since."""
        for owner, (method, wrapped) in self._wrapped.items():
            if vars(owner).get(METHOD) is wrapped:
                setattr(owner, METHOD, method)
        self._wrapped.clear()

    def current(self, caller: FrameType | None) -> Generation:
        """The generation that this thread is in; `caller` is where to look when none is known."""
        return self._local.current or self._framed(caller)

    def _wrap(self, method: Any) -> Any:
        local, numbers = self._local, self._numbers
        code = getattr(inspect.unwrap(method), "__code__", None)

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Any:
            if local.current is not None:  # a wrapper model calls the generation of its inner one
                return method(*args, **kwargs)
            # One that was running before it could be wrapped calls this for its draft.
            around = _outermost(sys._getframe(1), code)
            if around is None:
                local.current = Generation(METHOD, next(numbers))
            else:
                local.current = self._number_of(around)
            try:
                return method(*args, **kwargs)
            finally:
                local.current = None

        return generate

    def _framed(self, frame: FrameType | None) -> Generation:
        """That of the method around a call, or of the one that calls it for a draft."""
        for _ in range(_MAX_FRAMES):
            if frame is None:
                return OUTSIDE
            code = frame.f_code
            if code.co_name == METHOD and code.co_varnames[:1] == ("self",):
                return self._number_of(_outermost(frame, code) or frame)
            frame = frame.f_back
        return OUTSIDE

    def _number_of(self, frame: FrameType) -> Generation:
        local = self._local
        if local.frame != id(frame):
            local.frame = id(frame)
            local.framed = Generation(METHOD, next(self._numbers))
        return local.framed


def _outermost(frame: FrameType | None, code: CodeType | None) -> FrameType | None:
    """The outermost call of a method: it calls itself for a draft. A method of another class around
    it, such as a loop over prompts, is no generation."""
    found = None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code is code:
            found = frame
        frame = frame.f_back
    return found


def _is_plain_method(method: Any) -> bool:
    inner = inspect.unwrap(method) if callable(method) else method
    return inspect.isfunction(inner) and not (
        inspect.isgeneratorfunction(inner)
        or inspect.iscoroutinefunction(inner)
        or inspect.isasyncgenfunction(inner)
    )
