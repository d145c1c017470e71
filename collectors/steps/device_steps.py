"""How long steps take on the device, from two events a step and no profiler."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

NANOSECONDS_PER_MILLISECOND = 1e6


class Event(Protocol):
    """A mark on a stream of the device."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Event, /) -> float: ...


class Device(Protocol):
    """The device that a thread uses now; None when it cannot take marks now."""

    def current(self) -> int | None: ...

    def event(self) -> Event: ...


class TorchDevice:
    """The CUDA or HIP device of torch, once the program has initialized it."""

    def __init__(self) -> None:
        import torch

        from tracer.collectors.untyped_torch import cuda_is_initialized

        self._in_use = cuda_is_initialized
        self._capturing = torch.cuda.is_current_stream_capturing
        self._number = torch.cuda.current_device
        self._event: Any = torch.cuda.Event

    def current(self) -> int | None:
        if not self._in_use() or self._capturing():
            return None
        return self._number()

    def event(self) -> Event:
        event: Event = self._event(enable_timing=True)
        return event


class DeviceSpan(NamedTuple):
    """The time of a step on a device, on the host's clock; `host_ns`: when the host began it."""

    device: int
    start_ns: int
    end_ns: int
    host_ns: int
    owner: str


class _Pair(NamedTuple):
    start: Event
    end: Event
    host_ns: int
    owner: str


class _Open(NamedTuple):
    owner: str
    device: int
    start: Event
    host_ns: int


@dataclass
class _Chain:
    """Marks of one device in order. Each is measured from the one before: the driver answers in
    single-precision milliseconds, too coarse over an hour."""

    waiting: deque[_Pair] = field(default_factory=deque)
    last: Event | None = None
    last_ns: int = 0  # since the first mark
    spans: list[tuple[int, int, _Pair]] = field(default_factory=list)  # since the first mark
    free: list[Event] = field(default_factory=list)


class DeviceSteps:
    """Marks the beginning and the end of steps; reads the marks only when they have passed."""

    DRAIN_EVERY = 256

    def __init__(self, device: Device | None = None) -> None:
        self._device = device or TorchDevice()
        self._chains: dict[int, _Chain] = {}
        self._open: dict[int, _Open] = {}
        self._lock = threading.RLock()  # a finalizer of the program may run in it

    def begin(self, owner: str) -> None:
        """A step begins on this thread, unless one is open: then this is a part of it."""
        thread = threading.get_ident()
        device = self._device.current()
        if device is None or thread in self._open:
            return
        host_ns = time.time_ns()
        with self._lock:
            event = self._mark(self._chains.setdefault(device, _Chain()))
        self._open[thread] = _Open(owner, device, event, host_ns)

    def end(self, owner: str) -> None:
        """It ends, if its owner began it."""
        opened = self._open.get(threading.get_ident())
        if opened is None or opened.owner != owner:
            return
        del self._open[threading.get_ident()]
        with self._lock:
            chain = self._chains[opened.device]
            if self._device.current() != opened.device:
                chain.free.append(opened.start)
                return
            end = self._mark(chain)
            chain.waiting.append(_Pair(opened.start, end, opened.host_ns, owner))
            if len(chain.waiting) >= self.DRAIN_EVERY:
                _drain(chain, lambda pair: pair.end.query())

    def _mark(self, chain: _Chain) -> Event:
        event = chain.free.pop() if chain.free else self._device.event()
        event.record()
        return event

    def close(self) -> list[DeviceSpan]:
        """Wait for the device once, and give the steps in the order in which they ended."""
        spans: list[DeviceSpan] = []
        with self._lock:
            for device, chain in self._chains.items():
                if chain.waiting or chain.last is not None:
                    spans += _finish(device, chain, self._device.event())
            self._chains.clear()
        return spans


def _drain(chain: _Chain, passed: Callable[[_Pair], bool]) -> None:
    while chain.waiting and passed(chain.waiting[0]):
        pair = chain.waiting.popleft()
        start_ns = _after(chain, pair.start)
        end_ns = start_ns + _elapsed_ns(pair.start, pair.end)
        chain.spans.append((start_ns, end_ns, pair))
        chain.free += [pair.start] if chain.last is None else [pair.start, chain.last]
        chain.last, chain.last_ns = pair.end, end_ns


def _finish(device: int, chain: _Chain, final: Event) -> list[DeviceSpan]:
    final.record()
    final.synchronize()
    now_ns = time.time_ns()  # the final mark has just passed: it ties the two clocks
    _drain(chain, lambda _: True)
    offset_ns = now_ns - _after(chain, final)
    return [
        DeviceSpan(device, start_ns + offset_ns, end_ns + offset_ns, pair.host_ns, pair.owner)
        for start_ns, end_ns, pair in chain.spans
    ]


def _after(chain: _Chain, event: Event) -> int:
    return 0 if chain.last is None else chain.last_ns + _elapsed_ns(chain.last, event)


def _elapsed_ns(start: Event, end: Event) -> int:
    return round(start.elapsed_time(end) * NANOSECONDS_PER_MILLISECOND)
