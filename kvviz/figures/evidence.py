"""Figures over a sweep: rows like those of FIGURES, of a table of many items in place of one comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from kvviz.figures import evidence_budget, evidence_items, evidence_needles, evidence_pairs, evidence_slices
from kvviz.figures.kit import captioned
from kvviz.results.evidence import Pick, protocol_words
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table


@dataclass(frozen=True)
class SweepFigure:
    """One figure over a sweep.

    id     the name by which the page asks for it.
    table  (sweep, pick) -> the data; raises InputError with a sentence where there is none.
    draw   table -> the picture.
    """

    id: str
    table: Callable[[Sweep, Pick], Table]
    draw: Callable[[Any], go.Figure]


EVIDENCE = (
    SweepFigure(
        "evidence_budget", evidence_budget.evidence_budget_table, evidence_budget.evidence_budget_figure
    ),
    SweepFigure("evidence_pairs", evidence_pairs.evidence_pairs_table, evidence_pairs.evidence_pairs_figure),
    SweepFigure("evidence_items", evidence_items.evidence_items_table, evidence_items.evidence_items_figure),
    SweepFigure(
        "evidence_slices", evidence_slices.evidence_slices_table, evidence_slices.evidence_slices_figure
    ),
    SweepFigure(
        "evidence_needles", evidence_needles.evidence_needles_table, evidence_needles.evidence_needles_figure
    ),
)


def figure_of_sweep(row: SweepFigure, sweep: Sweep, pick: Pick, table: Table) -> go.Figure:
    """The picture of a row, with the line that an exported picture carries below its title."""
    return captioned(row.draw(table), f"{sweep.title} · {pick.model} · {protocol_words(pick.protocol)}")
