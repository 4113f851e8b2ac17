"""Does a method keep what matters? Kept share of each passage against what the answer loses without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from kvviz.errors import InputError
from kvviz.results.causes import TAKEN_OUT, Agreement, Causes, Effect
from kvviz.results.passages import Passage

SAMPLES, SEED = 2000, 0
FEWEST = 4  # passages below which a rank correlation says nothing


def kept_shares(mask: np.ndarray, pieces: Sequence[Passage]) -> np.ndarray:
    """Share of each passage's entries that a kept set holds: mask bool [L, Hkv, n] -> float64 [P]."""
    return np.array([mask[:, :, p.start : p.end].mean() for p in pieces])


def agreement(causes: Causes, kept: Mapping[str, np.ndarray]) -> list[Agreement]:
    """One row a kept set ({name: bool [L, Hkv, n]}), then "recency" (later passages first) and "random".

    The interval of a kept set draws passages with replacement; that of "random" is where 95 % of random
    orders fall. Raises InputError where passages were not taken out or are fewer than four.
    """
    rows = document_passages(causes)
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
        rho = spearman(share[draws], effect[draws])
        rho = rho[np.isfinite(rho)] if np.ptp(share) else np.array([np.nan])
        low, high = np.quantile(rho, [0.025, 0.975])
        found.append(Agreement(name, float(spearman(share, effect)), float(low), float(high)))
    orders = rng.permuted(np.tile(np.arange(len(rows), dtype=float), (SAMPLES, 1)), axis=1)
    random = spearman(orders, np.broadcast_to(effect, orders.shape))
    low, high = np.quantile(random, [0.025, 0.975])
    return [*found, Agreement("random", float(np.mean(random)), float(low), float(high))]


def document_passages(causes: Causes) -> list[Effect]:
    """What the answer loses without each passage of the document, as far as they were taken out."""
    rows = causes.of(TAKEN_OUT, "passage")
    return [e for e in rows if e.passage is not None and e.passage.kind == "document"]


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation along the last axis, ties at mean rank; NaN where a side is constant."""
    ranks = [pd.DataFrame(np.atleast_2d(side)).rank(axis=1).to_numpy() for side in (a, b)]
    x, y = (r - r.mean(1, keepdims=True) for r in ranks)
    with np.errstate(invalid="ignore"):
        rho = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    return rho.reshape(np.shape(a)[:-1])
