"""Questions to torch whose answers it gives no types: asked here alone."""

from __future__ import annotations

from typing import Any

import torch

_cuda: Any = torch.cuda
_cudnn: Any = torch.backends.cudnn


def cuda_is_initialized() -> bool:
    """Whether this process uses a GPU; asking starts none."""
    return bool(_cuda.is_initialized())


def cudnn_is_available() -> bool:
    """Whether this torch has cuDNN."""
    return bool(_cudnn.is_available())


def cudnn_version() -> int | None:
    """As cuDNN numbers it; None without it."""
    version: int | None = _cudnn.version()
    return version


def nccl_version() -> tuple[int, ...]:
    """Major, minor, patch. Raises where this torch has no NCCL."""
    return tuple(_cuda.nccl.version())
