"""Two runs on one text: what each keeps of every passage, over the characters of the first run's text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kvviz.figures import cells as codes
from kvviz.figures.kit import axis, build, heatmap
from kvviz.results import words as text
from kvviz.results.beside import Aligned, aligned, kept_shares
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDE = (
    "Each row is a method in one of the two runs, each block a passage that both texts have, at its place in "
    "the first one. Solid: all of it is kept. The palest shade: nothing."
)
NONE = codes.UNSCORED  # a stretch that the second text has not


@dataclass(frozen=True)
class BesideTable(Table):
    """share: {row name: float [P]}, NaN where a run has no token of a passage; `found`: the passages."""

    found: Aligned
    grain: str
    passage: list[str]
    share: dict[str, np.ndarray]

    def columns(self) -> dict[str, Sequence[Any] | np.ndarray]:
        """See `Table.columns`."""
        return {
            "first character": self.found.characters[:, 0],
            "text": self.passage,
            **self.share,
        }


def beside_table(
    one: Comparison, two: Comparison, rows: list[tuple[str, str, float | int, str]], grain: str
) -> BesideTable:
    """rows  (which run, "1" or "2"; method; budget; name)."""
    found = aligned(one.prompt, two.prompt, grain)
    shares = {
        name: kept_shares(*((one, m, k, found.one) if run == "1" else (two, m, k, found.two)))
        for run, m, k, name in rows
    }
    document = one.prompt.document
    said = [text.shortened(document[s:e], 160) for s, e in found.characters.tolist()]
    return BesideTable(found, grain, said, shares)


def beside_figure(table: BesideTable, columns: int) -> go.Figure:
    """Bands over the text's characters; a column shows the passage at its middle."""
    total = max(1, table.found.total)
    count = max(1, min(columns, total))
    size = total / count
    middle = (np.arange(count) + 0.5) * size
    starts, ends = table.found.characters.T
    at = np.searchsorted(starts, middle, side="right") - 1
    inside = (at >= 0) & (middle < ends[np.maximum(at, 0)] + 1)  # the space behind a passage is its own
    at = np.where(inside, at, -1)
    code = np.full((len(table.share), count), NONE, dtype=np.uint8)
    for row, share in zip(code, table.share.values()):
        known = inside & np.isfinite(share[np.maximum(at, 0)])
        row[known] = codes.share_codes(share[at[known]], square_root=True)
    names = list(table.share)
    return build(
        [
            heatmap(code, codes.COLOURS, x0=size / 2, dx=size),
            *codes.share_bar("share kept (square-root scale)", len=1),
        ],
        title="What each run keeps of the text",
        guide=GUIDE,
        summary=f"{len(names)} rows over {text.count(total)} characters: {', '.join(names)}.",
        chip=f"by {table.grain}",
        height=150 + 34 * len(names),
        meta={"columns": at.tolist(), "rows": names, "scale": "share kept (square-root scale)"},
        xaxis=axis("character of the text", range=[0, total], showgrid=False),
        yaxis=axis("", range=[len(names) - 0.5, -0.5], showgrid=False, tickvals=list(range(len(names))),
                   ticktext=[text.shortened(name, 34) for name in names]),
    )  # fmt: skip
