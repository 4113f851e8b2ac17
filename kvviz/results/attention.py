"""From an answer token to the text: what the full cache looked at to write it, and how much of that is gone.

Step t is the query that predicted answer token t: the last one of the prompt for the first token, that of
answer token t - 1 for the others. Question-aware, the first token is chosen before anything is evicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvviz.brief import brief

STEPS = 64  # answer tokens whose attention is stored
CODES_BYTES = 16 * 2**20  # weights of every KV head are stored up to this much, else the layers' means


def encode(weights: np.ndarray) -> np.ndarray:
    """Weights from 0 to 1 as uint8 on a scale of square roots: small ones stay apart, none is off by more
    than 0.004."""
    return np.rint(255 * np.sqrt(weights)).astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """The reverse of `encode`, float32."""
    return np.square(codes.astype(np.float32) / 255)


@dataclass(frozen=True, eq=False)
class AnswerAttention:
    """Attention of T answer steps of the full cache, mean over the query heads of a KV head.

    codes      uint8 [T, L, H, n], `encode` of the weights; H is 1 (mean over the layer) where those of all
               KV heads would be too many.
    document   float16 [T, L, Hkv], the share that fell on the document's own tokens.
    lost       {"method@budget": float16 [T, L, Hkv]}, the share that fell on entries this kept set lacks;
               exact, not from the codes.
    lost_document  the same on the document's own tokens alone.

    What is missing to 1 fell on tokens after the prompt's compressible part.
    """

    codes: np.ndarray
    document: np.ndarray
    lost: Mapping[str, np.ndarray]
    lost_document: Mapping[str, np.ndarray]

    __repr__ = brief

    @property
    def steps(self) -> int:
        """T, answer tokens held."""
        return len(self.codes)

    @property
    def by_head(self) -> bool:
        """Whether single KV heads can be shown."""
        return self.codes.shape[2] == self.document.shape[2]

    @property
    def keys(self) -> list[str]:
        """Answers and stops, as "method@budget"."""
        return list(self.lost)

    @property
    def arrays(self) -> list[np.ndarray]:
        """Everything held."""
        return [self.codes, self.document, *self.lost.values(), *self.lost_document.values()]

    def with_lost(self, other: AnswerAttention) -> AnswerAttention:
        """The same with the kept sets of another run of the same prompt and answer."""
        if other.document.shape != self.document.shape:
            return self
        return replace(
            self,
            lost={**other.lost, **self.lost},
            lost_document={**other.lost_document, **self.lost_document},
        )

    def weights(self, step: int, layer: int | None = None, head: int | None = None) -> np.ndarray:
        """Attention on each token, float32 [n]: one KV head, the mean of a layer, or of all layers."""
        rows = self.codes[step][_of(layer)]
        rows = rows[:, _of(head)] if self.by_head else rows
        return decode(rows).mean((0, 1))

    def gone(self, key: str, layer: int | None = None, head: int | None = None) -> np.ndarray:
        """Share of each step's attention that fell on evicted entries, float64 [T]."""
        return _mean(self.lost[key], layer, head)

    def gone_document(self, key: str, layer: int | None = None, head: int | None = None) -> np.ndarray:
        """The same as a share of the attention on the document's own tokens (no template, no question)."""
        seen = _mean(self.document, layer, head)
        return _mean(self.lost_document[key], layer, head) / np.maximum(seen, 1e-12)


def _of(index: int | None) -> slice:
    return slice(None) if index is None else slice(index, index + 1)


def _mean(rows: np.ndarray, layer: int | None, head: int | None) -> np.ndarray:
    return rows[:, _of(layer), _of(head)].mean((1, 2), dtype=np.float64)
