"""Views of answers, document and figures: each asks `kvviz.figures` and passes the result on."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.ui.chosen import Chosen, whole
from kvviz.ui.runs import Run
from kvviz.ui.views import view

_MOST_ROWS = 200
LARGE = 2000  # tokens above which a table download is limited to the rows around the selection


def packed(values: np.ndarray) -> dict[str, str]:
    """Whole numbers as the page's `typed` reads them, in the smallest type that holds them."""
    values = np.asarray(values)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    kinds = ("u1", "u2", "i4") if low >= 0 else ("i1", "i2", "i4")
    fits = (k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
    kind = next(fits, "i4")
    array = np.ascontiguousarray(values, dtype=f"<{kind}")
    return {"dtype": kind, "bdata": base64.b64encode(array.tobytes()).decode()}


def given(table: Any, figure: Any, args: dict[str, Any], around: int | None = None) -> dict:
    """The figure, or the table behind it as rows, CSV or JSON, as the page asks.

    `figure` is called only when the picture is wanted.
    """
    give = args.get("give")
    if give == "rows":
        return {"rows": table.rows(_MOST_ROWS, around)}
    if give in ("csv", "json"):
        from kvviz import exports

        return {"text": getattr(exports, give)(table)}
    return {"figure": figure().to_json()}


def _around(chosen: Chosen) -> int | None:
    return chosen.tok[0] if chosen.tok else None


@view("finding")
def finding(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Three sentences and what they cannot say."""
    from kvviz.results.finding import caution, finding, notices

    c = run.comparison
    methods = [chosen.a] + ([chosen.b] if chosen.b else [])
    return {
        "lines": finding(c, chosen.a, chosen.b, chosen.budget),
        "caution": caution(c, chosen.a),
        "notices": notices(c, methods, chosen.budget),
    }


@view("cards")
def cards(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Full cache, A and B."""
    from kvviz.results.answers import answer_cards

    found = answer_cards(run.comparison, chosen.a, chosen.b, chosen.budget)
    return {
        "cards": [
            {**vars(card), "verdict": "grey" if card.grey and card.verdict else card.verdict}
            for card in found
        ]
    }


@view("all_answers")
def all_answers(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Methods x decoded budgets."""
    from kvviz.results.answers import all_answers_table
    from kvviz.results.words import kl

    c = run.comparison
    table = all_answers_table(c)
    if args.get("give"):
        return given(table, None, args)
    budgets = [c.share(b) for b in c.budgets]
    rows: dict[str, list[Any]] = {m: [None] * len(budgets) for m in c.methods}
    for row in table.rows(None):
        if row["method"] != "full":
            at = min(range(len(budgets)), key=lambda i: abs(budgets[i] - row["share"]))
            rows[row["method"]][at] = {
                "start": _start(c.variant(row["method"], row["budget"]).text),
                "verdict": row["verdict"],
                "kl": f"KL {kl(row['kl'])}" if row["kl"] is not None else "",
                "text": row["budget_words"],
            }
    methods = [{"id": m, "label": c.labels[m], "cells": rows[m]} for m in c.methods]
    return {"budgets": budgets, "methods": methods}


def _start(answer: str, limit: int = 90) -> str:
    words = " ".join(answer.split())
    return words if len(words) <= limit else words[: limit - 1] + "…"


@view("kl_strip")
def kl_strip(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """KL of each generated token of A's or B's answer."""
    from kvviz.figures import kl as strip

    method = chosen.b if args.get("role") == "b" and chosen.b else chosen.a
    table = strip.kl_strip_table(run.comparison, method, chosen.budget)
    if not len(table):
        return {"error": "KL was not measured for this answer."}
    return given(table, lambda: strip.kl_strip_figure(table), args)


@view("document")
def document(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """A class for each token, and how many heads hold it."""
    from kvviz.figures import document as doc

    c = run.comparison
    by = args.get("by") if args.get("by") in ("a", "b", "ab") else "ab"
    table = doc.document_tokens(
        c, chosen.a, chosen.b, chosen.budget, by, chosen.layer, chosen.head
    )
    if args.get("give"):
        return given(table, None, args, _around(chosen))
    by = table.colour_by
    values = table.code if by == "ab" else table.step
    glyphs = table.glyph_code if by == "ab" else table.glyph_step
    several = np.flatnonzero(table.glyph_parts > 1)
    values = values.copy()
    parts = {}
    for glyph in several.tolist():  # a character made of several tokens is drawn as one
        first, last = int(table.glyph_first[glyph]), int(table.glyph_last[glyph])
        values[first : last + 1] = glyphs[glyph]
        if table.glyph_partial[glyph]:
            parts[str(first)] = doc.glyph_line(table, glyph)
    return {
        "by": by,
        "codes": "".join(chr(48 + int(v)) for v in values.tolist()),
        "held_a": packed(table.held_a),
        "held_b": packed(table.held_b) if chosen.b else None,
        "heads": packed(table.heads),
        "partial": parts,
        "guide": doc.GUIDE,
        "rules": doc.rules(table),
        "window": table.window,
    }


def _range(run: Run, args: dict[str, Any]) -> tuple[int, int]:
    """The token range a map shows, as asked by a zoom."""
    n = run.comparison.n
    x0, x1 = whole(args.get("x0"), 0, n - 1), whole(args.get("x1"), 1, n)
    return (x0, x1) if x0 is not None and x1 is not None and x0 < x1 else (0, n)


def _columns(args: dict[str, Any]) -> int:
    return whole(args.get("columns"), 50, 2000) or 1500


def need_b(chosen: Chosen) -> str:
    """B, or a sentence that one must be chosen."""
    if chosen.b is None:
        raise InputError("Choose a second method as B.")
    return chosen.b


def _side(chosen: Chosen, args: dict[str, Any]) -> tuple[str, str]:
    """(method, "A" or "B") of the panel that asks."""
    return (need_b(chosen), "B") if args.get("side") == "b" else (chosen.a, "A")


def _rule(args: dict[str, Any]) -> str:
    return "max" if args.get("rule") == "max" else "mean"


@view("kept")
def kept(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Layers x tokens of one method."""
    from kvviz.figures import kept as maps

    method, side = _side(chosen, args)
    table = maps.kept_table(
        run.comparison, method, chosen.budget, *_range(run, args), _columns(args), _rule(args)
    )
    return given(table, lambda: maps.kept_figure(table, side), args, _around(chosen))


@view("versus")
def versus(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """A against B."""
    from kvviz.figures import versus as maps

    table = maps.versus_table(
        run.comparison, chosen.a, need_b(chosen), chosen.budget, *_range(run, args), _columns(args)
    )
    return given(table, lambda: maps.versus_figure(table), args, _around(chosen))


@view("heads")
def heads(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """KV heads x tokens of the chosen layer, or of the one where A and B differ most."""
    from kvviz.figures import heads as maps

    method, side = _side(chosen, args)
    layer = shown_head(run, chosen)[0]
    table = maps.heads_table(
        run.comparison, method, chosen.budget, layer, *_range(run, args), _columns(args)
    )
    return given(table, lambda: maps.heads_figure(table, side), args, _around(chosen))


@view("per_layer")
def per_layer(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Bars of tokens kept a layer."""
    from kvviz.figures import heads as maps

    method, side = _side(chosen, args)
    table = maps.per_layer_table(run.comparison, method, chosen.budget)
    reply = given(table, lambda: maps.per_layer_figure(table, side), args)
    return {**reply, "title": f"Tokens kept per layer · {side}: {table.label}"}


@view("all_methods")
def all_methods(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Every method's map, stacked."""
    from kvviz.figures import kept as maps

    table = maps.all_methods_table(
        run.comparison, chosen.budget, *_range(run, args), _columns(args), _rule(args)
    )
    figure = maps.all_methods_figure(table)
    rows = sum(len(one.kept) for one in table.tables)
    rows += figure.layout.meta["gap"] * (len(table.tables) - 1)
    reply = given(table, lambda: figure, args, _around(chosen))
    return {**reply, "rows_in_map": rows}


def shown_head(run: Run, chosen: Chosen) -> tuple[int, int]:
    """Layer and KV head that a one-head view shows: the chosen ones, else where A and B differ."""
    if chosen.layer is not None and chosen.head is not None:
        return chosen.layer, chosen.head
    from kvviz.figures.why import default_head

    layer, head = default_head(run.comparison, chosen.a, chosen.b, chosen.budget, chosen.tok)
    if chosen.layer is not None:
        layer, head = chosen.layer, chosen.head if chosen.head is not None else 0
    return int(layer), int(head if chosen.head is None else chosen.head)


@view("why")
def why(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Attention against effect of one head."""
    from kvviz.figures import why as scatter

    c = run.comparison
    layer, head = shown_head(run, chosen)
    axes = scatter.axis_choices(c, chosen.budget)
    names = [name for name, _ in axes]
    x = args.get("x") if args.get("x") in names else "attention"
    y = args.get("y") if args.get("y") in names else "effect"
    table = scatter.why_table(
        c, layer, head, chosen.a, chosen.b, chosen.budget, x, y,
        sinks=args.get("sinks") is not False, ranks=args.get("ranks") is True,
    )  # fmt: skip
    if args.get("give"):
        return given(table, None, args, _around(chosen))
    return {
        "figure": scatter.why_figure(table).to_json(),
        "shown": [layer, head],
        "default": chosen.layer is None or chosen.head is None,
        "axes": axes,
        "line": table.correlation_words,
        "remark": scatter.NOTE,
    }


@view("why_card")
def why_card(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What decided about one token in one head."""
    from dataclasses import asdict

    from kvviz.figures import why as cards

    c = run.comparison
    if chosen.tok is None:
        raise InputError("Choose a word in the text, or a dot.")
    methods = [chosen.a] + ([chosen.b] if chosen.b else [])
    if args.get("every"):
        methods += [m for m in c.methods if m not in methods]
    card = cards.why_card(c, chosen.tok, *shown_head(run, chosen), chosen.budget, methods)
    return {"card": asdict(card)}


@view("why_mini")
def why_mini(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Layers x KV heads that hold one token."""
    from kvviz.figures import why as maps

    if chosen.tok is None:
        raise InputError("Choose a word in the text, or a dot.")
    c = run.comparison
    layer, head = shown_head(run, chosen)
    card = maps.why_card(c, chosen.tok, layer, head, chosen.budget, [chosen.a])
    table = maps.why_minimap_table(
        c, card.token, chosen.a, chosen.b, chosen.budget, layer, head
    )
    return given(table, lambda: maps.why_minimap_figure(table), args)


def _effect(run: Run, chosen: Chosen, args: dict[str, Any], draw: str, *more: str) -> dict:
    from kvviz.figures import effect

    key = ("effect", chosen.a, chosen.b, chosen.budget)
    if key not in run.memo:
        if len(run.memo) > 64:
            run.memo.clear()
        run.memo[key] = effect.effect_table(run.comparison, chosen.a, chosen.b, chosen.budget)
    table = run.memo[key]
    reply = given(table, lambda: getattr(effect, draw)(table, *more), args)
    compared = table.compared_words if chosen.b and table.a is not None else ""
    return {**reply, "queries": table.queries, "compared": compared}


@view("effect_map")
def effect_map(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Layers x query heads, change of output."""
    return _effect(run, chosen, args, "effect_map_figure", "b" if args.get("side") == "b" else "a")


@view("effect_scatter")
def effect_scatter(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """One dot a head, A against B."""
    need_b(chosen)
    return _effect(run, chosen, args, "effect_scatter_figure")


@view("effect_layers")
def effect_layers(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Change of each layer after its heads are summed."""
    return _effect(run, chosen, args, "effect_layers_figure")


@view("sweep")
def sweep(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """One measure against budget, a line a method."""
    from kvviz.figures import sweep as curves

    measures = ("kl", "output_error", "mark_held", "overlap", "bytes", "expected")
    measure = args.get("measure") if args.get("measure") in measures else "kl"
    c = run.comparison
    table = curves.sweep_table(c, measure, chosen.a, chosen.b, chosen.tok)
    return given(table, lambda: curves.sweep_figure(table, c.share(chosen.budget)), args)


@view("steps")
def steps(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What was dropped while generating."""
    from kvviz.figures import steps as curves

    table = curves.steps_table(run.comparison, chosen.a, chosen.budget)
    return given(table, lambda: curves.steps_figure(table), args)
