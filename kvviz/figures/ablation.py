"""Formula or setting? Every method with every window and pooling, as a grid of verdicts and KL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build, colour_bar, heatmap, patches
from kvviz.figures.palette import AMOUNT_STEPS, role
from kvviz.identity import MethodRef
from kvviz.results import words as text
from kvviz.results.ablation import AblationRow
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDE = (
    "A row is a formula, a column a setting. Where a row looks alike, the setting does not matter; where a "
    "column does, the formula does not. Stronger: further from the full cache."
)
POOLS = {"avg": "average", "max": "maximum"}
STEPS = AMOUNT_STEPS // 2
COLOURS = [*(f"amount-{2 * i}" for i in range(STEPS + 1)), "unscored"]
SIGNS = {"right": "✓", "wrong": "✗", "": ""}
FLOOR = 0.001  # nats: below it all KL is alike


@dataclass(frozen=True)
class AblationTable(Table):
    """One row an answer at the budget nearest to the one shown."""

    near: ClassVar[str | None] = None

    budget_name: str
    methods: list[str]
    labels: list[str]
    settings: list[tuple[int, str, int]]
    cells: dict[tuple[str, tuple[int, str, int]], AblationRow]
    spread: str

    def columns(self):
        """See `Table.columns`."""
        rows = list(self.cells.values())
        return {
            "method": [self.labels[self.methods.index(r.method)] for r in rows],
            "window": [r.window for r in rows],
            "pooling": [pooling_words(r.pool_kind, r.pool) for r in rows],
            "expected answer": [r.verdict for r in rows],
            "mean KL": [r.mean_kl for r in rows],
            "answer": [text.shortened(r.text, 80) for r in rows],
        }


def pooling_words(kind: str, size: int) -> str:
    """ "average over 7", "no pooling"."""
    return f"{POOLS.get(kind, kind)} over {size}" if kind in POOLS else "no pooling"


def ablation_table(c: Comparison, k: float | int) -> AblationTable:
    """The grid at the budget nearest to k."""
    if c.ablation is None or not c.ablation.rows:
        raise InputError("This run was made without the grid of windows and poolings.")
    budgets = dict.fromkeys(r.budget for r in c.ablation.rows)
    near = min(budgets, key=lambda b: abs(math.log(c.share(b)) - math.log(c.share(k))))
    rows = [r for r in c.ablation.rows if r.budget == near]
    methods = list(dict.fromkeys(r.method for r in rows))
    spread = c.ablation.spread()
    said = (
        f"Mean KL moves by {text.kl_number(spread['method'])} with the formula, by "
        f"{text.kl_number(spread['window'])} with the window and by {text.kl_number(spread['pooling'])} with "
        "the pooling alone (nats/token)"
    )
    return AblationTable(
        text.budget_name(near),
        methods,
        [_label(c, m) for m in methods],
        sorted({(r.window, r.pool_kind, r.pool) for r in rows}, key=lambda s: (s[1], s[2], s[0])),
        {(r.method, (r.window, r.pool_kind, r.pool)): r for r in rows},
        said,
    )


def _label(c: Comparison, method: str) -> str:
    """A method of the grid may stand in the run only with options, or not at all."""
    own = [m for m in c.methods if MethodRef.parse(m).id == method]
    return text.shortened(text.plain_label(c, own[0]), 24) if own else method


def ablation_figure(table: AblationTable) -> go.Figure:
    """Formulas down, window x pooling across; a sign for the verdict in each cell."""
    shape = len(table.methods), len(table.settings)
    kl = np.full(shape, np.nan)
    words = [[""] * shape[1] for _ in range(shape[0])]
    signs = [[""] * shape[1] for _ in range(shape[0])]
    for (method, setting), row in table.cells.items():
        i, j = table.methods.index(method), table.settings.index(setting)
        kl[i, j] = np.nan if row.mean_kl is None else row.mean_kl
        said = {"right": "right", "wrong": "wrong", "": "no verdict"}[row.verdict]
        words[i][j] = (
            f"{table.labels[i]}, window {row.window}, {pooling_words(row.pool_kind, row.pool)}: {said}, "
            f"KL {text.kl(row.mean_kl)}, {text.quoted(row.text, 60)}"
        )
        signs[i][j] = SIGNS[row.verdict]
    known = np.isfinite(kl)
    shown = np.maximum(np.where(known, kl, FLOOR), FLOOR)
    top = max(float(shown.max()), FLOOR * 10)
    level = np.ceil(STEPS * np.log(shown / FLOOR) / math.log(top / FLOOR)).clip(0, STEPS)
    code = np.where(known, level, STEPS + 1).astype(np.uint8)
    rows, columns = np.indices(shape)
    text_colours = ["text" if c <= STEPS // 2 else "page" for c in code.ravel().tolist()]
    marks = {
        "type": "scatter",
        "mode": "text",
        "x": columns.ravel(),
        "y": rows.ravel(),
        "text": [s for row in signs for s in row],
        "textfont": {"size": 15, "color": [role(name) for name in text_colours]},
        "hoverinfo": "skip",
        "showlegend": False,
        "name": "verdict",
    }
    middle = math.sqrt(FLOOR * top)
    ticks = {0: f"<{FLOOR}", STEPS // 2: text.kl_number(middle), STEPS: text.kl_number(top)}
    right = sum(r.verdict == "right" for r in table.cells.values())
    judged = sum(bool(r.verdict) for r in table.cells.values())
    return build(
        [
            heatmap(code, COLOURS, x0=0, dx=1, customdata=words),
            colour_bar(COLOURS[: STEPS + 1], ticks, "mean KL, nats/token (log scale)"),
            marks,
            *patches(~known, 0, 1, "no value", "unscored", "unscored-line", "."),
        ],
        title=f"Formula or setting? {table.budget_name} kept",
        guide=GUIDE,
        summary=f"{text.count(len(table.cells))} answers, {right} of {judged} right. {table.spread}.",
        height=max(260, 34 * shape[0] + 170),
        meta={"spread": table.spread, "scale": "mean KL, nats/token (log scale)"},
        xaxis=axis(
            "window and pooling", showgrid=False, tickvals=list(range(shape[1])),
            ticktext=[f"{w}<br>{_short(kind, size)}" for w, kind, size in table.settings],
            range=[-0.5, shape[1] - 0.5],
        ),
        yaxis=axis(
            "method", showgrid=False, range=[shape[0] - 0.5, -0.5], tickvals=list(range(shape[0])),
            ticktext=[text.visible(name, 24) for name in table.labels],
        ),
    )  # fmt: skip


def _short(kind: str, size: int) -> str:
    return f"{'avg' if kind == 'avg' else kind} {size}" if kind in POOLS else "none"
