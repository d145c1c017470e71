"""Whether two medians, or two means, differ by more than the scatter of the steps explains."""

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
# A time of so many times the median is a pause; from so many of them on, as far apart from each
# other, they come every so many steps.
_PAUSE_TIMES, _REGULAR = 2, 3
# Fewer times do not tell how far their mean scatters: one of them may be a pause.
_FEWEST_OF_MEAN = 4
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


def measure_means(before: Longs, after: Longs) -> Measure:
    """The means of both sides, and up to what change they may differ by chance: the interval of
    Welch (Biometrika 34, 1947)."""
    ours, theirs = round(float(before.mean())), round(float(after.mean()))
    if min(before.size, after.size) < _FEWEST_OF_MEAN:
        return Measure(ours, theirs, None, f"fewer than {_FEWEST_OF_MEAN} steps tell no mean")
    spread, freedom = zip(mean_variance(before), mean_variance(after), strict=True)
    whole = sum(spread)
    if not whole:
        return Measure(ours, theirs, 0)
    known = whole**2 / sum(v**2 / f for v, f in zip(spread, freedom, strict=True))
    return Measure(ours, theirs, round(_student(known) * math.sqrt(whole)))


def mean_variance(times: Longs) -> tuple[float, int]:
    """The variance of the mean of times in their order, and its degrees of freedom. What comes
    every so many steps is no chance, but for how often the recording meets it. Else a machine that
    is busy for a while makes some steps in a row longer, as means of blocks of steps tell."""
    period = period_of(times)
    if not period:
        return max(_of_blocks(times, size) for size in {1, math.isqrt(times.size)})
    variance, freedom = _of_blocks(times, period)
    pauses = times[times > _PAUSE_TIMES * np.median(times)]
    excess = float(pauses.mean() - np.median(times)) / times.size
    beyond = times.size % period / period  # of the period that is not whole
    return variance + excess**2 * beyond * (1 - beyond), freedom


def period_of(times: Longs) -> int:
    """Every how many steps a pause comes; 0 where that is not regular. The first step may be one
    by itself."""
    at = np.flatnonzero(times > _PAUSE_TIMES * np.median(times))
    for places in (at, at[1:] if at.size and at[0] == 0 else at[:0]):
        apart = np.unique(np.diff(places))
        if places.size >= _REGULAR and apart.size == 1 and apart[0] > 1:
            return int(apart[0])
    return 0


def _of_blocks(times: Longs, size: int) -> tuple[float, int]:
    """The same by the means of blocks of so many steps."""
    count = times.size // size
    means = times[: count * size].reshape(count, size).mean(axis=1)
    return float(means.var(ddof=1)) / count, count - 1


def _student(freedom: float) -> float:
    """The 97.5th percentile of Student's distribution, as an expansion at the normal one (Fisher
    and Cornish, Technometrics 2, 1960); from two degrees of freedom on within 3 %."""
    z, n = _ERRORS, max(freedom, 2.0)
    terms = (
        z,
        (z**3 + z) / (4 * n),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3),
    )
    return sum(terms)
