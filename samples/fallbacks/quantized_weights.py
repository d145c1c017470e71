"""8-bit weights that are widened before each product, step after step.

    python samples/fallbacks/quantized_weights.py [--clean]

Clean: the weights stay wide. Types of operands are recorded with detail "full" alone.
"""

from __future__ import annotations

from typing import Any

import torch
from running import device, main, steps_of


class Packed(torch.nn.Module):
    """A linear layer with weights of 8 bits and one scale."""

    def __init__(self, size: int, *, widened: bool) -> None:
        super().__init__()
        packed = torch.randint(-127, 127, (size, size), dtype=torch.int8)
        self.register_buffer("weight", packed.to(torch.bfloat16) * 0.01 if widened else packed)
        self.widened = widened

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight if self.widened else self.weight.to(torch.bfloat16) * 0.01
        return torch.nn.functional.linear(x, weight)


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    size, tokens = (4096, 256) if device() == "cuda" else (512, 16)
    layer = Packed(size, widened=clean).to(device())
    x = torch.randn(tokens, size, device=device(), dtype=torch.bfloat16)
    return steps_of(lambda: layer(x), detail="full")


if __name__ == "__main__":
    main(__doc__, traced)
