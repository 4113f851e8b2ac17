"""What each head does to the answer: a cell a KV head of a layer, in nats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import nats
from kvviz.figures.kit import axis, build, heatmap, map_height
from kvviz.figures.token_map import layer_axis
from kvviz.results import cause_words as said
from kvviz.results import words as text
from kvviz.results.causes import PUT_BACK
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table

GUIDES = {
    "put_back": "Each cell is a KV head. Stronger: with all that this head lost put back, more of the answer "
    "comes back.",
    "taken_out": "Each cell is a KV head. Stronger: without all that this head holds, the whole cache loses "
    "more of the answer.",
}
SIGNS = {"put_back": ("returned", "taken away"), "taken_out": ("lost", "gained")}
EMPTY = {"put_back": "nothing was lost there", "taken_out": "nothing is there"}


@dataclass(frozen=True)
class CauseHeadsTable(Table):
    """Effects by head, float64 [L, Hkv] nats, NaN where none was tried; entries int64 [L, Hkv]."""

    near: ClassVar[str | None] = "layer"

    label: str
    budget_name: str
    direction: str
    effect: np.ndarray
    entries: np.ndarray
    words: list[list[str]]
    gap: float

    def columns(self):
        """See `Table.columns`."""
        layers, heads = self.effect.shape
        return {
            "layer": np.repeat(np.arange(layers), heads),
            "KV head": np.tile(np.arange(heads), layers),
            f"nats {SIGNS[self.direction][0]}": self.effect.ravel(),
            "entries": self.entries.ravel(),
        }


def cause_heads_table(c: Comparison, method: str, k: float | int, direction: str) -> CauseHeadsTable:
    """What putting back, or taking out, each head's entries does."""
    found = said.need_causes(c, method, k)
    rows = found.of(direction, "head")
    if not rows:
        raise InputError(f"Heads were not {said.DIRECTIONS[direction].format(text.label(c, method))} here.")
    shape = c.model.n_layers, c.model.n_kv_heads
    effect, entries = np.full(shape, np.nan), np.zeros(shape, np.int64)
    words = [["not tried"] * shape[1] for _ in range(shape[0])]
    for e in rows:
        layer, head = e.cell
        effect[e.cell], entries[e.cell] = e.effect, e.entries
        words[layer][head] = f"{said.unit_words(c, e)}: {said.effect_words(e, direction)}"
    return CauseHeadsTable(
        text.label(c, method), text.budget_name(k), direction, effect, entries, words, found.gap
    )


def cause_heads_figure(table: CauseHeadsTable) -> go.Figure:
    """Layers down, KV heads across."""
    layers, heads = table.effect.shape
    code = nats.nats_codes(table.effect, table.entries)
    size = np.abs(np.nan_to_num(table.effect))
    top = float(size.max())
    layer, head = np.unravel_index(int(np.nan_to_num(table.effect).argmax()), table.effect.shape)
    way = said.DIRECTIONS[table.direction].format(table.label)
    strongest = (
        f"most in {text.place(int(layer), int(head))}, {text.nats(table.effect[layer, head])}"
        if top >= said.LEAST else "nothing of note"
    )  # fmt: skip
    returned = f" of {text.nats(table.gap)}" if table.direction == PUT_BACK and top >= said.LEAST else ""
    return build(
        [
            heatmap(code, nats.COLOURS, x0=0, dx=1, customdata=table.words),
            *nats.nats_traces(code, top, SIGNS[table.direction], EMPTY[table.direction]),
        ],
        title=f"Heads {way}{_at(table)}",
        guide=GUIDES[table.direction],
        summary=f"{layers} layers by {heads} KV heads {way}: {strongest}{returned}. {said.ADD_UP}",
        height=map_height(layers),
        meta={"scale": nats.SCALE},
        xaxis=axis(
            "KV head", showgrid=False, range=[-0.5, heads - 0.5], tickvals=_ticks(heads),
            ticktext=[str(h) for h in _ticks(heads)],
        ),
        yaxis=layer_axis(layers),
    )  # fmt: skip


def _at(table: CauseHeadsTable) -> str:
    """The whole cache is the same at every budget."""
    return f" at {table.budget_name}" if table.direction == PUT_BACK else ""


def _ticks(heads: int) -> list[int]:
    return list(range(0, heads, max(1, -(-heads // 12))))
