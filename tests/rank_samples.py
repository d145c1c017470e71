"""Small runs of many ranks, saved where `tracer ranks` finds them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.make_traces import MAIN_THREAD, TraceMaker
from tracer.events import Trace
from tracer.rank_analysis import RankAnalysis
from tracer.ranks.local import LocalEngine
from tracer.ranks.run import RanksRun, analyse_ranks
from tracer.store import save_run

BASE_NS = 1_700_000_000_000_000_000
COMM_STREAM = 20


@dataclass(frozen=True)
class Call:
    """One collective on all its ranks: when each enters (microseconds), and when all leave."""

    enters: Mapping[int, float]
    ends: float
    op: str = "allreduce"
    group: str = "0"
    members: tuple[int, ...] = ()
    elements: int = 1 << 20
    received: Mapping[int, int] = field(default_factory=dict)


def late_rank_calls(
    ranks: int = 4, late: int = 2, calls: int = 20, wait: float = 3900, wire: float = 100
) -> list[Call]:
    """All enter and then wait for one, again and again."""
    found = []
    for k in range(calls):
        begin = 1000 + k * (wait + wire + 500)
        enters = {rank: begin + (wait if rank == late else 0) for rank in range(ranks)}
        found.append(Call(enters, begin + wait + wire))
    return found


def rank_trace(
    rank: int,
    world: int,
    calls: Sequence[Call],
    *,
    busy: Mapping[int, str] | None = None,
    sequences: bool = False,
    group: bool = True,
    steps: Sequence[tuple[float, float]] = (),
    stream: int = COMM_STREAM,
    tokens: int = 0,
    **meta: Any,
) -> Trace:
    """The recording of one rank: its collectives, and before each what it did until it entered.

    `busy`: the kernel that fills that time on some ranks; on the others the host is late.
    `tokens`: those of each step, which is then a call of a model.
    """
    maker = TraceMaker(base_ns=BASE_NS)
    free = 0.0
    for k, call in enumerate(calls):
        if rank not in call.enters:
            continue
        enter = call.enters[rank]
        kernel = (busy or {}).get(rank)
        if kernel is not None and enter - free > 20:
            maker.launch(kernel, start=free + 1, run=(free + 10, enter - 5), operator="aten::mm")
        event = maker.launch(
            f"ncclDevKernel_{call.op}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            start=enter - 4,
            run=(enter, call.ends),
            call_us=2,
            operator="c10d::allreduce_",
            stream=stream,
        )
        members = call.members or tuple(call.enters)
        named = (
            {"group": call.group, "ranks": str(list(members)), "group_size": len(members)}
            if group
            else {}
        )
        maker.side(
            "collectives",
            event,
            op=call.op,
            dtype="BFloat16",
            in_elements=call.elements,
            out_elements=call.received.get(rank, call.elements),
            sequence=k if sequences else -1,
            **named,
        )
        free = call.ends
    for number, (begin, end) in enumerate(steps):
        if not tokens:
            maker.annotation(f"ProfilerStep#{number}", begin, end - begin)
            continue
        times = {"start_ns": BASE_NS + int(begin * 1000), "end_ns": BASE_NS + int(end * 1000)}
        facts: dict[str, Any] = {"batch": 1, "tokens": tokens, "thread": MAIN_THREAD}
        maker.side("root_calls", root="", type="Net", **facts, **times)
    return maker.build(rank=rank, world_size=world, backend="nccl", **meta)


def bucket_rank(rank: int, late: int, stop_us: float, steps: int = 20) -> Trace:
    """A rank on a CPU whose steps send two buckets of gradients at once, on threads of the library,
    the first beside the backward pass; the late one stops before each step."""
    maker = TraceMaker(base_ns=BASE_NS)
    for k in range(steps):
        begin = 1000 + k * (stop_us + 120_000)
        maker.annotation(f"ProfilerStep#{k}", begin, stop_us + 119_000)
        start = begin + 1000 + (stop_us if rank == late else 0)
        maker.operator("aten::mm", start, 60_000)
        for bucket, asked in enumerate((30_000, 60_000)):
            at, ends = start + asked, begin + 1000 + stop_us + asked + 2000
            maker.operator("c10d::allreduce_", at, 10, tid=2 + bucket)
            maker.annotation("gloo:all_reduce", at + 10, ends - at - 10, tid=4 + bucket)
    groups: Any = ({"pg_name": "0", "pg_size": 2, "ranks": [0, 1]},)
    return maker.build(rank=rank, world_size=2, process_groups=groups)


def moved(trace: Trace, offset_ns: int, drift: float = 0.0) -> Trace:
    """The same recording by a clock that is ahead and runs faster."""
    first = int(trace.start_ns[0])

    def shifted(table: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
        times = {name: table[name].to_numpy() for name in names if name in table}
        shift = {n: offset_ns + np.rint((t - first) * drift) for n, t in times.items()}
        return table.assign(**{n: t + shift[n].astype(np.int64) for n, t in times.items()})

    columns = ("start_ns", "end_ns", "time_ns")
    tables = {name: shifted(table, columns) for name, table in trace.tables.items()}
    return replace(trace, events=shifted(trace.events, ("start_ns",)), tables=tables)


def save_ranks(
    folder: Path,
    calls: Sequence[Call],
    ranks: int,
    *,
    change: Callable[[int, Trace], Trace] | None = None,
    **options: Any,
) -> Path:
    """One saved run a rank, as `t.save` leaves them."""
    for rank in range(ranks):
        trace = rank_trace(rank, ranks, calls, **options)
        save_run(change(rank, trace) if change else trace, folder / f"rank{rank}")
    return folder


def compared(*places: Path | str, **options: Any) -> RankAnalysis:
    """What `tracer ranks` finds at these places, in this process."""
    with ranks_run(*places, **options) as run:
        return run.analysis


@contextmanager
def ranks_run(*places: Path | str, workers: int = 1, **options: Any) -> Generator[RanksRun]:
    """The same, with the reports of the ranks for as long as the block lasts."""
    with closing(LocalEngine(workers)) as engine:
        yield analyse_ranks([str(place) for place in places], engine, **options)


def straggler(analysis: RankAnalysis) -> tuple[int, int, int] | None:
    """Rank, calls in which it came last, calls compared; None when nobody is named."""
    found = [f for f in analysis.findings if f.rule == "comm.straggler"]
    assert len(found) <= 1, [f.title for f in found]
    if not found:
        return None
    detail = found[0].detail
    return int(detail["rank"]), int(detail["last"]), int(detail["compared"])


def hosts_run_ahead(
    folder: Path,
    begins: Mapping[int, float],
    paces: Mapping[int, float],
    calls: int = 40,
    queue: int = 1000,
) -> Path:
    """Ranks that issue a collective at the pace of their host (microseconds) and never wait for a
    device, from when they begin on; between calls operators run. queue: so many calls are issued
    before one has run at most; then a launch waits."""
    ready, ends = dict(begins), list[float]()
    asked, enters = list[dict[int, tuple[float, float]]](), list[dict[int, float]]()
    for k in range(calls):
        room = ends[k - queue] if k >= queue else 0.0
        asked.append({rank: (at, max(at + 2, room)) for rank, at in ready.items()})
        done = ends[-1] if ends else 0.0
        enters.append({rank: max(until + 8, done + 5) for rank, (_, until) in asked[-1].items()})
        ends.append(max(enters[-1].values()) + 6)
        ready = {rank: until + paces[rank] - 2 for rank, (_, until) in asked[-1].items()}
    for rank in begins:
        maker = TraceMaker(base_ns=BASE_NS)
        for call, entered, end in zip(asked, enters, ends, strict=True):
            at, until = call[rank]
            event = maker.launch(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                start=at,
                run=(entered[rank], end),
                call_us=until - at,
                operator="c10d::allreduce_",
            )
            members = {"ranks": str(sorted(begins)), "group_size": len(begins)}
            maker.side("collectives", event, op="allreduce", group="0", in_elements=4096, **members)
            maker.operator("aten::mm", until + 2, paces[rank] - 8)
        save_run(maker.build(rank=rank, world_size=len(begins)), folder / f"rank{rank}")
    return folder


def pausing_ranks(
    pause_us: float, noise: float, seed: int, fetch: bool = False
) -> dict[int, Trace]:
    """Two ranks on CPUs whose work, 90 ms a step, scatters; rank 1 pauses longer before it, in its
    data loader where it has one."""
    rng = np.random.default_rng(seed)
    makers, begin = {rank: TraceMaker(base_ns=BASE_NS) for rank in (0, 1)}, 1000.0
    for step in range(40):
        enters = {}
        for rank, maker in makers.items():
            pause = 150 + rank * pause_us + rng.normal(0, 10)
            maker.operator("aten::stack", begin, 100)
            if fetch:
                maker.annotation("enumerate(DataLoader)#_Iter.__next__", begin, 100 + pause)
            at = begin + 100 + pause
            for number in range(40):
                took = 2300 * (1 + rng.normal(0, noise))
                maker.operator("aten::mm" if number else "aten::embedding", at, took)
                at += took + 40 + rng.exponential(5) + 4000 * (rng.random() < 0.002)
            enters[rank] = at
        ends = max(enters.values()) + 2000
        for rank, maker in makers.items():
            maker.annotation(f"ProfilerStep#{step}", begin, ends - begin + 100)
            maker.operator("c10d::allreduce_", enters[rank], 10)
            left = ends - enters[rank] + abs(rng.normal(0, 20))
            maker.annotation("gloo:all_reduce", enters[rank] + 10, left, tid=4)
        begin = ends + 200
    groups: Any = ({"pg_name": "0", "pg_size": 2, "ranks": [0, 1]},)
    built = {"world_size": 2, "process_groups": groups}
    return {rank: maker.build(rank=rank, **built) for rank, maker in makers.items()}
