"""Tables and figures of a comparison, one file a figure: a table goes in, a Plotly figure comes out.

Everything here works on a `Comparison` alone, with numpy and plotly: no model, no torch, no page.
Colours are written as role names ("role:kept"); whoever shows a figure resolves them (`palette`).
A new figure is a file and a row of FIGURES: the page, its tests and its timing read the rows.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from kvviz.errors import InputError
from kvviz.figures import (
    ablation,
    all_methods,
    cause_agreement,
    cause_heads,
    cause_held,
    cause_passages,
    cause_rescue,
    cause_scatter,
    effect,
    effect_layers,
    effect_scatter,
    heads,
    kept,
    kl,
    per_layer,
    steps,
    sweep,
    sweep_table,
    versus,
    why,
    why_minimap,
    why_table,
)
from kvviz.figures.figure import Figure, Look
from kvviz.figures.kit import captioned
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison
from kvviz.results.words import run_line


def _shown_head(c: Comparison, look: Look) -> tuple[int, int]:
    return why_table.shown_head(c, look.a, look.b, look.budget, look.tok, look.layer, look.head)


def _why_table(c: Comparison, look: Look) -> why_table.WhyTable:
    known = [name for name, _ in why_table.axis_choices(c, look.budget)]  # another run may have had others
    x, y = look.x if look.x in known else "", look.y if look.y in known else "effect"
    return why_table.why_table(
        c, *_shown_head(c, look), look.a, look.b, look.budget, x, y,
        sinks=look.sinks, ranks=look.ranks,
    )  # fmt: skip


def _why_controls(c: Comparison, look: Look, table: why_table.WhyTable) -> dict[str, Any]:
    return {
        "shown": [table.layer, table.head],
        "default": look.layer is None or look.head is None,
        "axes": why_table.axis_choices(c, look.budget),
        "x": table.x_name,
        "y": table.y_name.removesuffix(why_table.TWICE),
        "line": table.correlation_words,
        "remark": why.NOTE,
    }


def _effect_table(c: Comparison, look: Look) -> effect.EffectTable:
    return effect.effect_table(c, look.a, look.b, look.budget)


def _effect_lines(c: Comparison, look: Look, table: effect.EffectTable) -> dict[str, Any]:
    return {"queries": table.queries, "compared": table.compared_words}


def _found_map(c: Comparison, look: Look) -> kept.KeptTable:
    if c.would_do is None:
        raise InputError("No smallest cache that gives the answer was searched in this run.")
    return kept.kept_table(c, FOUND, c.would_do.budget, *look.span, look.rule)


_EFFECT = ("run", "budget", "a", "b")

FIGURES = (
    Figure(
        "kl_strip", "answers", ("run", "a", "b", "budget"),
        table=lambda c, look: kl.kl_strip_table(c, look.method, look.budget),
        draw=lambda table, look: kl.kl_strip_figure(table),
        folded=True,
    ),
    Figure(
        "kept", "kept", ("run", "budget", "range", "grain", "a", "b"),
        table=lambda c, look: kept.kept_table(
            c, look.method, look.budget, *look.span, look.rule, look.grain
        ),
        draw=lambda table, look: kept.kept_figure(table, look.side.upper()),
        sides=True,
    ),
    Figure(
        "versus", "kept", ("run", "budget", "range", "grain", "a", "b"),
        table=lambda c, look: versus.versus_table(c, look.a, look.other, look.budget, *look.span, look.grain),
        draw=lambda table, look: versus.versus_figure(table),
    ),
    Figure(
        "heads", "kept", ("run", "budget", "range", "grain", "a", "b", "layer", "tok"),
        table=lambda c, look: heads.heads_table(
            c, look.method, look.budget, _shown_head(c, look)[0], *look.span, look.grain
        ),
        draw=lambda table, look: heads.heads_figure(table, look.side.upper()),
        sides=True,
    ),
    Figure(
        "per_layer", "kept", ("run", "budget", "a", "b"),
        table=lambda c, look: per_layer.per_layer_table(c, look.method, look.budget),
        draw=lambda table, look: per_layer.per_layer_figure(table, look.side.upper()),
        sides=True,
    ),
    Figure(
        "all_methods", "kept", ("run", "budget", "range", "grain"),
        table=lambda c, look: all_methods.all_methods_table(
            c, look.budget, *look.span, look.rule, look.grain
        ),
        draw=lambda table, look: all_methods.all_methods_figure(table),
        folded=True,
        also=lambda c, look, table: {"rows_in_map": table.rows_in_map},
    ),
    Figure(
        "why", "why", ("run", "a", "b", "budget", "layer", "head", "tok", "axes"),
        table=_why_table,
        draw=lambda table, look: why.why_figure(table),
        also=_why_controls,
    ),
    Figure(
        "why_mini", "why", ("run", "a", "b", "budget", "layer", "head", "tok"),
        table=lambda c, look: why_minimap.why_minimap_table(
            c, look.tok, look.a, look.b, look.budget, *_shown_head(c, look)
        ),
        draw=lambda table, look: why_minimap.why_minimap_figure(table),
    ),
    Figure(
        "cause_heads", "cause", ("run", "budget", "a", "direction"),
        table=lambda c, look: cause_heads.cause_heads_table(c, look.a, look.budget, look.direction),
        draw=lambda table, look: cause_heads.cause_heads_figure(table),
    ),
    Figure(
        "cause_passages", "cause", ("run", "budget", "a", "direction"),
        table=lambda c, look: cause_passages.cause_passages_table(c, look.a, look.budget, look.direction),
        draw=lambda table, look: cause_passages.cause_passages_figure(table),
    ),
    Figure(
        "cause_rescue", "cause", ("run", "budget", "a"),
        table=lambda c, look: cause_rescue.cause_rescue_table(c, look.a, look.budget, *look.span),
        draw=lambda table, look: cause_rescue.cause_rescue_figure(table),
    ),
    Figure(
        "cause_scatter", "cause", ("run", "budget", "a", "unit"),
        table=lambda c, look: cause_scatter.cause_scatter_table(c, look.a, look.budget, look.unit),
        draw=lambda table, look: cause_scatter.cause_scatter_figure(table),
        also=lambda c, look, table: {"line": table.correlation_words},
    ),
    Figure(
        "cause_agreement", "cause", ("run", "budget", "a", "b"),
        table=lambda c, look: cause_agreement.cause_agreement_table(c, look.a, look.b, look.budget),
        draw=lambda table, look: cause_agreement.cause_agreement_figure(table),
    ),
    Figure(
        "cause_held", "cause", ("run", "budget", "a", "b"),
        table=lambda c, look: cause_held.cause_held_table(c, look.a, look.b, look.budget),
        draw=lambda table, look: cause_held.cause_held_figure(table),
    ),
    Figure(
        "cause_map", "cause", ("run",),
        table=_found_map,
        draw=lambda table, look: kept.kept_figure(table),
    ),
    Figure(
        "effect_map", "effect", _EFFECT,
        table=_effect_table,
        draw=lambda table, look: effect.effect_map_figure(table, look.side),
        sides=True,
        also=_effect_lines,
    ),
    Figure(
        "effect_scatter", "effect", _EFFECT,
        table=_effect_table,
        draw=lambda table, look: effect_scatter.effect_scatter_figure(table),
        also=_effect_lines,
    ),
    Figure(
        "effect_layers", "effect", _EFFECT,
        table=lambda c, look: effect_layers.effect_layers_table(c, look.a, look.b, look.budget),
        draw=lambda table, look: effect_layers.effect_layers_figure(table),
    ),
    Figure(
        "sweep", "sweep", ("run", "a", "b", "tok", "measure", "budget"),
        table=lambda c, look: sweep_table.sweep_table(
            c, look.measure, look.a, look.b, look.budget, look.tok
        ),
        draw=lambda table, look: sweep.sweep_figure(table),
        also=lambda c, look, table: {"measures": sweep_table.measures_of(c, look.a, look.tok)},
    ),
    Figure(
        "ablation", "sweep", ("run", "budget"),
        table=lambda c, look: ablation.ablation_table(c, look.budget),
        draw=lambda table, look: ablation.ablation_figure(table),
    ),
    Figure(
        "steps", "steps", ("run", "a", "budget"),
        table=lambda c, look: steps.steps_table(c, look.a, look.budget),
        draw=lambda table, look: steps.steps_figure(table),
        also=lambda c, look, table: {"dropped": table.tokens},
    ),
)  # fmt: skip


def figure_of(row: Figure, c: Comparison, look: Look, table: Any | None = None) -> go.Figure:
    """The picture of a row, with the line that an exported picture carries below its title."""
    table = row.table(c, look) if table is None else table
    return captioned(row.draw(table, look), run_line(c))
