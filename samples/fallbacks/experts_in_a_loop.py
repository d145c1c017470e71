"""A mixture of experts that runs them one after another, each with a wait and small products.

    python samples/fallbacks/experts_in_a_loop.py [--clean]

Clean: one batched product over all experts.
"""

from __future__ import annotations

from typing import Any

import torch
from running import device, dtype, main, steps_of

_EXPERTS, _CHOSEN = 8, 2


class Experts(torch.nn.Module):
    """Two of eight experts for each token."""

    def __init__(self, size: int, *, batched: bool) -> None:
        super().__init__()
        self.router = torch.nn.Linear(size, _EXPERTS, bias=False)
        self.up = torch.nn.Parameter(torch.randn(_EXPERTS, size, 2 * size) * 0.05)
        self.down = torch.nn.Parameter(torch.randn(_EXPERTS, 2 * size, size) * 0.05)
        self.batched = batched

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(_CHOSEN)
        return (
            self.all_at_once(x, weights, chosen) if self.batched else self.loop(x, weights, chosen)
        )

    def loop(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in range(_EXPERTS):
            rows, place = torch.where(chosen == expert)
            hidden = torch.nn.functional.silu(x[rows] @ self.up[expert]) @ self.down[expert]
            out.index_add_(0, rows, hidden * weights[rows, place, None])
        return out

    def all_at_once(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        share = x.new_zeros(x.shape[0], _EXPERTS).scatter(1, chosen, weights)
        hidden = torch.nn.functional.silu(x.expand(_EXPERTS, *x.shape) @ self.up) @ self.down
        return (hidden * share.T[..., None]).sum(0)


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    layer = Experts(256, batched=clean).to(device(), dtype())
    x = torch.randn(64, 256, device=device(), dtype=dtype())
    return steps_of(lambda: layer(x))


if __name__ == "__main__":
    main(__doc__, traced)
