"""Views of two runs beside each other: one figure and one list, aligned by characters."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.beside import BesideTable, beside_figure, beside_table
from kvviz.figures.figure import MOST_COLUMNS
from kvviz.results import words as text
from kvviz.results.beside import agreement_words
from kvviz.results.comparison import Comparison
from kvviz.ui import chosen as selection
from kvviz.ui.chosen import Chosen, whole
from kvviz.ui.figure_views import table_of
from kvviz.ui.runs import Run
from kvviz.ui.views import view

MOST_ROWS = 8  # of the list on the page; the table under the figure has all


@view("beside")
def beside_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What the chosen methods keep of each passage in this run and in the run `args["beside"]`."""
    other = args.get("beside")
    if not isinstance(other, Run):
        raise InputError("Choose a second run.")
    one, two = run.comparison, other.comparison
    there = selection.checked(args.get("sel"), two)
    rows: list[tuple[str, str, float | int, str]] = []
    for here, elsewhere in ((chosen.a, there.a), (chosen.b, there.b)):
        if here is not None and elsewhere is not None:
            rows.append(("1", here, chosen.budget, f"1 · {text.label(one, here)}"))
            rows.append(("2", elsewhere, there.budget, f"2 · {text.label(two, elsewhere)}"))
    grain = "sentence" if chosen.grain == "token" else chosen.grain
    table = beside_table(one, two, rows, grain)
    asked = table_of(table, args)
    if asked is not None:
        return asked
    columns = whole(args.get("columns"), 50, MOST_COLUMNS) or MOST_COLUMNS
    first, second = list(table.share.values())[:2]
    return {
        "figure": beside_figure(table, columns).to_json(),
        "words": [_difference(one, two), agreement_words(first, second, grain)],
        "tokens": {"1": table.found.one.tolist(), "2": table.found.two.tolist()},
        "names": list(table.share)[:2],
        "rows": _rows(table, first, second),
    }


def _rows(table: BesideTable, first: np.ndarray, second: np.ndarray) -> list[dict[str, Any]]:
    """The passages that the two runs treat most differently."""
    gap = np.nan_to_num(np.abs(first - second))
    order = np.argsort(-gap, kind="stable")[:MOST_ROWS].tolist()
    return [
        {"at": i, "text": table.passage[i], "one": text.share(first[i]), "two": text.share(second[i])}
        for i in order
        if gap[i] > 0
    ]


def _difference(one: Comparison, two: Comparison) -> str:
    """What tells the two runs apart, in a sentence."""
    a, b = one.prompt, two.prompt
    parts = [
        ("model", one.model.id, two.model.id),
        ("text", a.document, b.document),
        ("question", a.question, b.question),
        ("protocol", a.protocol, b.protocol),
        ("system prompt", a.system or "", b.system or ""),
    ]
    same = [name for name, x, y in parts if x == y]
    differ = [name for name, x, y in parts if x != y]
    said = f"Different {' and '.join(differ)}" if differ else "The same run was asked for twice"
    return f"{said}; same {', '.join(same)}." if differ and same else f"{said}."
