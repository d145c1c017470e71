"""Products whose sizes leave operands misaligned, such as a vocabulary of 50257.

    python samples/fallbacks/matmul_misaligned.py [--clean]

Clean: the vocabulary padded to a multiple of 64. Needs a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    need_gpu("this fallback")
    vocabulary = 50304 if clean else 50257
    hidden = torch.randn(2048, 1599 if not clean else 1600, device="cuda", dtype=torch.bfloat16)
    head = torch.randn(hidden.shape[1], vocabulary, device="cuda", dtype=torch.bfloat16)
    return steps_of(lambda: hidden @ head, detail="full")


if __name__ == "__main__":
    main(__doc__, traced)
