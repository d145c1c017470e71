"""What the compiler counts, with and without a trace around compiled code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch._dynamo.utils import counters

from tracer import trace
from tracer.recorder import Recording

COUNTED = ("frames", "stats", "graph_break", "unimplemented", "recompiles")


def forget() -> None:
    torch._dynamo.reset()
    counters.clear()


def compilations(
    make: Callable[[], nn.Module], use: Callable[[nn.Module], None], *, traced: bool, first: bool
) -> tuple[dict[str, list[int]], Recording | None]:
    """What the compiler counted in three uses, the middle one traced; or all inside the trace."""
    forget()
    model = make()
    if first:
        use(model)
    with trace(model) if traced else nullcontext() as t:
        use(model)
    use(model)
    # Messages name objects by address: how often each came is all that is compared.
    return {name: sorted(counters[name].values()) for name in COUNTED}, t
