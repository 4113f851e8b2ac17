"""Every method's map of layers by tokens, stacked on one token axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import cells as codes
from kvviz.figures.figure import MOST_COLUMNS
from kvviz.figures.kept import TITLE, KeptTable, kept_table
from kvviz.figures.kit import axis
from kvviz.figures.token_map import centre, token_map
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

PIXELS = 3  # a layer


@dataclass(frozen=True)
class AllMethodsTable(Table):
    """The same map for every method, stacked; one KeptTable a method."""

    near: ClassVar[str | None] = "first token"

    tables: list[KeptTable]
    budget_name: str

    def columns(self):
        """See `Table.columns`."""
        parts = [table.columns() for table in self.tables]
        lengths = [len(part["layer"]) for part in parts]
        names = [t.label for t, length in zip(self.tables, lengths) for _ in range(length)]
        joined = {"method": names}
        for name, first in parts[0].items():
            if isinstance(first, list):
                joined[name] = [value for part in parts for value in part[name]]
            else:
                joined[name] = np.concatenate([part[name] for part in parts])
        return joined

    @property
    def layers(self) -> int:
        """Rows of one band."""
        return len(self.tables[0].kept)

    @property
    def gap(self) -> int:
        """Empty rows between two bands."""
        return max(1, self.layers // 10)

    def stacked(self, bands: list[np.ndarray], fill: int) -> np.ndarray:
        """One array [rows, columns] of all bands, with `fill` between them."""
        between = np.full((self.gap, bands[0].shape[1]), fill, dtype=bands[0].dtype)
        return np.concatenate([part for band in bands for part in (between, band)][1:])

    @property
    def rows_in_map(self) -> int:
        """Rows of all bands and gaps."""
        return (self.layers + self.gap) * len(self.tables) - self.gap


def all_methods_table(
    c: Comparison,
    k: float | int,
    x0: int = 0,
    x1: int | None = None,
    columns: int = MOST_COLUMNS,
    rule: str = "mean",
    grain: str = "token",
) -> AllMethodsTable:
    """Maps of all methods whose kept entries are known at k, in the order they were asked for."""
    stored = [m for m in c.methods if c.at(m, k) is not None]
    if not stored:
        raise InputError(f"No method's kept tokens were stored at {text.budget_name(k)}.")
    tables = [kept_table(c, m, k, x0, x1, columns, rule, grain) for m in stored]
    return AllMethodsTable(tables, text.budget_name(k))


def all_methods_figure(table: AllMethodsTable) -> go.Figure:
    """Methods stacked at 3 pixels a layer, same token axis."""
    first, layers = table.tables[0], table.layers
    band = layers + table.gap
    labels = [one.label for one in table.tables]
    real = np.concatenate([one.code for one in table.tables])
    states = codes.state_traces(real, *centre(first.bins))
    names = [f"{one.label}, layer {layer}" for one in table.tables for layer in range(layers)]
    rows = table.rows_in_map
    counts = [one.counts(kept=one.kept, protected=one.protected) for one in table.tables]
    return token_map(
        first,
        table.stacked([one.code for one in table.tables], codes.UNSCORED),
        codes.COLOURS,
        {name: table.stacked([one[name] for one in counts], 0) for name in counts[0]},
        heads=first.n_heads,
        traces=[
            *codes.share_bar(first.scale, first.root),
            *(t for t in states if "fillpattern" not in t),
        ],
        rows=axis(
            "method, layers from top",
            range=[rows - 0.5, -0.5],
            showgrid=False,
            tickvals=[index * band + (layers - 1) / 2 for index in range(len(labels))],
            ticktext=labels,
        ),
        scale=first.scale,
        title=f"{TITLE}, every method at {table.budget_name}",
        guide="One band a method, layer 0 on top of each. A column that is solid in one band and "
        "evicted in another: the methods disagree about that place.",
        summary=f"{len(labels)} methods at {table.budget_name}: {', '.join(labels)}.",
        height=PIXELS * rows + 170,
        meta={
            "methods": [one.method for one in table.tables],
            "layers": layers,
            "gap": table.gap,
            "rows": [name for m in range(len(labels)) for name in
                     (*names[m * layers : (m + 1) * layers], *[""] * table.gap)][:rows],
        },
    )  # fmt: skip
