"""Reading kept entries out of a comparison, and pooling them into columns.

L layers, Hkv KV heads, n tokens under compression. The method "full" keeps all a layer can hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kvviz.errors import InputError
from kvviz.results.comparison import Comparison
from kvviz.results.formats import budget_name, budget_share


def window_starts(c: Comparison) -> np.ndarray:
    """First token that each layer still holds, int64 [L]; 0 where its attention is full.

    The token after the prompt stands at n and sees the window - 1 tokens before it.
    """
    starts = [0 if w is None else max(0, c.n - w + 1) for w in c.model.windows]
    return np.asarray(starts, dtype=np.int64)


def outside(c: Comparison, x0: int = 0, x1: int | None = None) -> np.ndarray:
    """Tokens that a layer's sliding window has left behind, bool [L, x1 - x0]."""
    x1 = c.n if x1 is None else x1
    return np.arange(x0, x1)[None, :] < window_starts(c)[:, None]


def kept(c: Comparison, method: str, k: float | int) -> np.ndarray | None:
    """Kept mask, bool [L, Hkv, n], or None where it was not stored at this budget."""
    if method == "full":
        held = ~outside(c)[:, None, :]
        return np.broadcast_to(held, (c.model.n_layers, c.model.n_kv_heads, c.n))
    return c.kept(method, k)


def layer_kept(c: Comparison, method: str, k: float | int, layer: int) -> np.ndarray:
    """Kept mask of one layer, bool [Hkv, n], without unpacking the others; InputError as below."""
    if method == "full":
        return kept(c, method, k)[layer]
    variant = c.variant(method, k)
    if variant is not None and variant.selection is not None:
        return np.asarray(variant.selection.mask[layer])
    rows = _layer_bits(c, c.kept_bits, method, k, layer)
    if rows is None:
        raise InputError(not_stored(c, method, k, "The kept tokens were not stored"))
    return rows


def layer_protected(c: Comparison, method: str, k: float | int, layer: int) -> np.ndarray:
    """Entries of one layer kept by rule, bool [Hkv, n]; all False where this was not stored."""
    shape = c.model.n_layers, c.model.n_kv_heads, c.n
    variant = c.variant(method, k)
    if variant is not None and variant.selection is not None:
        return np.broadcast_to(np.asarray(variant.selection.protected), shape)[layer]
    rows = _layer_bits(c, c.protected_bits, method, k, layer)
    return np.zeros(shape[1:], dtype=bool) if rows is None else rows


def _layer_bits(c: Comparison, bits, method: str, k, layer: int) -> np.ndarray | None:
    index = stop_index(c, k)
    if index is None or method not in bits:
        return None
    heads = c.model.n_kv_heads
    rows = bits[method][index][layer * heads : (layer + 1) * heads]
    return np.unpackbits(rows, axis=-1, count=c.n).astype(bool)


def span_kept(c: Comparison, method: str, k: float | int, start: int, end: int):
    """Kept mask of the tokens start to end, bool [L, Hkv, end - start], or None; cheap at any n."""
    variant = c.variant(method, k)
    index = stop_index(c, k)
    decoded = variant is not None and variant.selection is not None
    if decoded or method == "full" or index is None or method not in c.kept_bits:
        if decoded:
            return np.stack([np.asarray(row)[:, start:end] for row in variant.selection.mask])
        mask = kept(c, method, k)
        return None if mask is None else mask[:, :, start:end]
    low = start >> 3
    part = np.unpackbits(c.kept_bits[method][index][:, low : (end + 7) >> 3], axis=-1)
    part = part[:, start - 8 * low : end - 8 * low].astype(bool)
    return part.reshape(c.model.n_layers, c.model.n_kv_heads, end - start)


def packed(c: Comparison, method: str, k: float | int) -> np.ndarray | None:
    """Kept mask as bits, uint8 [L * Hkv, ceil(n / 8)], or None where it was not stored."""
    index = stop_index(c, k)
    if index is not None and method in c.kept_bits:
        return c.kept_bits[method][index]
    mask = kept(c, method, k)
    return None if mask is None else np.packbits(mask.reshape(-1, c.n), axis=-1)


def need_kept(c: Comparison, method: str, k: float | int) -> np.ndarray:
    """`kept`, or an InputError that names the nearest stored budgets."""
    mask = kept(c, method, k)
    if mask is None:
        raise InputError(not_stored(c, method, k, "The kept tokens were not stored"))
    return mask


def stored_shares(c: Comparison, method: str) -> list[float]:
    """Shares at which this method's kept entries are known, ascending."""
    found = {c.share(v.budget) for v in c.variants if v.method == method and v.selection}
    if method in c.kept_bits:
        found |= set(c.stops)
    return sorted(found)


