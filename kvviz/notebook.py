"""A comparison in a notebook: its answers as a table, every lens as a figure, the whole run in a frame."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import FIGURES, figure_of
from kvviz.figures.figure import Look
from kvviz.figures.palette import resolve
from kvviz.figures.why_table import axis_choices
from kvviz.identity import Budget, shown
from kvviz.results import words
from kvviz.results.answers import all_answers_table
from kvviz.results.causes import PUT_BACK, TAKEN_OUT
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening

# What a setting may be, where it is one of a few words; a figure would take another for the first.
WORDS = {"theme": ("light", "dark"), "side": ("a", "b"), "direction": (PUT_BACK, TAKEN_OUT),
         "unit": ("head", "passage")}  # fmt: skip
MOST_ROWS = 12  # answers of a table
MOST_FRAME = 64 * 2**20  # characters of a page in a frame: they are stored with the notebook


def table_html(c: Comparison) -> str:
    """A few lines: what was run, then an answer a row."""
    rows = all_answers_table(c).rows(None)
    head = f"{c.model.id} · {words.count(c.n)} tokens · {c.prompt.protocol}"
    lines = []
    answers = [c.full, *(c.variant(row["method"], row["budget"]) for row in rows[1 : MOST_ROWS + 1])]
    for row, answer in zip(rows, answers):
        text = words.shortened(answer.text if answer else "", 90)
        cells = (row["label"], row["budget_words"], text, row["verdict"], words.kl(row["kl"]))
        lines.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>")
    more = len(rows) - len(lines)
    rest = f"<p>and {more} more: see to_frame()</p>" if more else ""
    titles = "".join(f"<th>{name}</th>" for name in ("method", "budget", "answer", "verdict", "KL"))
    return f"<p>{html.escape(head)}</p><table><tr>{titles}</tr>{''.join(lines)}</table>{rest}"


def view(c: Comparison, lens: str, theme: str = "light", **asked: Any) -> go.Figure:
    """The figure of one of `kvviz.figures.FIGURES`; `asked` are fields of `Look`. InputError otherwise."""
    row = next((row for row in FIGURES if row.id == lens), None)
    if row is None:
        raise InputError(f"There is no view {shown(lens)}. Views: {', '.join(row.id for row in FIGURES)}.")
    names = [field.name for field in fields(Look)]
    if unknown := sorted(set(asked) - set(names)):
        raise InputError(f"A view has no setting {shown(unknown[0])}. Settings: {', '.join(names)}.")
    a, b, k = _chosen(c, asked.pop("a", None), asked.pop("b", None), asked.pop("budget", None))
    for name, count in (("layer", c.model.n_layers), ("head", c.model.n_kv_heads)):
        value = asked.get(name)
        if value is not None and value not in range(count):
            raise InputError(f"The {name} lies between 0 and {count - 1}, not {shown(value)}.")
    given = {**asked, "theme": theme}
    choices: dict[str, Sequence[str]] = {name: words for name, words in WORDS.items() if name in given}
    if axes := {"x", "y"} & set(asked):
        choices |= dict.fromkeys(axes, ("", *(name for name, _ in axis_choices(c, k))))
    for name, known in choices.items():
        if given[name] not in known:
            listed = ", ".join(word for word in known if word)
            raise InputError(f"{name} is one of {listed}, not {shown(given[name])}.")
    figure = figure_of(row, c, Look(a, b, k, **asked))
    return go.Figure(resolve(figure.to_plotly_json(), theme))


class Frame:
    """A whole page that a notebook shows without a server."""

    def __init__(self, page: str, height: int):
        self.page, self.height = page, height

    def __repr__(self) -> str:
        return f"A page of {len(self.page) / 1e6:.1f} MB: a notebook shows it"

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" title="kvviz" width="100%" height="{self.height}" '
            f'style="border:0;background:#fff" srcdoc="{html.escape(self.page, quote=True)}"></iframe>'
        )


def show(c: Comparison, a: str | None = None, b: str | None = None, budget: Any = None,
         height: int = 800) -> Frame:
    """The page of a run in a frame; InputError where it would be too large for a notebook."""
    from kvviz.ui.saved_page import page_html

    a_, b_, k = _chosen(c, a, b, budget)
    if (a, b, budget) == (None, None, None):
        page = page_html(c)
    else:
        page = page_html(replace(c, story=replace(c.story, steps=())), Opening(a_, b_, c.share(k)))
    if len(page) > MOST_FRAME:
        raise InputError(
            f"This page has {len(page) / 1e6:.0f} MB, too many for a notebook. Save the run and open it in "
            "the app, or look at single views: result.view(...)."
        )
    return Frame(page, int(height))


def _chosen(c: Comparison, a: str | None, b: str | None, budget: Any) -> tuple[str, str | None, float | int]:
    """(A, B, budget), the run's first two methods and its smallest decoded budget where none is named."""
    if not c.methods:
        raise InputError("This run has no answer besides the full cache's: there is nothing to view.")
    a = a or c.methods[0]
    b = b or next((m for m in c.methods if m != a), None)
    for method in filter(None, (a, b)):
        if method not in c.choices:
            raise InputError(f"{shown(method)} is not in this run. Its methods: {', '.join(c.choices)}.")
    return a, b, c.budgets[-1] if budget is None else Budget.parse(budget).value
