"""Changes of kept sets that keep their size, and random ones of the same size beside them.

Masks and scores are [L, Hkv, n]; counts are entries of each head, [L, Hkv].
"""

from __future__ import annotations

import numpy as np


def worth(scores: np.ndarray) -> np.ndarray:
    """Scores as an order in which to push out: what has none goes first; where a method goes by position
    alone, the newest are worth most."""
    if not np.isfinite(scores).any():
        return np.broadcast_to(np.arange(scores.shape[-1], dtype=np.float32), scores.shape)
    return np.where(np.isnan(scores), -np.inf, scores)


def pushed_out(mask: np.ndarray, counts: np.ndarray, fixed: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The mask less as many entries of each head as counted: the worst by score, none of the fixed ones."""
    out = mask.copy()
    for place in zip(*np.nonzero(counts > 0)):
        free = np.flatnonzero(mask[place] & ~fixed[place])
        out[place][free[np.argsort(scores[place][free], kind="stable")[: counts[place]]]] = False
    return out


def drawn(counts: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As many entries of each head as counted (or as there are), at random among the free ones."""
    out = np.zeros_like(free)
    for place in zip(*np.nonzero(counts)):
        places = np.flatnonzero(free[place])
        out[place][rng.choice(places, min(int(counts[place]), len(places)), replace=False)] = True
    return out
