"""nn.MultiheadAttention, which returns its weights unless told otherwise: attention by hand.

    python samples/fallbacks/attention_weights.py [--clean]

Clean: need_weights=False.
"""

from __future__ import annotations

from typing import Any

import torch
from running import device, dtype, main, steps_of


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    # Training mode: evaluation has a path of its own in C++.
    layer = torch.nn.MultiheadAttention(256, 8, batch_first=True).train().to(device(), dtype())
    tokens = torch.randn(2, 256, 256, device=device(), dtype=dtype())

    def step() -> Any:
        return layer(tokens, tokens, tokens, need_weights=not clean)

    return steps_of(step)


if __name__ == "__main__":
    main(__doc__, traced)
