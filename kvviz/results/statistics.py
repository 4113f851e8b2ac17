"""What a sweep's numbers are worth: intervals, paired comparisons, corrections. On numpy alone.

Every interval is 95 %. Questions about one document are not independent, so means are resampled by document
(the cluster bootstrap); Wilson's interval and McNemar's test take items as independent, which is said where
documents are fewer than items.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
ALPHA = 0.05
DRAWS = 10_000
_KEPT_CLUSTERS = 200  # up to so many, the draws are kept for the next call
FEWEST = 6  # clusters: with fewer not even an exact sign test can reach 5 %, and resampling is far too sure


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval from n observations; low and high are NaN where n does not allow one."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Paired:
    """B minus A on the same items: the difference, p of no difference, and how often each side was ahead."""

    difference: Estimate
    p: float
    a_ahead: int
    b_ahead: int

    def verdict(self, a: str = "A", b: str = "B", p: float | None = None, better: str = "higher") -> str:
        """In words: who is ahead, or "too few to tell".

        p       the corrected one, where several comparisons were made.
        better  "lower" for KL and errors.
        """
        p = self.p if p is None else p
        if p < ALPHA and self.difference.value:
            return f"{b if (self.difference.value > 0) == (better == 'higher') else a} is ahead"
        return "too few to tell"


def wilson(right: int, n: int) -> Estimate:
    """A share with Wilson's score interval (1927); it stays within 0 and 1 also at 0 of n and n of n."""
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    p = right / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if right == 0 else middle - half
    return Estimate(p, low, 1.0 if right == n else middle + half, n)


def bootstrap_mean(
    values: Sequence[float], clusters: Sequence[Hashable] | None = None, seed: int = 0
) -> Estimate:
    """A mean with the percentile interval of 10,000 resamples of whole clusters (of single values without).

    With fewer than six clusters there is no interval; nor where all clusters have one mean, since no
    resample of equal values can show how far others would lie.
    """
    x = np.asarray(values, float)
    if not len(x):
        return Estimate(math.nan, math.nan, math.nan, 0)
    sums, counts = _by_cluster(x, clusters)
    mean = float(x.mean())
    if len(sums) < FEWEST or np.ptp(sums / counts) == 0:
        return Estimate(mean, math.nan, math.nan, len(x))
    drawn = _means(sums, counts, seed)
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(mean, float(low), float(high), len(x))


def _by_cluster(x: np.ndarray, clusters: Sequence[Hashable] | None) -> tuple[np.ndarray, np.ndarray]:
    if clusters is None:
        return x, np.ones(len(x))
    number = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    place = np.array([number[name] for name in clusters], dtype=np.intp)  # of no values as well
    return np.bincount(place, x), np.bincount(place).astype(float)


