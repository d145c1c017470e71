"""scaled_dot_product_attention that silently takes PyTorch's math path.

    python samples/fallbacks/attention_math.py [--clean]

On a GPU: grouped queries in fp32, which no fused kernel takes; clean, the same in bf16.
On a CPU: dropout, which the fused kernel for CPUs does not take; clean, none.
"""

from __future__ import annotations

from typing import Any

import torch
from running import device, main, steps_of
from torch.nn import functional


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    where, dtype = device(), torch.float32
    dropout = 0.0 if clean or where == "cuda" else 0.1
    if where == "cuda":
        shape, groups = (4, 24, 1024, 64), 2
        dtype = torch.bfloat16 if clean else torch.float32
    else:
        shape, groups = (1, 4, 256, 64), 1
    query = torch.randn(shape, device=where, dtype=dtype)
    key = torch.randn((shape[0], shape[1] // groups, *shape[2:]), device=where, dtype=dtype)

    def step() -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            query, key, key, dropout_p=dropout, enable_gqa=groups > 1
        )

    return steps_of(step)


if __name__ == "__main__":
    main(__doc__, traced)
