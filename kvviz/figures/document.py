"""The text itself, shaded by who still holds each token's cache entries.

A token is (layer, KV head) entries; `layer` and `head` narrow what is counted. Offsets are
characters of `prompt.document`. Tokens outside it (chat template, question) follow the text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.palette import TEXT_STEPS
from kvviz.figures.strip import observation_window
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table
from kvviz.results.units import Units

TITLE = "Your text, shaded by who still holds it"
GUIDES = {
    "a": "Solid shading: most heads kept this word's cache entry. Grey text: every head dropped it.",
    "ab": "A colour marks words that one method holds in more heads than the other. Grey text: most "
    "heads dropped it.",
}
GUIDES["b"] = GUIDES["a"]
CLASSES = ("neither", "both", "a", "b", "mixed")
NEITHER, BOTH, A_ONLY, B_ONLY, MIXED = range(5)
LEAST_DIFFERENCE = 0.1  # of the heads: below it, A and B count as agreeing on a token
FEW = 0.02  # of the entries of a word, sentence or paragraph


@dataclass(frozen=True)
class DocumentTable(Table):
    """One row a token, N tokens of the whole prompt. Arrays are [N] unless said otherwise.

    start, end    int32, characters of the document; -1 for tokens outside it.
    part          "document", "template" or "question" for each token.
    held_a, held_b  int32, heads that kept it; tokens beyond n are held by all. held_b is 0
                  without B.
    only_a, only_b  int32, heads where only A, only B kept it (zero without B).
    heads         int32, heads that could hold it (a sliding layer counts inside its window only).
    share         float32, held share by `colour_by` (A's for "ab").
    step          uint8, shade 0 (none) to 4 (all) of `share`.
    code          uint8, index in CLASSES, A against B (all NEITHER or BOTH without B).
    glyph_first, glyph_last  int32 [G], first and last token of each character group that is
                  drawn as one: several tokens can make one character.
    """

    near: ClassVar[str | None] = "token"

    tokens: list[str]
    start: np.ndarray
    end: np.ndarray
    part: list[str]
    held_a: np.ndarray
    held_b: np.ndarray
    only_a: np.ndarray
    only_b: np.ndarray
    heads: np.ndarray
    share: np.ndarray
    step: np.ndarray
    code: np.ndarray
    glyph_first: np.ndarray
    glyph_last: np.ndarray
    colour_by: str
    label_a: str
    label_b: str | None
    window: int
    n: int
    document: str

    def columns(self):
        """See `Table.columns`."""
        columns = {
            "token": np.arange(len(self.tokens)),
            "text": [text.plain(t) for t in self.tokens],
            "part": self.part,
            "heads": self.heads,
            "held by A": self.held_a,
        }
        if self.label_b is not None:
            columns |= {
                "held by B": self.held_b,
                "only A": self.only_a,
                "only B": self.only_b,
                "class": [CLASSES[i] for i in self.code],
            }
        return columns

    @property
    def glyph_step(self) -> np.ndarray:
        """Shade of each glyph, uint8 [G]: the mean share of its tokens."""
        return steps(_per_glyph(self.share, self, np.add) / self.glyph_parts)

    @property
    def glyph_parts(self) -> np.ndarray:
        """Tokens in each glyph, int32 [G]."""
        return self.glyph_last - self.glyph_first + 1

    @property
    def glyph_partial(self) -> np.ndarray:
        """Glyphs of several tokens of which some, not all, are held by any head, bool [G]."""
        held = self.held_b if self.colour_by == "b" else self.held_a
        some = _per_glyph((held > 0).astype(np.int32), self, np.add)
        return (some > 0) & (some < self.glyph_parts)

    @property
    def glyph_code(self) -> np.ndarray:
        """Class of each glyph, uint8 [G]: that of its tokens, MIXED where A and B differ in turn."""
        counts = np.stack(
            [_per_glyph((self.code == code).astype(np.int32), self, np.add) for code in range(len(CLASSES))]
        )
        code = counts.argmax(axis=0).astype(np.uint8)
        differs = (counts[A_ONLY] > 0) | (counts[B_ONLY] > 0)
        larger = np.where(counts[A_ONLY] >= counts[B_ONLY], A_ONLY, B_ONLY)
        code = np.where(differs, larger, code)
        mixed = ((counts[A_ONLY] > 0) & (counts[B_ONLY] > 0)) | (counts[MIXED] > 0)
        return np.where(mixed, MIXED, code).astype(np.uint8)


def _per_glyph(values: np.ndarray, table: DocumentTable, how: np.ufunc) -> np.ndarray:
    return how.reduceat(values, table.glyph_first)


def steps(share: np.ndarray) -> np.ndarray:
    """Shade of a share, uint8: 0 only for none, the last only for all, thirds between."""
    middle = 1 + np.floor(share * (TEXT_STEPS - 2)).clip(0, TEXT_STEPS - 3)
    step = np.where(share <= 0, 0, np.where(share >= 1, TEXT_STEPS - 1, middle))
    return step.astype(np.uint8)


def classes(only_a, only_b, both, heads) -> np.ndarray:
    """A against B per token, uint8 indices in CLASSES, from head counts (int arrays).

    The larger of A-only and B-only if they differ by at least a tenth of the heads, else both or
    neither by majority (both in a draw).
    """
    difference = np.abs(only_a - only_b)
    differs = (difference > 0) & (difference >= LEAST_DIFFERENCE * heads - 1e-9)
    neither = heads - only_a - only_b - both
    agreed = np.where((both >= neither) & (both > 0), BOTH, NEITHER)
    larger = np.where(only_a > only_b, A_ONLY, B_ONLY)
    return np.where(differs, larger, agreed).astype(np.uint8)


def document_tokens(
    c: Comparison,
    a: str,
    b: str | None,
    k: float | int,
    colour_by: str = "a",
    layer: int | None = None,
    head: int | None = None,
) -> DocumentTable:
    """Who holds each token at budget k. colour_by: "a", "b" or "ab" (A against B)."""
    if colour_by not in ("a", "b", "ab"):
        raise InputError("Colour the text by A, by B, or by A against B.")
    if b is None:
        colour_by = "a"
    total = len(c.prompt.tokens)
    rows = slice(None) if layer is None else slice(layer, layer + 1)
    columns = slice(None) if head is None else slice(head, head + 1)

    heads_each = len(range(c.model.n_kv_heads)[columns])
    holding = (~c.outside())[rows].sum(axis=0) * heads_each  # heads that can hold each token
    of_a = c.need(a, k).kept.mask()[rows, columns]
    held_a = _heads(of_a)
    if b is None:
        held_b = only_a = only_b = np.zeros_like(held_a)
        both = held_a
        code = np.where(2 * held_a >= np.maximum(holding, 1), BOTH, NEITHER).astype(np.uint8)
    else:
        of_b = c.need(b, k).kept.mask()[rows, columns]
        held_b = _heads(of_b)
        both = _heads(of_a & of_b)
        only_a, only_b = held_a - both, held_b - both
        code = classes(only_a, only_b, both, holding)

    layers = len(range(c.model.n_layers)[rows])
    heads = _extend(holding, total, layers * heads_each)
    held_a = _extend(held_a, total, layers * heads_each)
    held_b = _extend(held_b, total, 0 if b is None else layers * heads_each)
    held = held_b if colour_by == "b" else held_a
    share = (held / np.maximum(heads, 1)).astype(np.float32)
    starts, ends, first, last = _spans(c)
    window = observation_window(c, a)
    return DocumentTable(
        tokens=list(c.prompt.tokens),
        start=starts,
        end=ends,
        part=_parts(c),
        held_a=held_a,
        held_b=held_b,
        only_a=_extend(only_a, total, 0),
        only_b=_extend(only_b, total, 0),
        heads=heads,
        share=share,
        step=steps(share),
        code=_extend(code, total, BOTH).astype(np.uint8),
        glyph_first=first,
        glyph_last=last,
        colour_by=colour_by,
        label_a=text.label(c, a),
        label_b=None if b is None else text.label(c, b),
        window=window,
        n=c.n,
        document=c.prompt.document,
    )


def by_units(table: DocumentTable, cut: Units) -> DocumentTable:
    """The table with every token given what its word, sentence or paragraph has as a whole.

    Counts are entries of the unit, shades on a square-root scale as in the maps. A unit is A's or B's where
    the one holds a tenth more of it than the other, and not a few entries only.
    """
    widths = np.diff(cut.starts, append=cut.n)

    def whole(values: np.ndarray) -> np.ndarray:
        return np.concatenate([np.repeat(cut.totals(values[: cut.n]), widths), values[cut.n :]])

    names = ("held_a", "held_b", "only_a", "only_b", "heads")
    held_a, held_b, only_a, only_b, heads = (whole(getattr(table, name)) for name in names)
    held = held_b if table.colour_by == "b" else held_a
    share = (held / np.maximum(heads, 1)).astype(np.float32)
    if table.label_b is None:
        code = np.where(2 * held_a >= np.maximum(heads, 1), BOTH, NEITHER).astype(np.uint8)
    else:
        gap, most = np.abs(held_a - held_b), np.maximum(held_a, held_b)
        differs = (gap > 0) & (gap >= LEAST_DIFFERENCE * most) & (gap >= FEW * heads)
        agreed = np.where(held_a + held_b >= heads, BOTH, NEITHER)
        code = np.where(differs, np.where(held_a > held_b, A_ONLY, B_ONLY), agreed).astype(np.uint8)
    code[cut.n :] = table.code[cut.n :]
    return replace(
        table, held_a=held_a, held_b=held_b, only_a=only_a, only_b=only_b, heads=heads, share=share,
        step=steps(np.sqrt(share)), code=code,
    )  # fmt: skip


def _heads(mask: np.ndarray) -> np.ndarray:
    """Entries a token: bool [L, Hkv, n] to int32 [n]."""
    flat = mask.reshape(-1, mask.shape[-1]).view(np.uint8)
    return flat.sum(axis=0, dtype=np.int32)


def _extend(values: np.ndarray, total: int, fill: int) -> np.ndarray:
    """Tokens from n on are not under compression: they are given `fill`."""
    more = np.full(total - len(values), fill, dtype=np.int32)
    return np.concatenate([values.astype(np.int32), more])


def _spans(c: Comparison) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Character spans of tokens, and groups of tokens that share characters."""
    offsets = [(-1, -1) if o is None else o for o in c.prompt.offsets]
    spans = np.asarray(offsets, dtype=np.int32).reshape(-1, 2)
    starts, ends = spans[:, 0], spans[:, 1]
    inside = starts >= 0
    # A token that starts before its predecessor's end lies in the same character. Tokens of no
    # characters at all (a lone byte, a marker) join nothing.
    joins = np.zeros(len(spans), dtype=bool)
    joins[1:] = inside[1:] & inside[:-1] & (starts[1:] < ends[:-1]) & (ends[1:] > starts[1:])
    first = np.flatnonzero(~joins).astype(np.int32)
    last = np.append(first[1:], len(spans)).astype(np.int32) - 1
    return starts, ends, first, last


def _parts(c: Comparison) -> list[str]:
    document, question = c.prompt.document_span, c.prompt.question_span
    parts = []
    for token in range(len(c.prompt.tokens)):
        if document[0] <= token < document[1]:
            parts.append("document")
        elif question[0] <= token < question[1]:
            parts.append("question")
        else:
            parts.append("template")
    return parts


def rules(table: DocumentTable) -> list[tuple[str, int, int]]:
    """What follows the text: (rule, first token, last token + 1) for template, question, window."""
    found: list[tuple[str, int, int]] = []
    for token, part in enumerate(table.part):
        if part == "document":
            continue
        title = "Question" if part == "question" else "Template"
        if found and found[-1][0] == title and found[-1][2] == token:
            found[-1] = (title, found[-1][1], token + 1)
        else:
            found.append((title, token, token + 1))
    if table.window:
        title = f"Window (last {table.window} tokens, read by {table.label_a})"
        found.append((title, table.n - table.window, table.n))
    return found


def glyph_line(table: DocumentTable, glyph: int) -> str:
    """ "2 of 3 parts kept" for a character of several tokens, else ""."""
    parts = int(table.glyph_parts[glyph])
    if parts == 1:
        return ""
    first, last = int(table.glyph_first[glyph]), int(table.glyph_last[glyph])
    held = table.held_b if table.colour_by == "b" else table.held_a
    kept = int((held[first : last + 1] > 0).sum())
    return f"{kept} of {parts} parts kept"
