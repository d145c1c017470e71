"""Whether two medians differ by more than the scatter of the steps explains."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tracer.analyzers.intervals import Longs
from tracer.diff_analysis import Measure

# Medians of steps that are alike differ by at most so many standard errors, 19 times of 20.
_ERRORS = NormalDist().inv_cdf(0.975)
# From so many times on the binomial distribution is the normal one for this purpose.
_MANY = 1000


def measure(before: Longs, after: Longs) -> Measure:
    """The medians of both sides, and up to what change they may differ by chance.

    The limit is the 95 % confidence interval for the ratio of two medians (Bonett and Price,
    "Confidence intervals for ratios of means and medians", Journal of Educational and Behavioral
    Statistics 45, 2020); where some time is 0, that for their difference (the same, "Statistical
    inference for a linear function of medians", Psychological Methods 7, 2002). Both ask for no
    distribution, and one step that took long moves them little. They know the scatter within the
    two recordings alone: runs on another day may be further apart.
    """
    ours, theirs = round(float(np.median(before))), round(float(np.median(after)))
    if min(before.size, after.size) < 2:
        alone = "A" if before.size < 2 else "B"
        alone = "each of them" if max(before.size, after.size) < 2 else alone
        return Measure(ours, theirs, None, f"one step in {alone} shows no scatter")
    if before.min() <= 0 or after.min() <= 0:
        return Measure(ours, theirs, round(_limit(before, after)))
    apart = _limit(np.log(before), np.log(after))
    # As much longer, or as much shorter, as the ratio at the limit makes it.
    scatter = math.expm1(apart) if theirs >= ours else -math.expm1(-apart)
    return Measure(ours, theirs, round(ours * scatter))


def _limit(before: NDArray[np.float64] | Longs, after: NDArray[np.float64] | Longs) -> float:
    return _ERRORS * math.sqrt(median_variance(before) + median_variance(after))


def median_variance(values: NDArray[np.float64] | Longs) -> float:
    """The variance of the median of these values, from how far apart two of them are that enclose
    the median with a known probability (Price and Bonett, "Estimating the variance of the sample
    median", Journal of Statistical Computation and Simulation 68, 2001)."""
    size = int(values.size)
    rank = max(round((size + 1) / 2 - math.sqrt(size)), 1)
    ordered = np.sort(values)
    apart = float(ordered[size - rank] - ordered[rank - 1])
    return (apart / (2 * _errors_apart(size, rank))) ** 2


@lru_cache(maxsize=64)
def _errors_apart(size: int, rank: int) -> float:
    """How many standard errors the value of this rank lies from the median: fewer than `rank` of
    all values lie below the true one with the probability of so many heads of coins."""
    if size > _MANY:
        return (size / 2 - rank + 0.5) / (math.sqrt(size) / 2)
    fewer = sum(math.comb(size, heads) for heads in range(rank))
    return NormalDist().inv_cdf(1 - fewer / 2**size)
