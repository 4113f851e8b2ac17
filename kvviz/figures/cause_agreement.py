"""Does each method keep what matters? Kept share of a passage against what the answer loses without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.figures.kit import axis, build, message_figure
from kvviz.figures.palette import role
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDE = (
    "Each dot is a method. Right: it keeps more of the passages without which the whole cache loses the "
    "answer. A line is its 95% interval; one that crosses 0 says nothing."
)
TOO_FEW = "Methods are held against passages of the document: at least four, taken out one by one."
NAMES = {"recency": "newest kept", "random": "random order"}


@dataclass(frozen=True)
class CauseAgreementTable(Table):
    """One row a method, then "recency" and "random": rank correlation with a 95 % interval."""

    near: ClassVar[str | None] = None

    budget_name: str
    name: list[str]
    role: list[str]
    rho: list[float]
    low: list[float]
    high: list[float]
    passages: int

    def columns(self):
        """See `Table.columns`."""
        return {"method": self.name, "rank correlation": self.rho, "low": self.low, "high": self.high}


def cause_agreement_table(c: Comparison, a: str, b: str | None, k: float | int) -> CauseAgreementTable:
    """The methods of the run at this budget, best first; what is known of answers at other budgets is
    left out."""
    found = said.need_causes(c, a, k)
    names = {f"{v.method}@{v.budget}": v.method for v in c.variants if c.share(v.budget) == c.share(k)}
    rows = [r for r in found.agreement if r.name in names or r.name in NAMES]
    methods = sorted((r for r in rows if r.name in names), key=lambda r: -np.nan_to_num(r.rho, nan=-2))
    rows = [*methods, *(r for r in rows if r.name in NAMES)]
    roles = {a: "a", b: "b"}
    return CauseAgreementTable(
        budget_name=text.budget_name(k),
        name=[NAMES.get(r.name) or text.label(c, names[r.name]) for r in rows],
        role=["muted" if r.name in NAMES else roles.get(names[r.name], "text") for r in rows],
        rho=[r.rho for r in rows],
        low=[r.low for r in rows],
        high=[r.high for r in rows],
        passages=sum(e.piece.kind == "document" for e in found.of("taken_out", "passage")),
    )


def cause_agreement_figure(table: CauseAgreementTable) -> go.Figure:
    """A dot with its interval each, best at the top."""
    title = f"Does each method keep what matters? {table.budget_name} kept"
    if not table.name:
        return message_figure(title, GUIDE, TOO_FEW)
    rows = len(table.name)
    traces = [_interval(table, i) for i in range(rows)]
    best = f"{table.name[0]} {table.rho[0]:.2f} ({table.low[0]:.2f} to {table.high[0]:.2f})"
    rest = ", ".join(f"{n} {r:.2f}" for n, r in zip(table.name[1:], table.rho[1:]) if np.isfinite(r))
    line = {"color": role("muted"), "width": 1, "dash": "dot"}
    return build(
        traces,
        title=title,
        guide=GUIDE,
        summary=f"Rank correlation over {text.count(table.passages)} passages: {best}; {rest}.",
        height=max(220, 26 * rows + 110),
        shapes=[{"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "line": line}],
        xaxis=axis("rank correlation of kept share with nats lost", range=[-1.05, 1.05]),
        yaxis=axis(
            "method", range=[rows - 0.5, -0.5], showgrid=False, tickvals=list(range(rows)),
            ticktext=[text.visible(name, 30) for name in table.name],
        ),
    )  # fmt: skip


def _interval(table: CauseAgreementTable, i: int) -> dict[str, Any]:
    rho, low, high = table.rho[i], table.low[i], table.high[i]
    known = np.isfinite([rho, low, high]).all()
    words = f"{table.name[i]}: {rho:.2f}, 95% interval {low:.2f} to {high:.2f}" if known else (
        f"{table.name[i]}: keeps as much of every passage, so no rank correlation"
    )  # fmt: skip
    bar = {"type": "data", "symmetric": False, "array": [high - rho], "arrayminus": [rho - low],
           "color": role(table.role[i]), "thickness": 2, "width": 4}  # fmt: skip
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [rho if known else 0],
        "y": [i],
        "customdata": [words],
        "hoverinfo": "none",
        "showlegend": False,
        "name": text.visible(table.name[i], 30),
        "marker": {"size": 10, "symbol": _SYMBOLS.get(table.role[i], "circle") + ("" if known else "-open"),
                   "color": role(table.role[i])},
        **({"error_x": bar} if known else {}),
    }  # fmt: skip


_SYMBOLS = {"a": "triangle-up", "b": "triangle-down", "muted": "square"}


