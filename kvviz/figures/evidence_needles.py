"""The needle grid: is what was hidden still found, at every depth of every length?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build, heatmap, legend_entry, patches
from kvviz.figures.palette import role
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.comparison import FULL
from kvviz.results.evidence import Pick
from kvviz.results.sweeps import Sweep
from kvviz.results.table import Table

if TYPE_CHECKING:
    import pandas as pd

GUIDE = (
    "A column is a place in a text of that length, a row a method at a budget. Solid: found. Pale: lost. "
    "Dots: the full cache misses it too. A click opens that run in the lenses."
)
STEPS = 4  # shades between lost and found, where a cell stands for several texts
COLOURS = [*(f"amount-{3 * i}" for i in range(STEPS + 1)), "unscored"]
MOST_COLUMNS = 60
MOST_LEVEL = 11  # columns whose depths fit beside each other on a phone; more are written upwards


@dataclass(frozen=True)
class Cell:
    """Needles of one row and place. `full` counts those that the full cache finds, `found` those of them that
    are found here too; items says which they are."""

    row: tuple[str, str]  # method, budget name
    place: tuple[float, float]  # length, depth
    found: int
    full: int
    items: list[str]
    kl: float
    reached: tuple[float, float] | None = None  # where what is hidden stands, between two sentences

    @property
    def state(self) -> str:
        """In a word, of the texts in which the full cache finds it."""
        if not self.full:
            return "not found" if self.row[0] == FULL else "the full cache misses it too"
        if self.row[0] == FULL:
            return "found" if self.full == len(self.items) else "mixed"
        return "found" if self.found == self.full else "mixed" if self.found else "not found"


@dataclass(frozen=True)
class EvidenceNeedlesTable(Table):
    """One row a method, budget, length and depth."""

    near: ClassVar[str | None] = None

    names: dict[str, str]
    rows_: list[tuple[str, str]]
    places: list[tuple[float, float]]
    cells: list[Cell]

    def columns(self):
        """See `Table.columns`."""
        return {
            "method": [self.names.get(c.row[0], "Full cache") for c in self.cells],
            "budget": [c.row[1] for c in self.cells],
            "length, tokens": [c.place[0] for c in self.cells],
            "depth": [c.place[1] for c in self.cells],
            "depth reached": [None if c.reached is None else sum(c.reached) / 2 for c in self.cells],
            "state": [c.state for c in self.cells],
            "found": [c.found for c in self.cells],
            "of, found by the full cache": [c.full for c in self.cells],
            "items": [len(c.items) for c in self.cells],
            "mean KL": [c.kl for c in self.cells],
        }


def evidence_needles_table(sweep: Sweep, pick: Pick) -> EvidenceNeedlesTable:
    """Every item that says at which depth of which length something is hidden."""
    rows = sweep.of(pick.model, pick.protocol)
    rows = rows[rows.depth.notna() & rows.right.notna()]
    if rows.empty:
        raise InputError("The items of this table do not say at which depth something is hidden.")
    rows = rows.assign(asked=rows.length.fillna(rows.n))
    order = [FULL, *said.methods(sweep)]
    keys = rows[["method", "budget_name", "share"]].drop_duplicates(["method", "budget_name"])
    ranked = sorted(keys.itertuples(index=False), key=lambda k: (order.index(k[0]), -k[2]))
    places = sorted({*zip(rows.asked, rows.depth), *_planned(sweep)})
    if len(places) > MOST_COLUMNS:
        raise InputError(f"{text.count(len(places))} places are too many for one grid; the table holds them.")
    cells = [_cell(own, sweep) for _, own in rows.groupby(["method", "budget_name", "asked", "depth"])]
    found = [(str(m), str(b)) for m, b, _ in ranked]
    return EvidenceNeedlesTable(said.methods(sweep), found, places, cells)


def _planned(sweep: Sweep) -> list[tuple[float, float]]:
    """Places of a grid that is measured by and by."""
    if not sweep.manifest.get("grid"):
        return []
    asked = [(_number(item, "asked_tokens"), _number(item, "depth")) for item in sweep.items.values()]
    return [(n, d) for n, d in asked if n is not None and d is not None]


def _number(item: dict[str, Any], name: str) -> float | None:
    value = item.get(name)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None


def _reached(items: list[str], sweep: Sweep) -> tuple[float, float] | None:
    known = [x for item in items if (x := _number(sweep.items.get(item, {}), "reached")) is not None]
    return (min(known), max(known)) if known else None


def _cell(own: pd.DataFrame, sweep: Sweep) -> Cell:
    first, full = own.iloc[0], own.full_right.eq(True)
    found = int((own.right.eq(True) & full).sum())
    row, place = (str(first.method), str(first.budget_name)), (float(first.asked), float(first.depth))
    items = list(map(str, own["item"]))
    return Cell(row, place, found, int(full.sum()), items, float(own.kl.mean()), _reached(items, sweep))


def evidence_needles_figure(table: EvidenceNeedlesTable) -> go.Figure:
    """Rows by method and budget, the full cache on top; columns by length, then depth."""
    shape = len(table.rows_), len(table.places)
    code, known = np.full(shape, STEPS + 1, np.uint8), np.zeros(shape, bool)
    words: list[list[Any]] = [[["not measured yet", "", "", ""]] * shape[1] for _ in range(shape[0])]
    signs: list[dict[str, Any]] = []
    for cell in table.cells:
        i, j = table.rows_.index(cell.row), table.places.index(cell.place)
        words[i][j] = [_words(table, cell), cell.items[0], *cell.row]
        if cell.full or cell.row[0] == FULL:
            share = cell.found / cell.full if cell.full else 0.0
            code[i, j], known[i, j] = round(share * STEPS), True
            signs.append({"x": j, "y": i, "text": _sign(cell), "dark": share > 0.5})
    moot = np.zeros(shape, bool)
    for cell in table.cells:
        i, j = table.rows_.index(cell.row), table.places.index(cell.place)
        moot[i, j] = not known[i, j]
    lengths = [length for length, _ in table.places]
    borders = [j - 0.5 for j in range(1, shape[1]) if lengths[j] != lengths[j - 1]]
    groups = [i - 0.5 for i in range(1, shape[0]) if table.rows_[i][0] != table.rows_[i - 1][0]]
    rule = {"type": "line", "line": {"color": role("muted"), "width": 1}}
    shapes = [{**rule, "x0": x, "x1": x, "y0": -0.5, "y1": shape[0] - 0.5} for x in borders]
    shapes += [{**rule, "y0": y, "y1": y, "x0": -0.5, "x1": shape[1] - 0.5} for y in groups]
    marks = {
        "type": "scatter", "mode": "text", "x": [s["x"] for s in signs], "y": [s["y"] for s in signs],
        "text": [s["text"] for s in signs], "hoverinfo": "skip", "showlegend": False, "name": "found",
        "textfont": {"size": 13, "color": [role("page" if s["dark"] else "text") for s in signs]},
    }  # fmt: skip
    measured = sum(len(c.items) for c in table.cells if c.row[0] == FULL)
    return build(
        [
            heatmap(code, COLOURS, x0=0, dx=1, customdata=words, xgap=2, ygap=2),
            marks,
            legend_entry("found", COLOURS[STEPS]),
            legend_entry("lost", COLOURS[0]),
            *patches(moot, 0, 1, "the full cache misses it", "unscored", "unscored-line", "."),
        ],
        title="Needle grid: what is hidden, found again",
        guide=GUIDE,
        summary=_summary(table),
        chip=f"n = {text.count(measured)} {'text' if measured == 1 else 'texts'}",
        height=max(240, 30 * shape[0] + 150),
        shapes=shapes,
        xaxis=axis(
            f"depth of a needle, {'below' if shape[1] <= MOST_LEVEL else 'before'} it the text's length",
            showgrid=False,
            range=[-0.5, shape[1] - 0.5], tickvals=list(range(shape[1])),
            ticktext=[_place(table, j) for j in range(shape[1])],
            tickangle=0 if shape[1] <= MOST_LEVEL else -90,
        ),
        yaxis=axis(
            "", showgrid=False, range=[shape[0] - 0.5, -0.5], tickvals=list(range(shape[0])),
            ticktext=[_row(table, row) for row in table.rows_],
        ),
    )  # fmt: skip


def _sign(cell: Cell) -> str:
    if len(cell.items) == 1:
        return "✓" if cell.found else "✗"
    return f"{cell.found}/{cell.full}" if cell.full else "0"


def _place(table: EvidenceNeedlesTable, j: int) -> str:
    """The depth, and under the first of a length that length."""
    length, depth = table.places[j]
    first = j == 0 or table.places[j - 1][0] != length
    if len(table.places) <= MOST_LEVEL:
        return text.share(depth) + (f"<br>{text.count(length)}" if first else "")
    return (f"{text.count(length)}: " if first else "") + text.share(depth)


def _row(table: EvidenceNeedlesTable, row: tuple[str, str]) -> str:
    return "Full cache" if row[0] == FULL else f"{text.visible(table.names[row[0]], 20)}, {row[1]}"


def _words(table: EvidenceNeedlesTable, cell: Cell) -> str:
    where = f"{text.count(cell.place[0])} tokens, depth {text.share(cell.place[1])}"
    if cell.reached is not None:
        where += f" (reached {' to '.join(dict.fromkeys(map(text.share, cell.reached)))})"
    name = _row(table, cell.row)
    if cell.row[0] == FULL:
        return f"{name}, {where}: found {cell.full} of {len(cell.items)}"
    if not cell.full:
        return f"{name}, {where}: the full cache misses it too"
    return f"{name}, {where}: {cell.state}, {cell.found} of {cell.full} found, KL {text.kl_number(cell.kl)}"


def _summary(table: EvidenceNeedlesTable) -> str:
    parts = []
    for row in table.rows_:
        own = [c for c in table.cells if c.row == row]
        parts.append(f"{_row(table, row)} {sum(c.found for c in own)} of {sum(c.full for c in own)}")
    return f"Found of what the full cache finds: {'; '.join(parts)}."
