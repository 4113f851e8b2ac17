"""The cache that would do: how much of it each method holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDE = (
    "Each bar is a method at this budget: the share of the entries of the cache that would do which it "
    "holds. A method may hold few of them and answer all the same: other sets do as well."
)


@dataclass(frozen=True)
class CauseHeldTable(Table):
    """One row a method: the share of the found entries that it holds."""

    near: ClassVar[str | None] = None

    budget_name: str
    entries: int
    label: list[str]
    role: list[str]
    share: list[float]

    def columns(self):
        """See `Table.columns`."""
        return {"method": self.label, "share held": self.share}


def cause_held_table(c: Comparison, a: str, b: str | None, k: float | int) -> CauseHeldTable:
    """Every method of the run at this budget, most first."""
    if c.would_do is None:
        raise InputError("No smallest cache that gives the answer was searched in this run.")
    shares = said.held_shares(c, c.would_do.mask, k)
    order = sorted(shares, key=lambda m: -shares[m])
    roles = {a: "a", b: "b"}
    return CauseHeldTable(
        budget_name=text.budget_name(k),
        entries=c.would_do.entries,
        label=[text.label(c, m) for m in order],
        role=[roles.get(m, "muted") for m in order],
        share=[shares[m] for m in order],
    )


def cause_held_figure(table: CauseHeldTable) -> go.Figure:
    """Bars across, A and B in their colours."""
    rows = len(table.label)
    bars: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": [100 * s for s in table.share],
        "y": list(range(rows)),
        "customdata": [f"{n}: {text.share(s)} of them" for n, s in zip(table.label, table.share)],
        "text": [text.share(s) for s in table.share],
        "textposition": "auto",
        "hoverinfo": "none",
        "name": "held",
        "marker": {"color": [role(r) for r in table.role]},
    }
    said_ = ", ".join(f"{n} {text.share(s)}" for n, s in zip(table.label, table.share))
    return build(
        [bars],
        title=f"Who holds the cache that would do · {table.budget_name} kept",
        guide=GUIDE,
        summary=f"Of the {text.count(table.entries)} entries found: {said_}.",
        height=max(200, 26 * rows + 110),
        bargap=0.3,
        xaxis=axis(f"% of its {text.count(table.entries)} entries held", range=[0, 104]),
        yaxis=axis(
            "method", range=[rows - 0.5, -0.5], showgrid=False, tickvals=list(range(rows)),
            ticktext=[text.visible(name, 30) for name in table.label],
        ),
    )  # fmt: skip
