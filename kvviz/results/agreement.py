"""Does a method keep what matters? Kept share of each passage against what the answer loses without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvviz.errors import InputError
from kvviz.results.causes import Causes
from kvviz.results.passages import Passage

SAMPLES, SEED = 2000, 0
FEWEST = 4  # passages below which a rank correlation says nothing


@dataclass(frozen=True)
class Agreement:
    """Spearman's rank correlation over the document's passages, with a 95 % bootstrap interval."""

    name: str
    rho: float
    low: float
    high: float


def kept_shares(mask: np.ndarray, pieces: Sequence[Passage]) -> np.ndarray:
    """Share of each passage's entries that a kept set holds: mask bool [L, Hkv, n] -> float64 [P]."""
    return np.array([mask[:, :, p.start : p.end].mean() for p in pieces])


def agreement(causes: Causes, kept: Mapping[str, np.ndarray]) -> list[Agreement]:
    """One row a kept set ({name: bool [L, Hkv, n]}), then "recency" (later passages first) and "random".

    The interval of a kept set draws passages with replacement; that of "random" is where 95 % of random
    orders fall. Raises InputError where passages were not taken out or are fewer than four.
    """
    rows = [
        e for e in causes.taken_out if e.unit == "passage" and e.passage and e.passage.kind == "document"
    ]
    if len(rows) < FEWEST:
        raise InputError("A rank correlation needs at least four passages that were taken out one by one.")
    pieces = [e.passage for e in rows if e.passage]
    effect = np.array([e.effect for e in rows])
    rng = np.random.default_rng(SEED)
    draws = rng.integers(0, len(rows), (SAMPLES, len(rows)))
    found = []
    shares = {name: kept_shares(mask, pieces) for name, mask in kept.items()}
    shares["recency"] = np.arange(len(rows), dtype=float)
    for name, share in shares.items():
        low, high = np.nanquantile([spearman(share[d], effect[d]) for d in draws], [0.025, 0.975])
        found.append(Agreement(name, spearman(share, effect), float(low), float(high)))
    random = [spearman(rng.permutation(len(rows)).astype(float), effect) for _ in range(SAMPLES)]
    low, high = np.quantile(random, [0.025, 0.975])
    return [*found, Agreement("random", float(np.mean(random)), float(low), float(high))]


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side is constant."""
    ranks = np.stack([pd.Series(side).rank().to_numpy() for side in (a, b)])
    if (np.ptp(ranks, axis=1) == 0).any():
        return float("nan")
    return float(np.asarray(np.corrcoef(ranks))[0, 1])
