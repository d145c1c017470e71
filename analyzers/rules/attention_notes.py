"""Rule attention.backend: attention that is fused, and could be a faster fused kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.analyzers.facts.device_kind import nvidia_generation
from tracer.analyzers.facts.places import Places, folded
from tracer.analyzers.intervals import NONE, Longs, take
from tracer.analyzers.rules.attention_arguments import Signature, refused_backends
from tracer.analyzers.rules.attention_gain import Judged
from tracer.analyzers.rules.attention_paths import fused_backends
from tracer.analyzers.rules.judging import ratio_of
from tracer.findings import Finding, Where

NOTE = "attention.backend"
BACKENDS = {"flash": "flash", "efficient": "memory-efficient", "cudnn": "cuDNN"}
_NOTHING = np.zeros(0, dtype=np.int64)


def second_best(judged: Judged) -> list[Finding]:
    """The memory-efficient kernel ran, or a mask kept flash away: one note for each place."""
    work = judged.context.work
    major = nvidia_generation(work.trace)
    # Neither flash nor cuDNN attention exists before the eighth generation.
    if work.cpu_only or (major is not None and major < 8):
        return []
    found = work.once(fused_backends)
    notes = []
    for backend in ("efficient", "cudnn"):
        for events in _by_module(judged, found.get(backend, _NOTHING)):
            signature = judged.arguments.signature(int(events[0]))
            if backend == "efficient" or _keeps_flash_away(signature):
                notes.append(_note(judged, backend, events, signature))
    return notes


def _keeps_flash_away(signature: Signature | None) -> bool:
    """Whether a mask is why cuDNN ran and not flash; a query of one token has no choice to make."""
    return signature is not None and signature.masked and signature.query[-2] > 1


def _by_module(judged: Judged, events: Longs) -> list[Longs]:
    """Events of one kind of module together."""
    tree = judged.context.work.tree
    modules = tree.of_event[events] if tree.paths else np.full(events.size, NONE)
    groups: dict[str | None, list[int]] = {}
    for module in np.unique(modules).tolist():
        path = folded(tree.paths[module]) if module != NONE else None
        groups.setdefault(path, []).extend(events[modules == module].tolist())
    return [np.array(sorted(group), dtype=np.int64) for group in groups.values()]


def _note(judged: Judged, backend: str, events: Longs, signature: Signature | None) -> Finding:
    work = judged.context.work
    rows = np.flatnonzero(take(_inside(judged, events), work.site) != NONE)
    cost = judged.charged(rows)
    by_arguments = refused_backends(signature) if signature else {}
    by_torch = {name: list(said) for name, said in signature.framework.items()} if signature else {}
    reasons = by_torch.get("flash") or by_arguments.get("flash", [])
    better = "flash or cuDNN" if backend == "efficient" else "flash"
    why = f": {'; '.join(reasons)}" if reasons else ""
    return Finding(
        rule=NOTE,
        severity="info",
        title=f"attention runs the {BACKENDS[backend]} kernel, not {better}{why}",
        count=int(events.size),
        cost_ns=cost,
        ratio=ratio_of(cost, judged.analysis),
        where=_place(judged, int(events[0])),
        detail={
            "backend": backend,
            "expected": better,
            "reasons": reasons,
            "refused": by_torch or by_arguments,
        },
        advice=_advice(signature),
        events=tuple(events.tolist()[:100]),
    )


def _place(judged: Judged, event: int) -> Where:
    where = judged.context.work.once(Places).of(event)
    where = replace(where, module=folded(where.module) if where.module else None)
    line = None if where.file else judged.arguments.line(event)
    if line is None:
        return where
    return replace(where, file=line.file, line=line.line, function=line.function)


def _inside(judged: Judged, events: Longs) -> Longs:
    """For each event which of these host rows lies around it; -1 for none."""
    mask = np.zeros(len(judged.context.work.trace.events), dtype=bool)
    mask[events] = True
    return judged.context.work.host.nearest(mask)


def _advice(signature: Signature | None) -> str:
    if signature is not None and signature.masked:
        return (
            "It is fused. A mask that only pads can go: is_causal=True, sequences of one length, "
            "or packed sequences (flash_attn_varlen_func, nested tensors)."
        )
    return "It is fused; only where attention dominates is another backend worth a try."
