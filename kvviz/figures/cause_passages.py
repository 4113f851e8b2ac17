"""What each passage does to the answer: a bar a passage, along the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.cause_heads import SIGNS
from kvviz.figures.kit import axis, build, inert
from kvviz.figures.palette import role
from kvviz.figures.strip import Span, mark_shapes
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.causes import PUT_BACK, Effect
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDES = {
    "put_back": "Each bar is a passage, as wide as it is long. High: with all that was lost of it put back, "
    "more of the answer comes back.",
    "taken_out": "Each bar is a passage, as wide as it is long. High: without it, the whole cache loses more "
    "of the answer.",
}
_KINDS = (("document", "document", "amount-10", ""), ("question", "question", "amount-6", "/"),
          ("template", "template", "amount-3", "."))  # fmt: skip


@dataclass(frozen=True)
class CausePassagesTable(Table):
    """One row a passage, in the order of the text."""

    near: ClassVar[str | None] = "first token"

    label: str
    budget_name: str
    direction: str
    rows_: list[Effect]
    words: list[str]
    spans: list[Span]
    n: int

    def columns(self):
        """See `Table.columns`."""
        rows = self.rows_
        return {
            "first token": [e.piece.start for e in rows],
            "last token": [e.piece.end - 1 for e in rows],
            "part": [e.piece.kind for e in rows],
            "text": [text.shortened(e.piece.text, 200) for e in rows],
            f"nats {SIGNS[self.direction][0]}": [e.effect for e in rows],
            "entries": [e.entries for e in rows],
        }


def cause_passages_table(c: Comparison, method: str, k: float | int, direction: str) -> CausePassagesTable:
    """What putting back, or taking out, each passage's entries does."""
    found = said.need_causes(c, method, k)
    rows = sorted(found.of(direction, "passage"), key=lambda e: e.piece.start)
    if not rows:
        way = said.DIRECTIONS[direction].format(text.label(c, method))
        raise InputError(f"Passages were not {way} here.")
    words = [f"{said.unit_words(c, e)}: {said.effect_words(e, direction)}" for e in rows]
    spans = [Span("mark", m.name, m.start, m.end, m.name) for m in c.marks]
    return CausePassagesTable(
        text.label(c, method), text.budget_name(k), direction, rows, words, spans, c.n
    )


def cause_passages_figure(table: CausePassagesTable) -> go.Figure:
    """Bars along the tokens; one that would be narrower than a pixel keeps its outline."""
    effects = np.array([e.effect for e in table.rows_])
    traces: list[dict[str, Any]] = []
    for kind, name, colour, pattern in _KINDS:
        at = [i for i, e in enumerate(table.rows_) if e.piece.kind == kind]
        if at:
            traces.append(_bars(table, at, name, colour, pattern))
    best = int(effects.argmax())
    way = said.DIRECTIONS[table.direction].format(table.label)
    strongest = f"most by {table.words[best]}" if effects[best] >= said.LEAST else "none of note"
    low, high = min(0.0, float(effects.min())), max(float(effects.max()), 0.1)
    room = 0.06 * (high - low)
    marks = [{**s, "yref": "paper", "y0": 0, "y1": 1} for s in mark_shapes(table.spans, 1)]
    return build(
        traces,
        title=f"Passages {way}" + (f" at {table.budget_name}" if table.direction == PUT_BACK else ""),
        guide=GUIDES[table.direction],
        summary=f"{text.count(len(effects))} passages {way}: {strongest}. {said.ADD_UP}",
        height=300,
        barmode="overlay",
        bargap=0,
        shapes=marks,
        xaxis=axis("token position", range=[-0.5, table.n - 0.5], showgrid=False),
        yaxis=axis(
            f"nats {SIGNS[table.direction][0]}", range=[low - room, high + room], zeroline=True,
            zerolinecolor=role("muted"),
        ),
    )  # fmt: skip


def _bars(table: CausePassagesTable, at: list[int], name: str, colour: str, pattern: str) -> dict[str, Any]:
    rows = [table.rows_[i] for i in at]
    marker: dict[str, Any] = {
        "color": role(colour),
        "line": {"width": 1, "color": role("amount-12" if name == "document" else "muted")},
    }
    if pattern:
        marker["pattern"] = {"shape": pattern, "size": 5, "solidity": 0.3, "fgcolor": role("page"),
                             "bgcolor": role(colour), "fillmode": "replace"}  # fmt: skip
    return {
        "type": "bar",
        "x": [(e.piece.start + e.piece.end - 1) / 2 for e in rows],
        "y": np.array([e.effect for e in rows], np.float32),
        "width": [e.piece.end - e.piece.start for e in rows],
        "customdata": [[e.piece.start, e.piece.end, table.words[i]] for i, e in zip(at, rows)],
        "name": inert(name),
        "showlegend": True,
        "hoverinfo": "none",
        "marker": marker,
    }
