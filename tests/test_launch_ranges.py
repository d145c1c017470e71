"""Ranges that Inductor's launcher writes around its Triton kernels: none in a call that rests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from tests.test_told_ranges import CALLS, Stack, modules_of_calls, recorded
from tracer.collectors.compiling.launch_ranges import LaunchRanges, launch_namer
from tracer.collectors.modules.looks import EVERY, FIRST_CALLS

LOOKS = FIRST_CALLS + CALLS // EVERY
KERNEL = "triton_poi_fused_add_0"


class Launcher:
    """Stands for a compiled kernel, which takes a GPU."""

    config = SimpleNamespace(kwargs={"XBLOCK": 64}, num_warps=4, num_stages=1, found_by_coordesc=0)
    cache_hash, store_cubin = "", False

    def __call__(self, x: torch.Tensor, *, stream: int) -> None:
        pass


def launching() -> Any:
    """Inductor's own launcher with such a kernel."""
    made: Any = object.__new__(CachingAutotuner)
    made.__dict__.update(
        launchers=[Launcher()],
        filename="cabc.py",
        kernel_hash="cabc",
        inductor_meta={"kernel_name": KERNEL},
        triton_meta={},
        triton_interpret=False,
        dump_launch_params=False,
        dump_launch_tensors=False,
        _plugins=[],
        _cached_launcher=None,
        _cache_eligible=False,
        _debug_call=None,
    )
    return made


class Generated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = launching()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kernel.run(x, stream=0)
        return x


def launches(run: Any) -> int:
    return sum(run.names[code] == KERNEL for code in run.name_codes[run.rows("operator")])


def test_the_launcher_writes_ranges_in_calls_that_are_looked_at_alone() -> None:
    model, x = nn.Sequential(Stack(), Generated()).eval(), torch.zeros(2, 5, 16)
    with torch.no_grad():
        run = recorded(model, lambda _: model(x))
    assert launches(run) == LOOKS < CALLS
    launcher: Any = triton_heuristics
    assert launcher.autograd_profiler is torch.autograd.profiler


def test_calls_that_rest_have_their_modules_all_the_same() -> None:
    model, x = nn.Sequential(Stack(), Generated()).eval(), torch.zeros(2, 5, 16)
    with torch.no_grad():
        run = recorded(model, lambda _: model(x))
    calls = [[one for one in call if one[0] != KERNEL] for call in modules_of_calls(run)]
    assert len({name for _, name in calls[0]}) == 6
    assert all(call == calls[0] for call in calls)
    assert "capture.modules_untold" not in [note.rule for note in run.notes]


def test_what_follows_a_call_that_rests_has_ranges() -> None:
    """The backward pass, say."""
    model, x, after = Stack().eval(), torch.zeros(2, 5, 16), launching()

    def step(_: int) -> None:
        model(x)
        after.run(x, stream=0)

    with torch.no_grad():
        assert launches(recorded(model, step)) == CALLS


def test_a_launcher_of_another_form_is_left_alone() -> None:
    ranges, other = LaunchRanges(), SimpleNamespace(autograd_profiler=SimpleNamespace())
    asked = other.autograd_profiler
    ranges.watch(other)  # type: ignore[arg-type]
    ranges.rest()
    assert other.autograd_profiler is asked
    ranges.close()


def test_who_took_our_place_keeps_it() -> None:
    ranges, launcher = LaunchRanges(), SimpleNamespace(autograd_profiler=torch.autograd.profiler)
    ranges.watch(launcher)  # type: ignore[arg-type]
    taken = launcher.autograd_profiler = SimpleNamespace()
    ranges.close()
    assert launcher.autograd_profiler is taken


def test_kernels_that_the_program_wrote_are_known_by_the_compiled_code() -> None:
    table = pd.DataFrame(
        {
            "kernel": ["mine_0", "cpp_fused_add_0", "extern_kernels.mm"],
            "form": ["generated", "generated", "extern"],
        }
    )
    names = ("mine_0", "cpp_fused_add_0", "extern_kernels.mm", KERNEL)
    assert [launch_namer(table)(name) for name in names] == [True, False, False, True]
