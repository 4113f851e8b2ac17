"""How everything is written, everywhere in the same way: numbers, budgets, tokens, methods, runs.

Tokens come from pasted text and are hostile: `plain` makes them safe to read, `visible` also safe
inside a Plotly figure, which interprets a little HTML and LaTeX. Texts inside a sentence are `quoted`.
"""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from kvviz.identity import MethodRef, option_text
from kvviz.results.causes import FOUND

if TYPE_CHECKING:
    from kvviz.results.comparison import Comparison
    from kvviz.results.points import Variant

MISSING = "–"
MOST_LINES = 12  # answers in a repr


def _half_up(x: float) -> int:
    return math.floor(x + 0.5)


def _finite(x: float | None) -> TypeGuard[float]:
    return x is not None and math.isfinite(x)


def share(x: float | None) -> str:
    """ "20%"; one decimal below 2%; never "0%" for something, nor "100%" for less than all."""
    if not _finite(x):
        return MISSING
    percent = 100 * x
    if 0 < percent < 0.05:
        return "<0.1%"
    if 99.5 <= percent < 100 - 1e-9:
        return ">99%"
    if 0 < percent < 2:
        tenths = _half_up(percent * 10) / 10
        return f"{tenths:.1f}%" if tenths < 2 else "2%"
    return f"{_half_up(percent)}%"


def share_of(part: int, whole: int) -> str:
    """A share as percent, or as counts where there are fewer than 20 cases."""
    if whole < 20:
        return f"{count(part)} of {count(whole)}"
    return share(part / whole)


def count(x: float | None) -> str:
    """ "1,024"."""
    return f"{_half_up(x):,}" if _finite(x) else MISSING


def mb(size: float | None) -> str:
    """Bytes as "9.4 MB" (1 MB = 1,000,000 bytes)."""
    return f"{size / 1e6:,.1f} MB" if _finite(size) else MISSING


def kl_number(x: float | None) -> str:
    """Two significant digits, "<0.001" below that."""
    if not _finite(x):
        return MISSING
    if x < 0.001:
        return "<0.001"
    digits = max(0, 1 - math.floor(math.log10(x)))
    if float(f"{x:.{digits}f}") >= 10 ** (2 - digits):  # 0.0999 rounds into the next decade
        digits = max(0, digits - 1)
    return f"{x:.{digits}f}" if digits else f"{int(float(f'{x:.2g}')):,}"


def kl(x: float | None) -> str:
    """ "0.21 nats/token"."""
    return f"{kl_number(x)} nats/token" if _finite(x) else MISSING


def nats(x: float | None) -> str:
    """ "7.7 nats", "-0.12 nats": two significant digits, "<0.01 nats" for what is hardly there."""
    if not _finite(x):
        return MISSING
    if abs(x) < 0.01:
        return "<0.01 nats"
    return f"{'-' if x < 0 else ''}{kl_number(abs(x))} nats"


def relative_error(x: float | None) -> str:
    """ "18%"; ">1,000%" above ten times the original."""
    if not _finite(x):
        return MISSING
    if x > 10:
        return ">1,000%"
    if 0 < x < 0.0005:
        return "<0.1%"
    if 0 < x < 0.02:
        return share(x)
    return f"{_half_up(100 * x):,}%"


def score(x: float | None) -> str:
    """Three significant digits."""
    if not _finite(x):
        return MISSING
    if x == 0:
        return "0"
    if 1e-4 <= abs(x) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(x))))
        return f"{x:,.{digits}f}"
    return f"{x:.2e}"


def shortened(words: str, limit: int) -> str:
    """On one line and at most `limit` characters, "…" where it was cut."""
    words = " ".join(words.split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


def seconds(x: float | None) -> str:
    """ "0.8 s"; minutes from 100 s on."""
    if not _finite(x):
        return MISSING
    if x < 9.95:
        return f"{x:.1f} s"
    whole = _half_up(x)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60} s"


MOST_LABEL = 30  # characters of a method's name in a figure


def label(c: Comparison, method: str) -> str:
    """What a method is called: short, unlike any other of this run's, safe inside a sentence."""
    known = labels(c).get(method)
    if known is not None:
        return known
    point = c.at(method, 1.0)  # the whole cache, and one that was found by search, are no methods of the run
    return isolated(point.label if point is not None and point.label else method)


def labels(c: Comparison) -> dict[str, str]:
    """{method: short label}. Methods of one id differ by the options that set them apart, or, where that
    would be long, by a number; all their options stand in `Comparison.labels` and in tables.
    """
    own = {method: isolated(name) for method, name in c.labels.items()}
    found = {}
    for method, name in own.items():
        alike = [m for m in own if own[m] == name]
        doubled = "allocation=" in name and " with " in name
        found[method] = name if len(alike) == 1 and len(name) <= MOST_LABEL and not doubled else ""
    for method in (m for m, name in found.items() if not name):
        found[method] = _told_apart(c, method, own)
    for number, (method, name) in enumerate(found.items(), 1):  # a stranger's labels may still be alike
        if sum(other == name for other in found.values()) > 1:
            found[method] = f"{shortened(name, MOST_LABEL - 4)} {number}"
    return found


