"""What a figure is asked to show, and the row that describes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening
from kvviz.results.table import Table

MOST_COLUMNS = 1500


@dataclass(frozen=True)
class Look(Opening):
    """The selection that all figures share, and what one figure is set to.

    tok, layer, head  what is chosen, None for none.
    side     "a" or "b": whose figure it is, where a figure shows one method.
    x0, x1   tokens of a map, x1 exclusive and None for the last.
    columns  most cells a row of a map: the pixels it has, so that no cell falls between two of them.
    grain    what the text is seen by: "token", "word", "sentence", "paragraph" or "section".
    rule     a cell that stands for several tokens shows their "mean" or the strongest ("max").
    measure  of the sweep; x, y are the axes of Why, x "" for the run's best one.
    direction  of Cause: "put_back" or "taken_out"; unit: "head" or "passage".
    """

    side: str = "a"
    x0: int = 0
    x1: int | None = None
    columns: int = MOST_COLUMNS
    rule: str = "mean"
    measure: str = "kl"
    x: str = ""
    y: str = "effect"
    sinks: bool = True
    ranks: bool = False
    direction: str = "put_back"
    unit: str = "head"

    @property
    def method(self) -> str:
        """The method of this side."""
        return self.other if self.side == "b" else self.a

    @property
    def other(self) -> str:
        """B, or a sentence that one must be chosen."""
        if self.b is None:
            raise InputError("Choose a second method as B.")
        return self.b

    @property
    def span(self) -> tuple[int, int | None, int]:
        """(x0, x1, columns) of a map."""
        return self.x0, self.x1, self.columns


@dataclass(frozen=True)
class Figure:
    """One figure.

    id     the name by which the page asks for it.
    tab    where it stands on the page.
    reads  parts of the selection and settings that change it.
    table  (comparison, look) -> the data; raises InputError with a sentence where there is none.
    draw   (table, look) -> the picture.
    sides  it stands there twice, for A and for B.
    folded it is drawn only once it is opened.
    also   (comparison, look, table) -> what the page's controls beside it need, as plain values.
    """

    id: str
    tab: str
    reads: tuple[str, ...]
    table: Callable[[Comparison, Look], Table]
    draw: Callable[[Any, Look], go.Figure]
    sides: bool = False
    folded: bool = False
    also: Callable[[Comparison, Look, Any], dict[str, Any]] | None = None
