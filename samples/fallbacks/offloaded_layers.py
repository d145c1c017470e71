"""Layers whose weights stay on the host and travel to the GPU in each forward.

    python samples/fallbacks/offloaded_layers.py [--clean]

Two of four layers are moved in by a hook, as automatic placement does when memory runs out; clean,
all four stay on the GPU. Needs a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of


def move_in(module: torch.nn.Module, inputs: Any) -> None:
    """Before the layer: its weights to the GPU."""
    module.kept = module.weight.data
    module.weight.data = module.kept.to("cuda")


def move_out(module: torch.nn.Module, inputs: Any, output: Any) -> None:
    """After the layer: forget the copy."""
    module.weight.data = module.kept


def traced(clean: bool) -> Any:
    """A recording of six steps."""
    need_gpu("this fallback")
    layers = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(4)))
    layers.to(torch.bfloat16)
    for index, layer in enumerate(layers):
        if clean or index < 2:
            layer.to("cuda")
        else:
            layer.register_forward_pre_hook(move_in)
            layer.register_forward_hook(move_out)
    x = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    return steps_of(lambda: layers(x), steps=6)


if __name__ == "__main__":
    main(__doc__, traced)
