"""A layer that stayed on the CPU inside a model on the GPU.

    python samples/fallbacks/layer_on_cpu.py [--clean]

Clean: it was moved with the rest. Needs a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of


class Net(torch.nn.Module):
    """A body on the GPU, and a head wherever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2048, 2048)
        self.head = torch.nn.Linear(2048, 32_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).to(self.head.weight.device))


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    need_gpu("this fallback")
    net = Net().to(torch.bfloat16)
    net.body.to("cuda")
    if clean:
        net.head.to("cuda")
    x = torch.randn(4, 2048, device="cuda", dtype=torch.bfloat16)
    return steps_of(lambda: net(x))


if __name__ == "__main__":
    main(__doc__, traced)
