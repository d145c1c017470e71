"""On which other screens a search would find something."""

from __future__ import annotations

from tracer.analysis import Analysis


def hits_elsewhere(analysis: Analysis, query: str) -> dict[str, int]:
    """How many rows of each screen hold the query, those with none left out."""
    wanted = query.lower()
    steps = analysis.steps["name"].astype(str)
    events = analysis.trace.names_matching(lambda name: wanted in name.lower())
    counts = {
        "kernels": _count(analysis.kernels["name"].astype(str).tolist(), wanted),
        "modules": _count(analysis.modules["path"].astype(str).tolist(), wanted),
        "findings": _count([f"{f.rule} {f.title}" for f in analysis.findings], wanted),
        "steps": _count(steps.tolist(), wanted),
        "timeline": int(events[analysis.trace.name_codes].sum()),
    }
    return {screen: count for screen, count in counts.items() if count}


def _count(texts: list[str], wanted: str) -> int:
    return sum(wanted in text.lower() for text in texts)
