"""How many weights a rank computes with, where they are sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from tracer.collectors.modules.module_tree import ModuleTree

WIDTH = 8


@pytest.fixture(autouse=True)
def four_ranks() -> Iterator[None]:
    """A process group that sends nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def model() -> nn.Module:
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())
    return nn.Sequential(inner, nn.Linear(WIDTH, WIDTH, bias=False))


def listed(root: nn.Module) -> dict[str, tuple[int, int]]:
    """Parameters and bytes of each module with any."""
    tree = ModuleTree(every_module=True)
    tree.add(root)
    table = tree.table()
    rows = zip(table["path"], table["parameters"], table["parameter_bytes"], strict=True)
    return {str(path): (int(count), int(size)) for path, count, size in rows if count}


WHOLE = (WIDTH * WIDTH, 4 * WIDTH * WIDTH)
HALF = (WIDTH * WIDTH // 2, 2 * WIDTH * WIDTH)


def test_a_rank_computes_with_its_part_of_what_tensor_parallelism_divides() -> None:
    root = model()
    mesh: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(root, mesh["tp"], {"0.0": ColwiseParallel()})
    assert listed(root) == {"0.0": HALF, "1": WHOLE}


def test_what_is_gathered_before_each_call_is_computed_with_whole() -> None:
    root = model()
    mesh = init_device_mesh("cpu", (4,))
    fully_shard(next(root.children()), mesh=mesh)
    fully_shard(root, mesh=mesh)
    assert listed(root) == {"0.0": WHOLE, "1": WHOLE}


def test_both_at_once() -> None:
    root = model()
    mesh: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(root, mesh["tp"], {"0.0": ColwiseParallel()})
    fully_shard(root, mesh=mesh["dp"])
    assert listed(root) == {"0.0": HALF, "1": WHOLE}


def test_replicas_of_what_is_sharded() -> None:
    root = model()
    fully_shard(root, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    assert listed(root) == {"0.0": WHOLE, "1": WHOLE}
