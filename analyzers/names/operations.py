"""The operation of communication that a recorded name stands for."""

from __future__ import annotations

from functools import lru_cache

_OPERATIONS = (
    ("all_reduce", ("allreduce", "all_reduce")),
    ("reduce_scatter", ("reduce_scatter", "reducescatter")),
    ("all_gather", ("allgather", "all_gather", "_allgather")),
    ("all_to_all", ("all_to_all", "alltoall", "all2all")),
    ("broadcast", ("broadcast",)),
    ("send_recv", ("send", "recv", "batch_isend", "coalesced")),
    ("other", ("barrier", "reduce", "gather", "scatter", "wait")),
)


@lru_cache(maxsize=4096)
def normal_operation(recorded: str) -> str:
    """The part of communication for an operation as torch.distributed records it; "" for none."""
    lower = recorded.lower()
    for part, words in _OPERATIONS:
        if lower and any(word in lower for word in words):
            return part
    return ""


@lru_cache(maxsize=65536)
def range_operation(name: str) -> str:
    """The operation of a range such as nccl:all_reduce or c10d::allreduce_; "" for others."""
    prefix, _, rest = name.partition(":")
    if prefix in ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl", "c10d", "_c10d_functional"):
        return normal_operation(rest)
    return ""
