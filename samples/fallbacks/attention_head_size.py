"""A head size that the fused kernels do not take: the math path, and its score matrix in memory.

    python samples/fallbacks/attention_head_size.py [--clean]

Eight query heads of size 512, two key heads; clean, heads of size 128. Needs a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of
from torch.nn import functional


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    need_gpu("this fallback")
    size = 128 if clean else 512
    query = torch.randn(4, 8, 1024, size, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(4, 2, 1024, size, device="cuda", dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)

    return steps_of(step)


if __name__ == "__main__":
    main(__doc__, traced)
