"""How evenly the work lies on the ranks: steps, experts, pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import NONE
from tracer.analyzers.ranks.match import usual_kinds
from tracer.analyzers.ranks.waits import Arrivals
from tracer.rank_analysis import KindSums, RankSummary

_WALL, _COMPUTE, _IDLE = 0, 1, 2


def step_balance(summaries: Mapping[int, RankSummary]) -> dict[str, Any]:
    """Compute time of the steps on each rank: the k-th step of one beside the k-th of another."""
    ranks = [rank for rank in sorted(summaries) if len(summaries[rank].step_times)]
    count = min((len(summaries[rank].step_times) for rank in ranks), default=0)
    if len(ranks) < 2 or not count:
        return {}
    times = np.stack([summaries[rank].step_times[:count] for rank in ranks])
    compute = times[:, :, _COMPUTE].astype(np.float64)
    mean = compute.mean(axis=0)
    counted = mean > 0
    if not counted.any():
        return {}
    ratio = compute.max(axis=0)[counted] / mean[counted]
    slowest = compute.argmax(axis=0)[counted]
    usual = int(np.bincount(slowest).argmax())
    return {
        "steps": count,
        "compute_max_over_mean": round(float(np.median(ratio)), 4),
        "largest_rank": ranks[usual],
        "largest_in_steps": int((slowest == usual).sum()),
        "median_compute_ns": {
            str(rank): int(np.median(times[place, :, _COMPUTE])) for place, rank in enumerate(ranks)
        },
        "median_wall_ns": {
            str(rank): int(np.median(times[place, :, _WALL])) for place, rank in enumerate(ranks)
        },
    }


@dataclass
class Received:
    """What each rank received in the all-to-all calls of a lane, where sizes were recorded."""

    ranks: list[int]
    calls: int = 0
    ratios: float = 0.0
    elements: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def add(self, found: Arrivals, summaries: Mapping[int, RankSummary]) -> None:
        """Take in some calls."""
        kinds = [summaries[rank].kinds for rank in found.calls.ranks]
        ops, _ = usual_kinds(found.calls, kinds)
        received = found.calls.take("out_elements")
        exchange = np.array([op in ("all_to_all", "expert_parallel") for op in ops], dtype=bool)
        whole = found.calls.present.all(axis=0) & (received != NONE).all(axis=0) & exchange
        received = received[:, whole]
        received = received[:, received.sum(axis=0) > 0]
        if not received.size:
            return
        if not self.elements.size:
            self.elements = np.zeros(len(self.ranks), dtype=np.int64)
        self.calls += received.shape[1]
        self.ratios += float((received.max(axis=0) / received.mean(axis=0)).sum())
        self.elements += received.sum(axis=1)

    def result(self, key: str) -> dict[str, Any] | None:
        """Largest over mean; None where no sizes were recorded."""
        if not self.calls:
            return None
        return {
            "group": key.split("|", 1)[0] or None,
            "calls": self.calls,
            "received_max_over_mean": round(self.ratios / self.calls, 4),
            "largest_rank": self.ranks[int(self.elements.argmax())],
            "elements": {
                str(rank): int(count)
                for rank, count in zip(self.ranks, self.elements.tolist(), strict=True)
            },
        }


def expert_balance(received: Iterable[tuple[str, Received]]) -> list[dict[str, Any]]:
    """Imbalance of what the ranks received, by group."""
    results = [found.result(key) for key, found in received]
    return [result for result in results if result is not None]


def pipeline_bubbles(
    summaries: Mapping[int, RankSummary], kinds: Mapping[int, Sequence[KindSums]]
) -> list[dict[str, Any]]:
    """For ranks that mostly send to each other: time in which a stage had nothing to compute."""
    bubbles: list[dict[str, Any]] = []
    for rank, summary in sorted(summaries.items()):
        passed = [kind for kind in kinds.get(rank, ()) if kind.op == "send_recv"]
        mostly = 2 * sum(k.count for k in passed) >= sum(k.count for k in kinds.get(rank, ()))
        if not passed or not mostly or summary.idle_ns is None or not summary.capacity_ns:
            continue
        waited = sum(kind.exposed_wait_ns for kind in passed)
        bubbles.append(
            {
                "rank": rank,
                "bubble_ns": summary.idle_ns + waited,
                "ratio": round((summary.idle_ns + waited) / summary.capacity_ns, 4),
                "waited_for_neighbours_ns": waited,
                "idle_ns": summary.idle_ns,
            }
        )
    return bubbles
