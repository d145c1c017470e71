"""A padding mask that moves attention to its second-best kernel: fused still, so a note.

    python samples/fallbacks/attention_mask.py [--clean]

Clean: is_causal=True and no mask. Needs a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of
from torch.nn import functional


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    need_gpu("this choice")
    query = torch.randn(4, 8, 4096, 64, device="cuda", dtype=torch.bfloat16)
    mask = torch.ones(4, 1, 1, 4096, device="cuda", dtype=torch.bool)
    mask[:, :, :, 4000:] = False

    def step() -> torch.Tensor:
        if clean:
            return functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        return functional.scaled_dot_product_attention(query, query, query, attn_mask=mask)

    return steps_of(step)


if __name__ == "__main__":
    main(__doc__, traced)
