"""What of a pause a Python function spends in calls that wait for others, from recorded frames."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.facts.host import Host
from tracer.analyzers.facts.places import parse_frame
from tracer.analyzers.intervals import NONE, Longs, covered, union
from tracer.events import Trace
from tracer.findings import Where

# Calls that return when another thread or process is done, and those by which a loop asks for that
# again and again: it waits until it asks the next time, if that is soon.
_CALL = r"<built-in (?:function|method) (?:%s)\b"
_WAITS = re.compile(_CALL % r"acquire|recv\w*|accept")
_ASKS = re.compile(_CALL % r"sched_yield|sleep|select|poll|epoll_wait|wait\w*")
_SOON_NS = 100_000
# A sleep as long as this is a pause that the program makes, whoever else is done meanwhile.
_SLEEPS, _LONG_SLEEP_NS = re.compile(_CALL % "sleep"), 1_000_000
# A function that spends this share of its pauses so works at nothing.
_MOSTLY = 0.5


def mostly_waits(host: Host, where: Where, starts: Longs, ends: Longs) -> bool:
    """Whether a function waits in most of these stretches of time, which are in order and apart:
    by the frames within its own. False where frames do not tell."""
    if where.function is None:
        return False
    trace = host.trace
    mine = host.nearest(trace.named(lambda name: parse_frame(name) == where, "frame")) != NONE
    waits = trace.named(_WAITS.match, "frame") & mine
    asks = trace.named(_ASKS.match, "frame") & mine & ~_long_sleeps(trace)
    begun = np.concatenate([trace.start_ns[waits], trace.start_ns[asks]])
    over = np.concatenate([trace.end_ns[waits], trace.end_ns[asks] + _SOON_NS])
    waiting = covered(starts, ends, *union(begun, over))
    return int(waiting.sum()) > _MOSTLY * int((ends - starts).sum())


def _long_sleeps(trace: Trace) -> NDArray[np.bool_]:
    long: NDArray[np.bool_] = trace.end_ns[:] - trace.start_ns >= _LONG_SLEEP_NS
    return long & trace.named(_SLEEPS.match, "frame")


def waiting_words(where: Where, each: str) -> tuple[str, str]:
    """Title and advice for such a function; `each`: how long a pause is, in words."""
    line = f"{where.file}:{where.line}"
    place = f"in {where.function}" if where.function else f"at {line}"
    return (
        f"the host waits {place} for another thread or process, {each}",
        (
            f"It waits at {line} and does nothing itself: look at what it waits for, such as the "
            "process that sends it work, and record that one too."
        ),
    )