def _told_apart(c: Comparison, method: str, own: dict[str, str]) -> str:
    """ "SnapKV (group=max)" against "SnapKV (group=mean)"; "SnapKV 2" where this would be long."""
    ref = MethodRef.parse(method)
    plain = plain_label(c, method)
    family = [MethodRef.parse(m) for m in c.methods if MethodRef.parse(m).id == ref.id]
    apart = [k for k, v in ref.options if any((k, v) not in r.options for r in family)]
    words = ", ".join(f"{name}={option_text(ref.given[name])}" for name in apart)
    made = f" + {ref.made}" if ref.made else ""
    said = f"{plain} ({isolated(words)}){made}" if words else f"{plain}{made}"
    if len(said) <= MOST_LABEL or len(family) == 1:
        return shortened(said, MOST_LABEL)
    return f"{shortened(plain, MOST_LABEL - 4)} {1 + family.index(ref)}"


def plain_label(c: Comparison, method: str) -> str:
    """What a method of the run is called without its options: "SnapKV"."""
    row = (c.settings.get("methods") or {}).get(str(MethodRef.parse(method).base)) or {}
    # older runs hold it at the start of the label alone
    return isolated(row.get("label") or c.labels[method].partition(" (")[0].partition(" with ")[0])


def isolated(words: str) -> str:
    """Text from a document or a file inside a sentence: it can neither turn the sentence round nor hide.

    Characters that steer direction become boxes; text that runs right to left is set apart.
    """
    words = "".join("\u25af" if _steers(ch) else ch for ch in words)
    if any(unicodedata.bidirectional(ch) in ("R", "AL", "AN") for ch in words):
        return f"\u2068{words}\u2069"
    return words


def _steers(ch: str) -> bool:
    return ch in "\u061c\u200e\u200f" or "\u202a" <= ch <= "\u202e" or "\u2066" <= ch <= "\u2069"


def budget_share(x: float) -> str:
    """A budget given as a share: "1%" where it is a whole percent, else as any share."""
    percent = 100 * x
    return f"{round(percent)}%" if abs(percent - round(percent)) < 1e-9 else share(x)


def budget_name(k: float | int) -> str:
    """A budget in a sentence: "10%", or "102 tokens" where it was given as entries per KV head."""
    if isinstance(k, int | np.integer) and not isinstance(k, bool):
        return "1 token" if k == 1 else f"{count(int(k))} tokens"
    return budget_share(float(k))


def answer_lines(full: Variant, variants: Sequence[Variant]) -> list[str]:
    """A line an answer, the full cache's first; what is too much for a look is counted."""
    lines = [f"  full cache: {shortened(full.text, 60)!r}"]
    for v in variants[:MOST_LINES]:
        lines.append(f"  {v.label} at {budget_name(v.budget)}: {shortened(v.text, 60)!r}")
    if len(variants) > MOST_LINES:
        lines.append(f"  and {len(variants) - MOST_LINES} more answers: see to_frame()")
    return lines


def place(layer: int | None, head: int | None = None, token: int | None = None) -> str:
    """ "layer 7, KV head 1, token 412", counted from 0 as in Python."""
    parts = []
    if layer is not None:
        parts.append(f"layer {layer}")
    if head is not None:
        parts.append(f"KV head {head}")
    if token is not None:
        parts.append(f"token {token}")
    return ", ".join(parts)


def finite_or_none(value: object) -> object:
    """NaN and infinities as None: they have no place in JSON, and an empty cell says "missing"."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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
    """ "205 tokens per KV head", or average and range where heads keep different numbers; where layers slide,
    beside what the full cache holds."""
    point = c.at(method, k)
    if point is None:
        return f"{count(c.share(k) * c.n)} tokens per KV head"
    counts = point.kept.counts()
    low, high = int(counts.min()), int(counts.max())
    held = c.whole.kept.counts()
    of = "" if held.min() == c.n else f", of {count(held.mean())} that the full cache holds"
    if low == high:
        return f"{count(low)} {'token' if low == 1 else 'tokens'} per KV head{of}"
    return f"{count(counts.mean())} on average ({count(low)} to {count(high)}) tokens per KV head{of}"


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
    held = c.whole.kept.counts()
    return c.bytes_full * float(point.kept.counts().sum()) / float(held.sum())


def budget_triple(c: Comparison, method: str, k: float | int) -> str:
    """ "20% kept · 205 tokens per KV head · 9.4 of 47.2 MB after reading, +46 kB a token"."""
    size = kept_bytes(c, method, k)
    amount = MISSING if size is None else f"{size / 1e6:,.1f}"
    own = c.would_do.budget if method == FOUND and c.would_do is not None else c.share(k)
    kept = f"{budget_share(own)} kept · {entries_words(c, method, k)}"
    return f"{kept} · {amount} of {full_line(c)}"


def memory_words(c: Comparison, method: str, k: float | int) -> str:
    """Where a cache's bytes go: its entries, and what is allocated beside them; how they were counted."""
    if method == "full":
        return f"{mb(c.bytes_full)} as allocated for {count(c.n)} tokens."
    size, point = kept_bytes(c, method, k), c.at(method, k)
    if size is None or point is None:
        return ""
    variant = c.variant(method, k)
    entries = c.bytes_full * float(point.kept.counts().sum()) / float(c.whole.kept.counts().sum())
    if variant is None or not variant.bytes:
        return f"{mb(size)} by count of entries: at this budget no cache was made."
    rest = mb(max(0.0, size - entries))
    said = f"{mb(size)} as allocated: {mb(entries)} of entries, and {rest} of blocks that are not full"
    return f"{said} and of their indices."


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
