"""A prompt in words, sentences, paragraphs or sections: what is kept of each, what one method holds alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from kvviz.errors import InputError
from kvviz.results.comparison import Comparison
from kvviz.results.passages import GRAINS, passage_of, passage_starts
from kvviz.results.sections import Where
from kvviz.types import Prompt

_KEPT = 8  # prompts whose units are held: a long text is cut once, not for every picture
_held: OrderedDict[tuple[int, str], tuple[Prompt, Units]] = OrderedDict()


@dataclass(frozen=True, eq=False)
class Units:
    """Tokens 0 to n in runs. starts: int64 [U], the first token of each."""

    starts: np.ndarray
    n: int

    @property
    def ends(self) -> np.ndarray:
        """Last token + 1 of each, int64 [U]."""
        return np.append(self.starts[1:], self.n)

    def at(self, tokens: np.ndarray | int) -> np.ndarray:
        """The unit of each token."""
        return np.searchsorted(self.starts, tokens, side="right") - 1

    def within(self, x0: int, x1: int) -> Units:
        """The units that tokens x0 to x1 lie in, whole, counted from the first one's start."""
        first, last = int(self.at(x0)), int(self.at(x1 - 1))
        start = int(self.starts[first])
        return Units(self.starts[first : last + 1] - start, int(self.ends[last]) - start)

    def totals(self, values: np.ndarray) -> np.ndarray:
        """Sum over each unit, int64 [..., U], of whole numbers or bools [..., n]."""
        values = values.view(np.uint8) if values.dtype == bool else values
        return np.add.reduceat(values, self.starts, axis=-1, dtype=np.int64)


def units(prompt: Prompt, grain: str) -> Units:
    """The tokens under compression in units of this kind. InputError for a kind that is none."""
    if grain not in GRAINS:
        raise InputError(f"A text is seen by token, word, sentence, paragraph or section, not by {grain!r}.")
    key = id(prompt), grain
    if key not in _held:
        n = prompt.n_compressible
        starts = np.arange(n) if grain == "token" else np.asarray(passage_starts(prompt, grain))
        _held[key] = prompt, Units(starts.astype(np.int64), n)  # the prompt is held: its id stays its own
        while len(_held) > _KEPT:
            _held.popitem(last=False)
    return _held[key][1]


@dataclass(frozen=True)
class HeldPassage:
    """Tokens start to end, and who holds them: a head does that keeps at least half of them.

    where         page and heading that they stand under, "" where the text has neither.
    a, b          share of the KV heads that hold it, under A and under B.
    first_a, first_b  smallest share of n at which half of the heads do; None where no stored budget does.
    """

    start: int
    end: int
    text: str
    where: str
    a: float
    b: float
    first_a: float | None
    first_b: float | None

    @property
    def only_b(self) -> bool:
        """Do half of B's heads hold it, and fewer of A's?"""
        return self.b >= 0.5 > self.a


def held_by_b(c: Comparison, a: str, b: str, k: float | int, grain: str, most: int = 20) -> list[HeldPassage]:
    """Passages of the document that more of B's heads hold than of A's, the largest difference first."""
    cut = units(c.prompt, grain)
    starts, ends = cut.starts, cut.ends
    share_a, share_b = (_holding(c.need(m, k).kept.mask(), cut) for m in (a, b))
    start, end = c.prompt.document_span
    inside = (starts >= start) & (ends <= end)
    order = np.argsort(share_a - share_b, kind="stable")
    found = [i for i in order.tolist() if inside[i] and share_b[i] > share_a[i]][:most]
    where = Where(c.prompt)
    return [
        HeldPassage(
            int(starts[i]), int(ends[i]),
            passage_of(c.prompt, "document", int(starts[i]), int(ends[i])).text,
            where(int(starts[i])),
            float(share_a[i]), float(share_b[i]),
            _first(c, a, int(starts[i]), int(ends[i])), _first(c, b, int(starts[i]), int(ends[i])),
        )
        for i in found
    ]  # fmt: skip


def _holding(mask: np.ndarray, cut: Units) -> np.ndarray:
    """Share of the heads that keep at least half of each unit, [U], from a mask [L, Hkv, n]."""
    widths = np.diff(cut.starts, append=cut.n)
    heads = np.zeros(len(widths), dtype=np.int64)
    for layer in mask:  # one layer at a time: counts of all would take eight times the mask
        heads += (2 * cut.totals(layer) >= widths).sum(axis=0)
    return heads / (mask.shape[0] * mask.shape[1])


def _first(c: Comparison, method: str, start: int, end: int) -> float | None:
    for share in c.shares(method):
        part = c.need(method, share).kept.span(start, end)
        holds = 2 * part.sum(axis=-1) >= end - start
        if 2 * int(holds.sum()) >= holds.size:
            return share
    return None
