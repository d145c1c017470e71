"""Products of fp32 with TF32 off: correct to the last bit, and seven times slower than need be.

    python samples/fallbacks/matmul_fp32.py [--clean]

Clean: TF32 allowed. Needs a GPU of the Ampere generation or later.
"""

from __future__ import annotations

from typing import Any

import torch
from running import main, need_gpu, steps_of


def traced(clean: bool) -> Any:
    """A recording of four steps."""
    need_gpu("this fallback")
    torch.set_float32_matmul_precision("high" if clean else "highest")
    weight = torch.randn(4096, 4096, device="cuda")
    return steps_of(lambda: weight @ weight, detail="full")


if __name__ == "__main__":
    main(__doc__, traced)
