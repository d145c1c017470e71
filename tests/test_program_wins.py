"""Programs of every kind do under a trace what they do without one."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import nn

from tracer import trace
from tracer.live.options import Detail

DETAILS: tuple[Any, ...] = get_args(Detail)


class Named(nn.Linear):
    """Takes arguments of names that a wrapper might have for its own."""

    def forward(self, input: Any, module: Any = None, original: Any = None) -> Any:
        return super().forward(input) + module + original


@pytest.mark.parametrize("detail", DETAILS)
def test_an_argument_may_have_any_name(detail: Detail) -> None:
    model = Named(4, 4)
    with trace(detail=detail), torch.no_grad():
        for _ in range(6):
            model(torch.ones(2, 4), module=1, original=2)
