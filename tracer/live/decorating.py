"""Recording the calls of a function, whatever kind of function it is."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

from tracer.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


class Recording(Protocol):
    """What a decorated function starts, naming the frame that asked for it, and stops, with the
    error that ended the program's part, if any did."""

    turn: threading.Lock  # held by the call that is recorded, from before its start to its end

    @property
    def running(self) -> bool: ...

    def start(self, caller: FrameType) -> None: ...

    def stop(self, error: BaseException | None) -> None: ...


def traced(recording: Recording, function: Function) -> Function:
    """The function, recorded in each outermost call; `recording` is left on it as an attribute."""
    if not callable(function):
        raise UsageError(f"@trace(): {function!r} is no function")
    wrapper = _wrapper(recording, function)
    wrapper.recording = recording
    return cast(Function, wrapper)


def _wrapper(recording: Recording, function: Callable[..., Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return _coroutine(recording, function)
    if inspect.isgeneratorfunction(function):
        return _generator(recording, function)
    if inspect.isasyncgenfunction(function):
        return _async_generator(recording, function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Once(recording):
            return function(*args, **kwargs)

    return call


class _Once:
    """Records unless the recording runs already, or begins or ends in another thread: then the
    call is a part of it, or not recorded."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._starts = False

    def __enter__(self) -> None:
        recording = self._recording
        self._starts = not recording.running and recording.turn.acquire(blocking=False)
        if not self._starts:
            return
        try:
            recording.start(sys._getframe(2))
        except BaseException:
            recording.turn.release()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not self._starts:
            return
        try:
            # A generator that its caller stops reading has not failed.
            self._recording.stop(None if isinstance(error, GeneratorExit) else error)
        finally:
            self._recording.turn.release()


def _coroutine(recording: Recording, function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _Once(recording):
            return await function(*args, **kwargs)

    return call


def _generator(recording: Recording, function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with _Once(recording):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(recording: Recording, function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with _Once(recording):
            inner = function(*args, **kwargs)
            try:
                item = await anext(inner)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # the program's, thrown into its generator
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return
            finally:
                await inner.aclose()

    return call
