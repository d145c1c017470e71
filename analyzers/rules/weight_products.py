"""What products would take on the fast path where their shapes are not recorded: a live run knows
the weights of each module and the tokens of each call of the model."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
import pandas as pd

from tracer.analyzers.facts.work import Work
from tracer.analyzers.intervals import NONE, Longs
from tracer.analyzers.rules.estimates import DeviceLimits, Product, product_ns


@dataclass(frozen=True)
class ModuleProducts:
    """Slow products of one call of one module, in one direction. A forward multiplies each weight
    once with each token; a backward does so once for each of its operators."""

    rows: Longs
    product: Product
    passes: int

    def fast_ns(self, precision: str, limits: DeviceLimits) -> int:
        """About how long good kernels take for all of them."""
        return self.passes * product_ns(self.product, precision, limits)


def products_by_call(work: Work, rows: Longs) -> list[ModuleProducts] | None:
    """These products by the call of the module that made them; None where one is in no module with
    weights of its own, or in no call of a model whose tokens are known."""
    asked = np.where(work.forward[rows] == NONE, work.site[rows], work.forward[rows])
    if (asked == NONE).any():
        return None
    module, call = work.tree.of_event[asked], work.tree.range_event[asked]
    weights, tokens = _weights(work), _tokens(work, asked)
    if (module == NONE).any() or (weights[module] <= 0).any() or (tokens <= 0).any():
        return None
    backward = work.forward[rows] != NONE
    groups: dict[tuple[int, bool], list[int]] = {}
    for place, key in enumerate(zip(call.tolist(), backward.tolist(), strict=True)):
        groups.setdefault(key, []).append(place)
    return [
        ModuleProducts(
            rows[places],
            _product(int(weights[module[places[0]]]), int(tokens[places[0]])),
            _operators(work, rows[places]) if later else 1,
        )
        for (_, later), places in groups.items()
    ]


def _operators(work: Work, rows: Longs) -> int:
    return int(np.unique(work.operator[rows]).size)


def _product(weights: int, tokens: int) -> Product:
    """Tokens by weights. Which sides the weights have hardly matters beside how many they are."""
    side = max(isqrt(weights), 1)
    return Product(1, tokens, weights // side, side)


def _weights(work: Work) -> Longs:
    """Parameters of each module of the tree without its children's; -1 unknown."""
    table = work.trace.table("model_modules")
    of_path = dict(zip(table["path"].astype(str), table["parameters"].tolist(), strict=True))
    return np.array([of_path.get(path, NONE) for path in work.tree.paths], dtype=np.int64)


def _tokens(work: Work, events: Longs) -> Longs:
    """Tokens of all sequences in the call of the model around each event; -1 for none."""
    batch, tokens = tokens_of(work, events)
    return np.where(tokens > 0, batch * tokens, NONE)


def tokens_of(work: Work, events: Longs) -> tuple[Longs, Longs]:
    """Sequences, and tokens of each, in the call of the model around each event; -1 for none."""
    calls, at = _calls(work), call_around(work, events)
    if not len(calls):
        return at, at
    batch, tokens = (calls[name].to_numpy()[np.maximum(at, 0)] for name in ("batch", "tokens"))
    known = (at != NONE) & (batch > 0) & (tokens > 0)
    return np.where(known, batch, NONE), np.where(known, tokens, NONE)


def call_around(work: Work, events: Longs) -> Longs:
    """The call of a model around each event, counted in order of time; -1 for none."""
    calls = _calls(work)
    if not len(calls):
        return np.full(events.size, NONE, dtype=np.int64)
    times = work.trace.start_ns[events]
    at = np.searchsorted(calls["start_ns"].to_numpy(), times, side="right") - 1
    inside = (at >= 0) & (times <= calls["end_ns"].to_numpy()[np.maximum(at, 0)])
    inside &= calls["thread"].to_numpy()[np.maximum(at, 0)] == _threads(work, events)
    return np.where(inside, at, NONE)


def _calls(work: Work) -> pd.DataFrame:
    return work.trace.table("root_calls").sort_values("start_ns", kind="stable")


def _threads(work: Work, events: Longs) -> Longs:
    threads: Longs = work.trace.table("threads")["tid"].to_numpy()
    own: Longs = threads[work.trace.events["thread"].to_numpy()[events]]
    return own
