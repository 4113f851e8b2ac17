"""The smallest rescue over the text: its entries on what their heads kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.figure import MOST_COLUMNS
from kvviz.figures.kit import axis, legend_entry, panel
from kvviz.figures.palette import role
from kvviz.figures.strip import strip_spans
from kvviz.figures.token_map import CellTable, centre, strip_of, token_map
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.kept import bins, pool_sum

MOST_ROWS = 24
GUIDE = (
    "Each row is a head of the rescue, shaded by what it kept. A diamond is an entry that was put back; "
    "filled: the answer is lost again without it."
)


@dataclass(frozen=True)
class CauseRescueTable(CellTable):
    """Heads of the rescue x columns; `entries` are (row, token, necessary) of those in sight."""

    label: str
    budget_name: str
    heads: list[tuple[int, int]]
    kept: np.ndarray
    protected: np.ndarray
    code: np.ndarray
    entries: list[tuple[int, int, bool]]
    left_out: int
    sentence: str

    def columns(self):
        """See `Table.columns`: one row an entry that was put back."""
        places = [self.heads[row] for row, _, _ in self.entries]
        return {
            "layer": [layer for layer, _ in places],
            "KV head": [head for _, head in places],
            "first token": [token for _, token, _ in self.entries],
            "text": [text.plain(self.tokens[token]) for _, token, _ in self.entries],
            "necessary": [needed for _, _, needed in self.entries],
        }


def cause_rescue_table(
    c: Comparison,
    method: str,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = MOST_COLUMNS,
) -> CauseRescueTable:
    """The rescue's heads, those with most of its entries first where they are many."""
    rescue = said.need_causes(c, method, k).rescue
    if rescue is None or not rescue.entries:
        raise InputError(f"No set of entries was searched that returns {text.label(c, method)}'s answer.")
    b = bins(c.n, x0, x1, columns)
    count: dict[tuple[int, int], int] = {}
    for layer, head, _ in rescue.entries:
        count[layer, head] = count.get((layer, head), 0) + 1
    heads = sorted(sorted(count, key=lambda h: -count[h])[:MOST_ROWS])
    held = c.need(method, k).kept
    mask = np.stack([held.layer(layer)[head] for layer, head in heads])[:, b.x0 : b.x1]
    ruled = np.stack([held.layer_protected(layer)[head] for layer, head in heads])[:, b.x0 : b.x1]
    kept, protected = pool_sum(np.ascontiguousarray(mask), b), pool_sum(np.ascontiguousarray(ruled), b)
    none = np.zeros_like(kept)
    share = kept / b.widths[None]
    rows = {place: row for row, place in enumerate(heads)}
    entries = [
        (rows[layer, head], token, needed)
        for (layer, head, token), needed in zip(rescue.entries, rescue.necessary)
        if (layer, head) in rows and b.x0 <= token < b.x1
    ]
    return CauseRescueTable(
        bins=b,
        tokens=c.prompt.tokens,
        spans=strip_spans(c, method, k),
        label=text.label(c, method),
        budget_name=text.budget_name(k),
        heads=heads,
        kept=kept,
        protected=protected,
        code=codes.cell_codes(share, b.widths[None], kept, protected, none, none, b.size > 1),
        entries=entries,
        left_out=len(count) - len(heads),
        sentence=said.rescue_sentence(c, said.need_causes(c, method, k)),
    )


def cause_rescue_figure(table: CauseRescueTable) -> go.Figure:
    """A row a head, its kept tokens, the entries that were put back on top."""
    names = [f"{layer}/{head}" for layer, head in table.heads]
    scale = "share of the cell's tokens (square-root scale)" if table.bins.size > 1 else ""
    traces = [*codes.share_bar(scale), *codes.state_traces(table.code, *centre(table.bins))]
    signs = ((True, "diamond", "put back, necessary"), (False, "diamond-open", "put back"))
    for needed, symbol, name in signs:
        at = [(row, token) for row, token, own in table.entries if own is needed]
        if at:
            traces += [_entries(at, symbol), _key(symbol, name)]
    more = f" and {text.count(table.left_out)} more heads" if table.left_out else ""
    rows = len(names)
    return token_map(
        table,
        table.code,
        codes.COLOURS,
        {"kept": table.kept, "protected": table.protected},
        heads=1,
        traces=traces,
        strip=strip_of(table, bool((table.code == codes.PROTECTED).any())),
        rows=axis(
            "layer / KV head", range=[rows - 0.5, -0.5], showgrid=False, tickvals=list(range(rows)),
            ticktext=names,
        ),
        scale=scale,
        title=f"The entries that return the answer · {panel('', table.label, table.budget_name)}",
        guide=GUIDE,
        summary=f"{table.sentence} In {text.span_names(names[:6])}{more}.",
        height=max(220, 22 * rows + 190),
        meta={"rows": [text.place(layer, head) for layer, head in table.heads],
              "heads": [list(place) for place in table.heads]},
    )  # fmt: skip


def _marker(symbol: str) -> dict[str, Any]:
    return {"symbol": symbol, "size": 11, "color": role("mark"), "line": {"width": 2, "color": role("mark")}}


def _entries(at: list[tuple[int, int]], symbol: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [token for _, token in at],
        "y": [row for row, _ in at],
        "customdata": [[row, token] for row, token in at],
        "hoverinfo": "none",
        "showlegend": False,
        "name": "put back",
        "marker": _marker(symbol),
    }


def _key(symbol: str, name: str) -> dict[str, Any]:
    return {**legend_entry(name, "mark", symbol, "mark"), "marker": _marker(symbol)}
