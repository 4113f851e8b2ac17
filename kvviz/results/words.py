"""How tokens and budgets are written; the number formats of `formats` are offered here too.

Tokens come from pasted text and are hostile: `plain` makes them safe to read, `visible` also safe
inside a Plotly figure, which interprets a little HTML and LaTeX.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

from kvviz.results.comparison import Comparison
from kvviz.results.formats import (
    MISSING,
    budget_name,
    budget_share,
    count,
    isolated,
    kl,
    kl_number,
    label,
    labels,
    mb,
    place,
    relative_error,
    score,
    seconds,
    share,
    share_of,
    shortened,
)

__all__ = [
    "MAX_TOKEN",
    "MISSING",
    "budget_name",
    "budget_share",
    "budget_triple",
    "count",
    "entries_words",
    "full_line",
    "excerpt",
    "isolated",
    "kept_bytes",
    "kl",
    "kl_number",
    "label",
    "labels",
    "mb",
    "place",
    "plain",
    "quoted",
    "relative_error",
    "run_line",
    "score",
    "seconds",
    "share",
    "share_of",
    "shortened",
    "span_names",
    "visible",
]

MAX_TOKEN = 20
_MARKS = {" ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥"}
_BOX = "▯"


def plain(token: str, limit: int = MAX_TOKEN) -> str:
    """A token with its whitespace visible, unreadable characters as boxes, cut at `limit`."""
    shown = []
    for character in token[: limit + 1]:
        kind = unicodedata.category(character)
        if character in _MARKS:
            shown.append(_MARKS[character])
        elif kind in ("Zs", "Zl", "Zp"):
            shown.append("·")
        elif kind[0] == "C" or character == "\ufffd":  # control, bidi marks, lone surrogates
            shown.append(_BOX)
        else:
            shown.append(character)
    return "".join(shown) if len(token) <= limit else "".join(shown[: limit - 1]) + "…"


def visible(token: str, limit: int = MAX_TOKEN) -> str:
    """`plain`, and inert inside a figure: no tags, no entities, no formulas."""
    return html.escape(plain(token, limit)).replace("$", "&#36;")


def excerpt(tokens: Iterable[str], limit: int = MAX_TOKEN) -> str:
    """A run of tokens as one short readable piece, spaces left as spaces."""
    pieces, length = [], 0
    for token in tokens:
        pieces.append(token)
        length += len(token)
        if length > limit:
            break
    joined = "".join(pieces)
    shown = joined.strip()
    return plain(shown, limit).replace("·", " ") if shown else plain(joined, limit)  # blanks alone are shown


def entries_words(c: Comparison, method: str, k: float | int) -> str:
    """ "205 tokens per KV head", or average and range where heads keep different numbers."""
    point = c.at(method, k)
    if point is None:
        return f"{count(c.share(k) * c.n)} tokens per KV head"
    counts = point.kept.counts()
    low, high = int(counts.min()), int(counts.max())
    if low == high:
        return f"{count(low)} {'token' if low == 1 else 'tokens'} per KV head"
    return f"{count(counts.mean())} on average ({count(low)} to {count(high)}) tokens per KV head"


def kept_bytes(c: Comparison, method: str, k: float | int) -> float | None:
    """Bytes of a cache: as allocated where it was decoded, else in proportion to its entries."""
    if method == "full":
        return float(c.bytes_full)
    variant = c.variant(method, k)
    if variant is not None and variant.bytes:
        return float(variant.bytes)
    point = c.at(method, k)
    if point is None:
        return None
    held = c.at("full", 1.0).kept.counts()
    return c.bytes_full * float(point.kept.counts().sum()) / float(held.sum())


def budget_triple(c: Comparison, method: str, k: float | int) -> str:
    """ "20% kept · 205 tokens per KV head · 9.4 of 47.2 MB after reading, +46 kB a token"."""
    size = kept_bytes(c, method, k)
    amount = MISSING if size is None else f"{size / 1e6:,.1f}"
    kept = f"{budget_share(c.share(k))} kept · {entries_words(c, method, k)}"
    return f"{kept} · {amount} of {full_line(c)}"


def full_line(c: Comparison) -> str:
    """The memory of the full cache and when it is that: "47.2 MB after reading, +46 kB a token"."""
    kilobytes = c.token_bytes / 1e3
    more = f"{kilobytes:,.0f} kB" if kilobytes >= 10 else f"{kilobytes:.1f} kB"
    return f"{mb(c.bytes_full)} after reading, +{more} a token"


def span_names(names: Sequence[str], word: str = "and") -> str:
    """ "M1, M2 and M3"."""
    names = list(names)
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def run_line(c: Comparison) -> str:
    """The run a picture is of: "smollm2-135m, float32 · 1,009 tokens · question-aware · 2026-12-02"."""
    date = str(c.settings.get("date") or "")[:10]
    words = [f"{isolated(c.model.id)}, {c.model.dtype}", f"{count(c.n)} tokens", c.prompt.protocol, date]
    return " · ".join(filter(None, words))


def quoted(words: str, limit: int = 60) -> str:
    """Text from a run in a sentence: on one line, not endless, in quotation marks."""
    return f"“{isolated(shortened(words, limit))}”"
