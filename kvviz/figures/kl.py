"""KL at every step of one answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures.kit import axis, build
from kvviz.figures.palette import role
from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.results.table import Table


@dataclass(frozen=True)
class KlStripTable(Table):
    """KL of every generated step of one answer, nats; `token` is the full cache's token there."""

    label: str
    budget: float | int
    token: list[str]
    kl: np.ndarray
    first_difference: int | None

    def columns(self):
        """See `Table.columns`."""
        steps = len(self.kl)
        tokens = [text.plain(t) for t in self.token[:steps]] + [""] * (steps - len(self.token))
        return {"step": np.arange(steps), "token": tokens, "kl": self.kl}


def kl_strip_table(c: Comparison, method: str, k: float | int) -> KlStripTable:
    """The KL strip of an answer; InputError where it was not decoded or KL was not measured."""
    v = c.variant(method, k)
    if v is None or v.kl is None or not len(v.kl):
        raise InputError("KL was not measured for this answer.")
    kl = np.asarray(v.kl, np.float32)
    return KlStripTable(text.label(c, method), k, list(c.full.tokens), kl, v.first_difference)


def kl_strip_figure(table: KlStripTable) -> go.Figure:
    """One bar a generated token."""
    steps = np.arange(len(table.kl))
    names = [text.visible(t) for t in table.token[: len(steps)]]
    bars = {
        "type": "bar",
        "x": steps,
        "y": table.kl.astype(np.float32),
        "marker": {"color": role("muted")},
        "hoverinfo": "none",
    }
    shapes = []
    if table.first_difference is not None:
        at = table.first_difference - 0.5
        line = {"color": role("text"), "width": 1, "dash": "dot"}
        shapes = [{"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}]
        shapes[0]["line"] = line
    return build(
        [bars],
        title=f"How far {table.label} is from the full cache at each word",
        guide="Tall bar: the next word would have been chosen quite differently there. "
        "Dotted line: the answers part.",
        summary=f"{table.label}: KL at {len(steps)} generated tokens, largest at token "
        f"{int(np.argmax(table.kl))}.",
        height=200,
        xaxis=axis(
            "generated token (the full cache's answer)",
            tickvals=steps,
            ticktext=names,
            range=[-0.5, max(len(steps), 1) - 0.5],
        ),
        yaxis=axis("KL, nats", rangemode="tozero"),
        shapes=shapes,
    )
