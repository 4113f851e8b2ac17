"""What was kept, as bits: a set of entries, and pooling its tokens into columns.

L layers, Hkv KV heads, n tokens under compression; an entry is one (layer, KV head, token).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kvviz.brief import brief
from kvviz.errors import InputError
from kvviz.types import ModelInfo


@dataclass(frozen=True, eq=False)
class KeptSet:
    """The kept entries of one method at one budget, a bit an entry, unpacked as far as it is asked for.

    bits     uint8 [L, Hkv, ceil(n / 8)], np.packbits of the kept mask along its tokens.
    by_rule  the same of the entries kept by rule rather than by score.
    n        tokens under compression.
    entries  b, entries per KV head on average that the budget allows.
    """

    bits: np.ndarray
    by_rule: np.ndarray
    n: int
    entries: int

    __repr__ = brief

    @classmethod
    def pack(cls, mask: np.ndarray, protected: np.ndarray, entries: int) -> KeptSet:
        """From masks, bool [L, Hkv, n]; `protected` may be broadcastable to that."""
        mask = np.asarray(mask, dtype=bool)
        protected = np.broadcast_to(np.asarray(protected, dtype=bool), mask.shape)
        return cls(np.packbits(mask, axis=-1), np.packbits(protected, axis=-1), mask.shape[-1], int(entries))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, Hkv, n)."""
        return (*self.bits.shape[:2], self.n)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.bits.nbytes + self.by_rule.nbytes

    def mask(self) -> np.ndarray:
        """Kept entries, bool [L, Hkv, n]."""
        return _unpack(self.bits, 0, self.n)

    def protected(self) -> np.ndarray:
        """Entries kept by rule, bool [L, Hkv, n]."""
        return _unpack(self.by_rule, 0, self.n)

    def layer(self, index: int) -> np.ndarray:
        """Kept entries of one layer, bool [Hkv, n]."""
        return _unpack(self.bits[index], 0, self.n)

    def layer_protected(self, index: int) -> np.ndarray:
        """Entries of one layer kept by rule, bool [Hkv, n]."""
        return _unpack(self.by_rule[index], 0, self.n)

    def span(self, start: int, end: int) -> np.ndarray:
        """Kept entries of the tokens start to end (exclusive), bool [L, Hkv, end - start]."""
        return _unpack(self.bits, start, end)

    def span_protected(self, start: int, end: int) -> np.ndarray:
        """Entries of the tokens start to end kept by rule, bool [L, Hkv, end - start]."""
        return _unpack(self.by_rule, start, end)

    def token(self, t: int) -> np.ndarray:
        """Heads that keep one token, bool [L, Hkv]."""
        return (self.bits[..., t >> 3] >> (7 - (t & 7)) & 1).view(bool)

    def counts(self) -> np.ndarray:
        """Entries kept by each head, int64 [L, Hkv]; counted once, not to be written to."""
        return self._counts

    @cached_property
    def _counts(self) -> np.ndarray:
        counted = np.bitwise_count(self.bits).sum(axis=-1, dtype=np.int64)
        counted.flags.writeable = False
        return counted

    def protected_tokens(self) -> np.ndarray:
        """Tokens that some head keeps by rule, bool [n]."""
        return _unpack(np.bitwise_or.reduce(self.by_rule, axis=(0, 1)), 0, self.n)

    def overlap(self, other: KeptSet) -> float:
        """Entries that both keep as a share of all that either keeps (Jaccard); 1.0 if neither has any."""
        either = int(np.bitwise_count(self.bits | other.bits).sum(dtype=np.int64))
        shared = int(np.bitwise_count(self.bits & other.bits).sum(dtype=np.int64))
        return shared / either if either else 1.0


def _unpack(bits: np.ndarray, start: int, end: int) -> np.ndarray:
    """Tokens start to end of packed rows as bool; touches the bytes they lie in only."""
    low = start >> 3
    part = np.unpackbits(bits[..., low : (end + 7) >> 3], axis=-1)
    return part[..., start - 8 * low : end - 8 * low].view(bool)


def window_starts(model: ModelInfo, n: int) -> np.ndarray:
    """First of n tokens that each layer still holds, int64 [L]; 0 where its attention is full.

    The token after the prompt stands at n and sees the window - 1 tokens before it.
    """
    starts = [0 if w is None else max(0, n - w + 1) for w in model.windows]
    return np.asarray(starts, dtype=np.int64)


def everything(model: ModelInfo, n: int) -> KeptSet:
    """What the full cache holds: all that a layer's window still reaches."""
    held = np.arange(n)[None, :] >= window_starts(model, n)[:, None]
    bits = np.packbits(held, axis=-1)[:, None].repeat(model.n_kv_heads, axis=1)
    return KeptSet(bits, np.zeros_like(bits), n, n)


def nearest(values: Sequence[float], value: float) -> list[float]:
    """The one below and the one above `value`, as far as they exist."""
    below = [v for v in values if v < value]
    above = [v for v in values if v > value]
    return ([max(below)] if below else []) + ([min(above)] if above else [])


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


def bins(n: int, x0: int = 0, x1: int | None = None, columns: int = 1500) -> Bins:
    """Columns for the tokens x0 to x1 of n: one token each as long as there is room."""
    x1 = n if x1 is None else x1
    x0, x1 = max(0, int(x0)), min(n, int(x1))
    if x1 <= x0:
        raise InputError(f"Choose a range of tokens between 0 and {n}.")
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
