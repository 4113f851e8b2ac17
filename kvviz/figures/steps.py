"""While the answer was written: what each cut of decode-time eviction dropped, and where that came from.

An eviction record is {"phase": "question" or "answer", "step": tokens of it so far, "dropped": counts
[L][Hkv], "tokens": the positions dropped in each layer, by any of its heads}. In older runs a cut at step 0
or before came while a question that follows the document was read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build, colour_bar, heatmap, legend_entry, map_height, narrow, panel
from kvviz.figures.palette import AMOUNT_STEPS
from kvviz.figures.token_map import layer_axis
from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.table import Table
from kvviz.types import complete

TITLE = "What was thrown away while the answer was written"
GUIDE = (
    "Read left to right: each column is a cut while the answer was written. Stronger: more of what this "
    "layer dropped then came from your text, rather than from the template, the question or the answer."
)
COUNT_GUIDE = "Read left to right: each column is a cut while the answer was written. Stronger: more dropped."
COLOURS = [f"amount-{i}" for i in range(AMOUNT_STEPS + 1)]
NOTHING = AMOUNT_STEPS + 1  # code of a layer that dropped nothing at a cut


@dataclass(frozen=True)
class StepsTable(Table):
    """The cuts of one answer.

    steps     int64 [cuts], tokens of the answer (or the question) before each.
    asking    bool [cuts], made while the question was read.
    dropped   int64 [L, cuts], entries dropped.
    tokens    for each cut and layer the positions dropped; empty where the run did not record them.
    document  int64 [L, cuts], how many of these positions lie in the document.
    """

    near: ClassVar[str | None] = "step"

    label: str
    budget_name: str
    steps: np.ndarray
    asking: np.ndarray
    dropped: np.ndarray
    tokens: list[list[list[int]]]
    document: np.ndarray

    def columns(self):
        """See `Table.columns`."""
        layers, cuts = self.dropped.shape
        columns = {
            "layer": np.repeat(np.arange(layers), cuts),
            "phase": np.tile(np.where(self.asking, "question", "answer"), layers),
            "step": np.tile(self.steps, layers),
            "dropped": self.dropped.ravel(),
        }
        if self.tokens:
            columns["tokens"] = self.positions.ravel()
            columns["tokens of the document"] = self.document.ravel()
        return columns

    @property
    def positions(self) -> np.ndarray:
        """Different positions dropped, int64 [L, cuts]."""
        counts = [[len(layer) for layer in cut] for cut in self.tokens]
        return np.asarray(counts, dtype=np.int64).T

    @property
    def moments(self) -> list[str]:
        """When each cut was made: "3 generated tokens", "5 tokens of the question"."""
        of = ["tokens of the question" if asking else "generated tokens" for asking in self.asking]
        return [f"{step} {words}" for step, words in zip(self.steps.tolist(), of)]

    @property
    def from_document(self) -> np.ndarray:
        """Share of the positions dropped that lie in the document, float64 [L, cuts]; NaN where none was."""
        with np.errstate(invalid="ignore"):
            return self.document / self.positions


def steps_table(c: Comparison, method: str, k: float | int) -> StepsTable:
    """The cuts of a decoded variant; InputError where there are none, with the reason."""
    records = _records(c, method, k)
    counts = [np.asarray(r["dropped"], dtype=np.int64) for r in records]
    tokens: list[list[list[int]]] = complete(r.get("tokens") for r in records) or []
    start, end = c.prompt.document_span
    inside = [[sum(start <= token < end for token in layer) for layer in cut] for cut in tokens]
    return StepsTable(
        label=text.label(c, method),
        budget_name=text.budget_name(k),
        steps=np.array([step for _, step in map(_moment, records)], dtype=np.int64),
        asking=np.array([not answer for answer, _ in map(_moment, records)], dtype=bool),
        dropped=np.stack([x.sum(axis=-1) if x.ndim == 2 else x for x in counts], axis=1),
        tokens=tokens,
        document=np.asarray(inside, dtype=np.int64).T,
    )


def _records(c: Comparison, method: str, k: float | int) -> list[dict]:
    label, name = text.label(c, method), text.budget_name(k)
    variant = c.variant(method, k)
    if variant is None:
        decoded = [v.budget for v in c.variants if v.method == method and cuts_of(v)]
        known = f" Known for {label}: {text.span_names([text.budget_name(b) for b in decoded])}."
        raise InputError(
            f"{label} was not decoded at {name}: what it drops while writing shows once it is."
            f"{known if decoded else ''}"
        )
    records = cuts_of(variant)
    if not records:
        raise InputError(f"{label} evicted nothing while writing its answer at {name}.")
    return records


def cuts_of(v: Variant) -> list[dict]:
    """Its eviction records, in order; cuts after its last token were those of other answers' batch."""
    return sorted((r for r in v.evictions if _moment(r) < (True, len(v.token_ids))), key=_moment)


