"""Two ranks, of which rank 1 leaves out one all-reduce; the watchdog writes what each rank did."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def reduce_all(values: torch.Tensor) -> None:
    """A step of the job."""
    dist.all_reduce(values)  # line: all-reduce


def main() -> None:
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)
    dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=8))
    values = torch.ones(1 << 20, device=device)
    for step in range(10):
        if not (step == 7 and dist.get_rank() == 1):
            reduce_all(values)
        torch.cuda.synchronize() if step < 7 else None
    time.sleep(30)


if __name__ == "__main__":
    main()
