"""Process groups keep their names, whenever the program makes and destroys them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import destroy_process_group, distributed_c10d

from tracer import trace
from tracer.collectors.process_groups import ProcessGroups
from tracer.events import Trace

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.usefixtures("one_thread"),
]


def begin(folder: Path) -> None:
    """The group of one process, and a group inside it."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    dist.new_group([0], group_desc="inner")


def work() -> None:
    dist.all_reduce(torch.ones(4))


def inside(folder: Path) -> Trace:
    with trace() as t:
        begin(folder)
        work()
        destroy_process_group()
    return t.trace


def alive_at_the_end(folder: Path) -> Trace:
    with trace() as t:
        begin(folder)
        work()
    destroy_process_group()
    return t.trace


def there_at_the_start(folder: Path) -> Trace:
    begin(folder)
    with trace(detail="light") as t:
        work()
        destroy_process_group()
    return t.trace


@pytest.mark.parametrize("program", [inside, alive_at_the_end, there_at_the_start])
def test_groups_are_known_whenever_they_lived(
    program: Callable[[Path], Trace], tmp_path: Path
) -> None:
    original = distributed_c10d._update_default_pg
    meta = program(tmp_path).meta
    assert [group["pg_desc"] for group in meta.process_groups] == ["default_pg", "inner"]
    assert [group["ranks"] for group in meta.process_groups] == [[0], [0]]
    assert (meta.rank, meta.world_size, meta.backend) == (0, 1, "gloo")
    assert distributed_c10d._update_default_pg is original


def test_a_failure_of_ours_does_not_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise RuntimeError("ours")

    groups = ProcessGroups()
    groups.start()
    begin(tmp_path)
    monkeypatch.setattr(distributed_c10d, "_get_all_pg_configs", fails)
    destroy_process_group()
    assert not dist.is_initialized()
    groups.close()
    assert str(groups.failure) == "ours"


def test_without_groups_nothing_is_said() -> None:
    with trace() as t:
        torch.ones(4).sum()
    assert (t.trace.meta.process_groups, t.trace.meta.rank) == ((), None)
