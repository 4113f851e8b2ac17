"""Two runs beside each other: their texts aligned by characters, and what each keeps of every passage.

Two models cut a text into other tokens; what both have is its characters. Where the texts differ, their equal
sentences are paired, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

import numpy as np

from kvviz.errors import InputError
from kvviz.results.agreement import spearman
from kvviz.results.comparison import Comparison
from kvviz.results.passages import pieces
from kvviz.types import Prompt


@dataclass(frozen=True, eq=False)
class Aligned:
    """Passages that both texts have.

    characters  int64 [P, 2], their places in the first text; other likewise in the second.
    one, two    int64 [P, 2], their tokens in either run; start == end where a run has none.
    total       characters of the first text.
    """

    characters: np.ndarray
    other: np.ndarray
    one: np.ndarray
    two: np.ndarray
    total: int


def aligned(a: Prompt, b: Prompt, grain: str) -> Aligned:
    """Words, sentences or paragraphs of the first run's document where the second has them too. InputError
    where the texts have none in common."""
    starts = np.asarray(pieces(a.document, grain), dtype=np.int64)
    spans = np.stack([starts, np.append(starts[1:], len(a.document))], axis=-1)
    blocks = _blocks(a.document, b.document)
    if not len(blocks):
        raise InputError("These two texts have no sentence in common.")
    block = np.searchsorted(blocks[:, 0], spans[:, 0], side="right") - 1
    start, there, size = blocks[np.maximum(block, 0)].T
    # White space at a passage's end may be lost with the sentence that followed it.
    trimmed = np.array([begin + len(a.document[begin:end].rstrip()) for begin, end in spans.tolist()])
    whole = (block >= 0) & (trimmed > spans[:, 0]) & (trimmed <= start + size)
    spans, moved = spans[whole], (there - start)[whole]
    spans[:, 1] = trimmed[whole]
    other = spans + moved[:, None]
    return Aligned(spans, other, _tokens(a, spans), _tokens(b, other), len(a.document))


def _blocks(a: str, b: str) -> np.ndarray:
    """Stretches that both texts have, in order: start in a, start in b, characters; int64 [B, 3]."""
    if a == b:
        return np.array([[0, 0, len(a)]], dtype=np.int64)
    (at_a, of_a), (at_b, of_b) = _sentences(a), _sentences(b)
    found = [(at_a[i], at_b[j], len(of_a[i])) for i, j in _pairs(of_a, of_b)]
    return np.array(found, dtype=np.int64).reshape(-1, 3)


def _sentences(document: str) -> tuple[list[int], list[str]]:
    """Where each sentence starts, and the sentence without the white space around it."""
    starts = pieces(document, "sentence")
    texts = [document[s:e] for s, e in zip(starts, [*starts[1:], len(document)])]
    lead = [len(text) - len(text.lstrip()) for text in texts]
    return [s + n for s, n in zip(starts, lead)], [text.strip() for text in texts]


def _pairs(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Equal items of two lists, (place in a, place in b), in an order that both have: the n-th of equal items
    goes with the n-th, and of all these pairs the longest rising row is taken."""
    places: dict[tuple[str, int], int] = {}
    counts: Counter[str] = Counter()
    for j, text in enumerate(b):
        places[text, counts[text]] = j
        counts[text] += 1
    counts.clear()
    pairs: list[tuple[int, int]] = []
    for i, text in enumerate(a):
        if text and (text, counts[text]) in places:
            pairs.append((i, places[text, counts[text]]))
        counts[text] += 1
    ends: list[int] = []  # smallest place in b at which a row of each length ends, and which pair that is
    last: list[int] = []
    before: list[int] = []
    for at, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        ends[length : length + 1] = [j]
        last[length : length + 1] = [at]
        before.append(last[length - 1] if length else -1)
    row, at = [], last[-1] if last else -1
    while at >= 0:
        row.append(pairs[at])
        at = before[at]
    return row[::-1]


def _tokens(prompt: Prompt, spans: np.ndarray) -> np.ndarray:
    """Tokens under compression whose last character lies in each span, [P, 2]. White space that some
    tokenizers join to the stop before it does not count."""
    inside = [
        (t, o[0] + (len(prompt.document[slice(*o)].rstrip()) or o[1] - o[0]) - 1)
        for t, o in enumerate(prompt.offsets[: prompt.n_compressible])
        if o is not None
    ]
    token, last = np.array(inside, dtype=np.int64).reshape(-1, 2).T
    first, end = (np.searchsorted(last, spans[:, side], side="left") for side in (0, 1))
    token = np.append(token, token[-1] + 1 if len(token) else 0)
    after = np.where(end > first, token[np.maximum(end, 1) - 1] + 1, token[first])
    return np.stack([token[first], after], axis=-1)


def kept_shares(c: Comparison, method: str, k: float | int, spans: np.ndarray) -> np.ndarray:
    """Share of each span's entries that a method keeps, float [P]; NaN for a span without tokens."""
    mask = c.need(method, k).kept.mask()
    held = np.concatenate([[0], mask.sum(axis=(0, 1), dtype=np.int64).cumsum()])
    can = np.concatenate([[0], ((~c.outside()).sum(axis=0) * c.model.n_kv_heads).cumsum()])
    start, end = spans.T
    with np.errstate(invalid="ignore", divide="ignore"):
        return (held[end] - held[start]) / (can[end] - can[start])


def agreement_words(x: np.ndarray, y: np.ndarray, grain: str) -> str:
    """How far two runs keep the same passages, in a sentence."""
    both = np.isfinite(x) & np.isfinite(y)
    count = int(both.sum())
    rho = float(spearman(x[both], y[both])) if count > 2 else float("nan")
    if not np.isfinite(rho):
        return f"Too few {grain}s in common to say whether the two runs keep the same."
    return f"Over {count:,} {grain}s, the shares that the two runs keep have rank correlation {rho:.2f}."
