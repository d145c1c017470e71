"""Going from hit to hit of a search."""

from __future__ import annotations

from collections.abc import Sequence


def chosen_hit(hits: Sequence[int], at: int, forward: bool, here: bool) -> int:
    """Which of the hits comes next from `at`, round and round; `here` counts `at` itself."""
    if forward:
        return next((n for n, hit in enumerate(hits) if hit > at or (here and hit == at)), 0)
    return next((n for n in reversed(range(len(hits))) if hits[n] < at), len(hits) - 1)
