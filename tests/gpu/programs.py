"""Small programs for a CUDA device: a decode-like step, and waits planted into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Hook = Callable[[torch.Tensor], Any]


class Block(torch.nn.Module):
    """Norm, attention-like products and a gated FFN, wide enough to keep a GPU busy."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 8, width // 8).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        grown: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return grown


def make_model(layers: int = 4, width: int = 1024) -> torch.nn.Module:
    """A stack of blocks in bf16 on the device."""
    with torch.device("cuda"):
        stack = torch.nn.Sequential(*(Block(width) for _ in range(layers)))
    return stack.to(torch.bfloat16).eval()


def run_steps(model: torch.nn.Module, steps: int, hook: Hook | None = None) -> None:
    """Steps of a loop; the hook sees the output of each."""
    x = torch.ones(2, 256, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(steps):
            y = model(x)
            if hook is not None:
                hook(y)


def item(y: torch.Tensor) -> None:
    y.max().item()  # line: item


def boolean(y: torch.Tensor) -> None:
    if (y > 1e6).any():  # line: boolean
        raise AssertionError


def nonzero(y: torch.Tensor) -> None:
    torch.nonzero(y[0, 0])  # line: nonzero


def masked(y: torch.Tensor) -> None:
    row = y[0, 0]
    row[row > 0]  # line: masked


def repeated(y: torch.Tensor) -> None:
    counts = torch.ones(4, dtype=torch.int64, device="cuda")
    torch.repeat_interleave(y[0, 0, :4], counts)  # line: repeated


def to_host(y: torch.Tensor) -> None:
    y.cpu()  # line: to_host


def from_pageable(y: torch.Tensor) -> None:
    _PAGEABLE.to("cuda")  # line: from_pageable


def constant(y: torch.Tensor) -> None:
    torch.tensor([1, 2, 3], device="cuda")  # line: constant


def explicit(y: torch.Tensor) -> None:
    torch.cuda.synchronize()  # line: explicit


def pinned(y: torch.Tensor) -> None:
    pinned_memory().to("cuda", non_blocking=True)


def where(y: torch.Tensor) -> None:
    torch.where(y > 0, y, y * 2)


def sized_repeat(y: torch.Tensor) -> None:
    counts = torch.ones(4, dtype=torch.int64, device="cuda")
    torch.repeat_interleave(y[0, 0, :4], counts, output_size=4)


_PAGEABLE = torch.ones(1 << 20)
_pinned: list[torch.Tensor] = []


def pinned_memory() -> torch.Tensor:
    """A pinned tensor, made once."""
    if not _pinned:
        _pinned.append(torch.ones(1 << 20).pin_memory())
    return _pinned[0]


# Program -> cause of its hidden wait; "" for a clean one.
WAITS: dict[str, tuple[Hook, str]] = {
    "item": (item, "scalar-read"),
    "boolean": (boolean, "scalar-read"),
    "nonzero": (nonzero, "data-dependent-shape"),
    "masked": (masked, "data-dependent-shape"),
    "repeated": (repeated, "data-dependent-shape"),
    "to_host": (to_host, "device-to-host-copy"),
    "from_pageable": (from_pageable, "pageable-copy"),
    "constant": (constant, "pageable-copy"),
    "pinned": (pinned, ""),
    "where": (where, ""),
    "sized_repeat": (sized_repeat, ""),
}


def line_of(name: str) -> int:
    """The line of this file on which the wait of a program stands."""
    with open(__file__, encoding="utf-8") as file:
        return next(
            n for n, text in enumerate(file, 1) if text.rstrip().endswith(f"# line: {name}")
        )
