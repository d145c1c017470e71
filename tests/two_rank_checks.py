"""What recordings of two ranks must show, live on two devices and read where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracer.analysis import Analysis


def owners(analysis: Analysis) -> Counter[tuple[str, str]]:
    """How many collectives of each operation each module has."""
    paths = analysis.modules["path"].astype(str).tolist()
    calls = analysis.collectives[analysis.collectives["step"] >= 0]
    rows = zip(calls["op"].astype(str), calls["module"].tolist(), strict=True)
    return Counter((op, paths[module] if module >= 0 else "") for op, module in rows)


def in_layers(found: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """The same by the part of the layer that holds each module."""
    parts: Counter[tuple[str, str]] = Counter()
    for (op, path), count in found.items():
        parts[op, ".".join(path.split(".")[:3])] += count
    return parts


def directions(analysis: Analysis) -> Counter[str]:
    """Collectives of the forward and of the backward pass."""
    work = analysis.work["direction"].astype(str)
    return Counter(work.iloc[analysis.collectives["work"].tolist()])


def all_reduces_of_layers(ranks: Sequence[Analysis], layers: int, steps: int) -> None:
    """Each step has one all-reduce for the attention and one for the FFN of each layer."""
    parts = [f"layers.{i}.{part}" for i in range(layers) for part in ("self_attn", "mlp")]
    for analysis in ranks:
        assert len(analysis.steps) == steps
        calls = analysis.collectives
        calls = calls[calls["op"] == "all_reduce"]  # compiled code on a host waits by an operator
        calls = calls[calls["step"] >= 0]  # a capture is warmed up before
        assert Counter(calls["step"].tolist()) == dict.fromkeys(range(steps), 2 * layers)
        found = in_layers(owners(analysis))
        summed = {key: count for key, count in found.items() if key[0] == "all_reduce"}
        assert summed == {("all_reduce", part): steps for part in parts}


def all_in_replays(ranks: Sequence[Analysis]) -> None:
    """Graphs launch all collectives of the steps."""
    for analysis in ranks:
        names = analysis.trace.events["name"].astype(str).to_numpy()
        calls = analysis.collectives[analysis.collectives["step"] >= 0]
        launches = analysis.work["launch"].iloc[calls["work"].tolist()]
        assert all("GraphLaunch" in names[row] for row in launches.tolist())


def sums_of_gradients(ranks: Sequence[Analysis], sent: int | None) -> None:
    """DDP sums gradients in the backward pass, so many bytes in all."""
    for analysis in ranks:
        calls = analysis.collectives
        assert set(calls["op"].astype(str)) == {"all_reduce"}
        assert set(directions(analysis)) == {"backward"}
        assert sent is None or calls["bytes"].sum() == sent


def gathers_and_scatters(
    ranks: Sequence[Analysis], steps: int, sent: int | None, scatter: str = "reduce_scatter"
) -> None:
    """FSDP gathers each layer forward and backward, and scatters its gradients."""
    for analysis in ranks:
        found = owners(analysis)
        layers = sorted(path for op, path in found if op == "all_gather")
        assert [found["all_gather", path] for path in layers] == [2 * steps] * len(layers)
        assert layers == [str(i) for i in range(6)]
        assert sum(found[key] for key in found if key[0] == scatter) == steps * len(layers)
        if sent is not None:
            assert [found[scatter, path] for path in layers] == [steps] * len(layers)
            moved = analysis.collectives.groupby("op", observed=True)["bytes"].sum()
            assert (moved["all_gather"], moved[scatter]) == (2 * sent, sent)