def _moment(record: dict) -> tuple[bool, int]:
    """(while the answer was written, tokens of it or of the question before the cut)."""
    if "phase" in record:
        return record["phase"] == "answer", record["step"]
    return record["step"] > 0, record["step"]


def steps_figure(table: StepsTable) -> go.Figure:
    """Cuts by layers; one column a cut, labelled with the tokens generated before it."""
    layers, cuts = table.dropped.shape
    if table.tokens:
        share, guide = table.from_document, GUIDE
        title, scale = "share from the document", "share of the tokens dropped that lie in the document"
        ticks = {0: "0%", AMOUNT_STEPS // 2: "50%", AMOUNT_STEPS: "100%"}
        counts = {"entries": table.dropped, "tokens": table.positions, "document": table.document}
    else:
        top = max(1, int(table.dropped.max()))
        share, guide = np.where(table.dropped > 0, table.dropped / top, np.nan), COUNT_GUIDE
        title = scale = "entries dropped"
        ticks = {0: "0", AMOUNT_STEPS: text.count(top)}
        counts = {"entries": table.dropped}
    code = np.full(share.shape, NOTHING, dtype=np.uint8)
    known = np.isfinite(share)
    code[known] = np.ceil(AMOUNT_STEPS * share[known]).astype(np.uint8)
    shown = np.arange(0, cuts, max(1, -(-cuts // 20)))
    early = int(table.asking.sum())
    total = text.count(int(table.dropped.sum()))
    late = cuts - early
    said = f"{text.count(late)} {'cut' if late == 1 else 'cuts'} while writing"
    said += f" and {text.count(early)} while the question was read" if early else ""
    if table.tokens and table.positions.sum():
        whole = text.share(float(table.document.sum() / table.positions.sum()))
        said += f"; {whole} of the tokens dropped lie in the document"
    nothing = [legend_entry("dropped nothing", "unscored")] if (code == NOTHING).any() else []
    return build(
        [
            heatmap(code, [*COLOURS, "unscored"], x0=0, dx=1,
                    customdata=narrow(np.stack([*counts.values()], axis=-1))),
            colour_bar(COLOURS, ticks, title),
            *nothing,
        ],
        title=f"{TITLE} · {panel('', table.label, table.budget_name)}",
        guide=guide,
        summary=f"{table.label} at {table.budget_name} dropped {total} entries in {said}.",
        height=map_height(layers),
        meta={
            "steps": table.steps.tolist(),
            "moments": table.moments,
            "channels": list(counts),
            "scale": scale,
        },
        xaxis=axis(
            "tokens generated before the cut" + (" (Q: of the question)" if early else ""),
            tickvals=shown,
            ticktext=[f"Q{table.steps[i]}" if table.asking[i] else str(table.steps[i]) for i in shown],
            showgrid=False,
        ),
        yaxis=layer_axis(layers),
    )  # fmt: skip
