"""What to change, in the option names of an engine: `advice.csv` beside this module."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


def advice_for(rule: str, engine: str) -> str:
    """The engine's own row, else the one for all; a rule without a row is a KeyError."""
    table = _table()
    return table.get((rule, engine)) or table[rule, ""]


@cache
def _table() -> dict[tuple[str, str], str]:
    text = files("tracer.analyzers.serving").joinpath("advice.csv").read_text("utf-8")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return {(row["rule"], row["engine"]): row["advice"] for row in csv.DictReader(lines)}
