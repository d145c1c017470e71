"""Calls that generate text without a KV cache: each computes all tokens again.

Each call takes the tokens of the call before and what that one chose. Nothing recorded names such a
loop; that the lengths of one batch rise by the same few tokens, call after call, tells it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

# So many calls in a row, each longer by the same: two or three may be chance, as when texts are
# scored by length. A draft proposes at most so many tokens, which are few beside the rest.
_FEWEST, _MOST_ADDED, _MOST_ADDED_RATIO = 5, 8, 0.25
# A loop that generates does little else; texts sorted by length rise evenly only now and then.
_MOSTLY = 0.5


@dataclass(frozen=True)
class Run:
    """Rows of `root_calls`, each of which takes `added` tokens more than the one before."""

    rows: tuple[int, ...]
    added: int


def growing_runs(table: pd.DataFrame) -> list[Run]:
    """The calls in a row that compute again what the ones before did."""
    runs: list[Run] = []
    series = table.groupby(["thread", "root", "part", "generation"], sort=False, observed=True)
    for _, calls in series:
        found = _runs_of(calls) if calls["part"].iloc[0] != "encoder" else []
        runs += found if calls["generation"].iloc[0] >= 0 else _of_loops(table, calls, found)
    return sorted(runs, key=lambda run: run.rows[0])


def _runs_of(calls: pd.DataFrame) -> list[Run]:
    tokens, batch = calls["tokens"].to_numpy(), calls["batch"].to_numpy()
    whole = (calls["cached"] == 0) & (calls["graded"] != 1) & (tokens > 0) & (batch > 0)
    added = np.diff(tokens)
    few = (added >= 1) & (added <= np.minimum(_MOST_ADDED, _MOST_ADDED_RATIO * tokens[:-1]))
    alike = whole.to_numpy()
    goes_on = few & alike[1:] & alike[:-1] & (batch[1:] == batch[:-1])
    added = np.where(goes_on, added, 0)
    edges = np.flatnonzero(np.diff(added, prepend=0, append=0))
    rows = calls.index.to_numpy()
    return [
        Run(tuple(rows[first : end + 1].tolist()), int(added[first]))
        for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        if added[first] and end - first >= _FEWEST - 1
    ]


def _of_loops(table: pd.DataFrame, calls: pd.DataFrame, runs: list[Run]) -> list[Run]:
    """Those whose line calls the model for little else."""
    callers = calls["callers"].astype(str)
    total = Counter(callers[(calls["cached"] != 1) & (calls["graded"] != 1)])
    own = Counter(text for run in runs for text in table["callers"].iloc[list(run.rows)])
    return [
        run for run in runs if own[by := asked_by(table, run.rows)] >= _MOSTLY * max(total[by], 1)
    ]


def asked_by(table: pd.DataFrame, rows: tuple[int, ...]) -> str:
    """Who asks for most of these calls."""
    return Counter(table["callers"].iloc[list(rows)].astype(str)).most_common(1)[0][0]