def _means(sums: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
    """Means of resampled clusters: a multinomial count of each cluster stands for drawing it."""
    k = len(sums)
    if k <= _KEPT_CLUSTERS:
        times = _drawn(k, seed)
        return times @ sums / (times @ counts)
    return _means_of_many(np.column_stack([sums, counts]).tobytes(), seed)


@lru_cache(maxsize=16)
def _means_of_many(rows: bytes, seed: int) -> np.ndarray:
    """The same of (sum, count) rows, float64 [k, 2]. Equal clusters are drawn as one, which leaves a
    handful of verdicts; of one comparison interval, p and words all ask for the same."""
    table = np.frombuffer(rows).reshape(-1, 2)
    k = len(table)
    table, alike = np.unique(table, axis=0, return_counts=True)
    rng = np.random.default_rng(seed)
    out = []
    for size in (1000,) * (DRAWS // 1000):  # bounded memory whatever the number of clusters
        times = rng.multinomial(k, alike / k, size=size)
        out.append(times @ table[:, 0] / (times @ table[:, 1]))
    return np.concatenate(out)


@lru_cache(maxsize=4)
def _drawn(k: int, seed: int) -> np.ndarray:
    """How often each of k clusters is drawn in each resample: the same for every line of a table."""
    rng = np.random.default_rng(seed)
    drawn = [rng.multinomial(k, np.full(k, 1 / k), size=1000) for _ in range(DRAWS // 1000)]
    return np.concatenate(drawn).astype(float)


def mcnemar(a_right: Sequence[bool], b_right: Sequence[bool]) -> Paired:
    """Verdicts of A and B on the same items: McNemar's exact test, two-sided.

    Only items on which they differ speak; under no difference each side is right alone as often.
    """
    a, b = np.asarray(a_right, bool), np.asarray(b_right, bool)
    a_only, b_only = int((a & ~b).sum()), int((b & ~a).sum())
    n = a_only + b_only
    tail = sum(math.comb(n, k) for k in range(min(a_only, b_only) + 1))
    p = min(1.0, float(2 * tail / 2**n)) if n else 1.0
    return Paired(bootstrap_mean(b.astype(float) - a), p, a_only, b_only)


def paired_means(
    a: Sequence[float], b: Sequence[float], clusters: Sequence[Hashable] | None = None, seed: int = 0
) -> Paired:
    """Scores or KL of A and B on the same items: bootstrap of the mean difference B - A."""
    d = np.asarray(b, float) - np.asarray(a, float)
    p = p_of_mean(d, 0.0, clusters, seed)
    return Paired(bootstrap_mean(d, clusters, seed), p, int((d < 0).sum()), int((d > 0).sum()))


def p_of_mean(
    values: Sequence[float], limit: float, clusters: Sequence[Hashable] | None = None, seed: int = 0
) -> float:
    """p of a mean that lies at the limit: twice the share of resamples beyond it.

    With few clusters the bootstrap is too sure, so p is never below that of Student's t on the clusters'
    means, nor, where these are all equal, below the least that a sign test of as many can reach.
    """
    x = np.asarray(values, float) - limit
    sums, counts = _by_cluster(x, clusters)
    if len(sums) < 2 or not x.any():
        return 1.0
    drawn = _means(sums, counts, seed)
    tail = min((drawn <= 0).mean(), (drawn >= 0).mean())
    means = sums / counts
    error = means.std(ddof=1) / math.sqrt(len(means))
    level = abs(means.mean())
    few = 2.0 ** (1 - len(means)) if error < 1e-9 * level else student(level / error, len(means) - 1)
    return min(1.0, max(2 * float(tail), 2 / DRAWS, few))


def student(t: float, degrees: int) -> float:
    """Two-sided p of Student's t with whole degrees of freedom (Abramowitz and Stegun 26.7.3)."""
    angle = math.atan(t / math.sqrt(degrees))
    cos = math.cos(angle)
    odd = degrees % 2
    term, total = (cos, 0.0) if odd else (1.0, 0.0)
    for k in range(3 if odd else 2, degrees + 1, 2):
        total += term
        term *= cos * cos * (k - 1) / k
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return 1 - inside


def p_of_share(right: int, n: int, limit: float) -> float:
    """p of a share that lies at the limit: the score test, of which Wilson's interval is the inverse."""
    z = abs(right / n - limit) / math.sqrt(limit * (1 - limit) / n)
    return 2 * (1 - NormalDist().cdf(z))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): p values that hold for all comparisons together."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    out, reached = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        reached = max(reached, min(1.0, (len(p) - place) * p[i]))
        out[i] = reached
    return out


def holm_words(count: int) -> str:
    """What the correction did, in words."""
    if not count:
        return "No comparison could be made: there is nothing to correct."
    if count == 1:
        return "One comparison was made: nothing to correct."
    return (
        f"{count} comparisons were made. With so many, about {count * ALPHA:.1f} would look like a "
        "difference by chance alone; the p values are raised by Holm's rule, so that the chance of even one "
        "false difference among them stays below 5 %."
    )