def nearest(values: list[float], value: float) -> list[float]:
    """The one below and the one above `value`, as far as they exist."""
    below = [v for v in values if v < value]
    above = [v for v in values if v > value]
    return ([max(below)] if below else []) + ([min(above)] if above else [])


def not_stored(c: Comparison, method: str, k: float | int, what: str) -> str:
    """ "... at 12%; nearest are 10% and 15%." """
    around = [budget_share(v) for v in nearest(stored_shares(c, method), c.share(k))]
    if not around:
        return f"{what} at {budget_name(c, k)}."
    joined = " and ".join(around)
    return f"{what} at {budget_name(c, k)}; nearest {'are' if len(around) > 1 else 'is'} {joined}."


def stop_index(c: Comparison, k: float | int) -> int | None:
    """Index of the slider stop at this budget, or None."""
    for index, stop in enumerate(c.stops):
        if math.isclose(stop, c.share(k)):
            return index
    return None


def head_counts(c: Comparison, method: str, k: float | int) -> np.ndarray | None:
    """Entries kept by each head, int64 [L, Hkv], without unpacking more than needed."""
    shape = c.model.n_layers, c.model.n_kv_heads
    if method == "full":
        held = c.n - window_starts(c)
        return np.broadcast_to(held[:, None], shape)
    variant = c.variant(method, k)
    if variant is not None and variant.selection is not None:
        return np.asarray(variant.selection.budgets, dtype=np.int64).reshape(shape)
    index = stop_index(c, k)
    if index is None or method not in c.kept_bits:
        return None
    bits = c.kept_bits[method][index]
    return np.bitwise_count(bits).sum(axis=-1, dtype=np.int64).reshape(shape)


def scope(c: Comparison, method: str) -> str:
    """What an entry competes with under this method: "head", "layer" or "all"."""
    for variant in c.variants:
        if variant.method == method and variant.selection is not None:
            return variant.selection.scope
    return "head"


@dataclass(frozen=True)
class Bins:
    """Tokens x0 to x1 (exclusive) in columns of `size` tokens; the last may hold fewer.

    starts  int64 [columns], first token of each column, counted from x0.
    """

    x0: int
    x1: int
    size: int
    starts: np.ndarray

    @property
    def widths(self) -> np.ndarray:
        """Tokens in each column, int64 [columns]."""
        return np.diff(self.starts, append=self.x1 - self.x0)

    @property
    def chip(self) -> str:
        """ "1 cell = 6 tokens", or nothing where each token has its own cell."""
        return f"1 cell = {self.size} tokens" if self.size > 1 else ""

    def span(self, column: int) -> tuple[int, int]:
        """First and last token of a column, both inclusive."""
        first = self.x0 + int(self.starts[column])
        return first, first + int(self.widths[column]) - 1


def bins(c: Comparison, x0: int = 0, x1: int | None = None, columns: int = 1500) -> Bins:
    """Columns for the tokens x0 to x1: one token each as long as there is room."""
    x1 = c.n if x1 is None else x1
    x0, x1 = max(0, int(x0)), min(c.n, int(x1))
    if x1 <= x0:
        raise InputError(f"Choose a range of tokens between 0 and {c.n}.")
    if columns < 1:
        raise InputError("A map needs at least one column.")
    size = math.ceil((x1 - x0) / columns)
    return Bins(x0, x1, size, np.arange(0, x1 - x0, size, dtype=np.int64))


def pool_sum(values: np.ndarray, b: Bins) -> np.ndarray:
    """Sum over each column: [..., x1 - x0] to uint32 [..., columns]."""
    values = values.view(np.uint8) if values.dtype == bool else values
    if b.size == 1:
        return values.astype(np.uint32)
    return np.add.reduceat(values, b.starts, axis=-1, dtype=np.uint32)


def pool_max(values: np.ndarray, b: Bins) -> np.ndarray:
    """Maximum over each column: [..., x1 - x0] to [..., columns]."""
    return values if b.size == 1 else np.maximum.reduceat(values, b.starts, axis=-1)


def over_heads(mask: np.ndarray) -> np.ndarray:
    """How many heads have it: bool [L, Hkv, n] to uint8 or uint16 [L, n]."""
    small = np.uint8 if mask.shape[1] < 256 else np.uint16
    return mask.view(np.uint8).sum(axis=1, dtype=small)


def jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Shared entries (packed masks) as a share of all that either keeps; 1.0 if neither has any."""
    either = int(np.bitwise_count(one | other).sum(dtype=np.int64))
    shared = int(np.bitwise_count(one & other).sum(dtype=np.int64))
    return shared / either if either else 1.0
