"""Views of answers, document and figures: each asks `kvviz.figures` and passes the result on."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Any

import numpy as np

from kvviz import exports
from kvviz.errors import InputError
from kvviz.figures import FIGURES, document, document_effect, figure_of
from kvviz.figures.figure import MOST_COLUMNS, Figure, Look
from kvviz.figures.kit import narrow
from kvviz.figures.why_card import why_card
from kvviz.figures.why_table import shown_head
from kvviz.results.answers import Card, all_answers_table, answer_cards, by_token, shown_variant
from kvviz.results.cause_words import causes_of
from kvviz.results.causes import PUT_BACK, TAKEN_OUT
from kvviz.results.comparison import Comparison
from kvviz.results.finding import caution, finding, notices
from kvviz.results.measures import MEASURE
from kvviz.results.same import same_settings
from kvviz.results.units import HeldPassage, held_by_b, units
from kvviz.results.words import budget_share, kl, label, share, shortened
from kvviz.ui.chosen import Chosen, whole
from kvviz.ui.runs import Run
from kvviz.ui.views import view

MOST_ROWS = 200  # of a table at a time


def packed(values: np.ndarray) -> dict[str, str]:
    """Whole numbers as the page's `typed` reads them, in the smallest type that holds them."""
    array = narrow(values)
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"dtype": array.dtype.str[1:], "bdata": base64.b64encode(little.tobytes()).decode()}


def table_of(table: Any, args: dict[str, Any], around: int | None = None) -> dict[str, Any] | None:
    """The table behind a view as rows, CSV or JSON, where the page asks for that; rows come a page at a time,
    around the chosen place or, with {"from": number}, from that row on."""
    give = args.get("give")
    if give == "rows":
        of = len(table)
        first = whole(args.get("from"), 0, max(0, of - 1))
        first = 0 if first is None and around is None else first
        rows = table.rows(MOST_ROWS, around, first=first)
        return {"rows": rows, "of": of, "from": first, "page": MOST_ROWS}
    if give in ("csv", "json"):
        return {"text": getattr(exports, give)(table)}
    return None


def _around(chosen: Chosen) -> int | None:
    return chosen.tok[0] if chosen.tok else None


def look_of(run: Run, chosen: Chosen, args: dict[str, Any]) -> Look:
    """What a figure is asked to show: the checked selection, and settings that are checked here."""
    n = run.comparison.n
    x0, x1 = whole(args.get("x0"), 0, n - 1), whole(args.get("x1"), 1, n)
    if x0 is None or x1 is None or x0 >= x1:
        x0, x1 = 0, None
    x, y, measure = (v if isinstance(v := args.get(name), str) else "" for name in ("x", "y", "measure"))
    return Look(
        a=chosen.a,
        b=chosen.b,
        budget=chosen.budget,
        tok=chosen.tok,
        layer=chosen.layer,
        head=chosen.head,
        grain=chosen.grain,
        side="b" if args.get("side") == "b" else "a",
        x0=x0,
        x1=x1,
        columns=whole(args.get("columns"), 50, MOST_COLUMNS) or MOST_COLUMNS,
        rule="max" if args.get("rule") == "max" else "mean",
        measure=measure if measure in MEASURE else "kl",
        x=x,
        y=y or "effect",
        sinks=args.get("sinks") is not False,
        ranks=args.get("ranks") is True,
        direction=_direction(args),
        unit="passage" if args.get("unit") == "passage" else "head",
    )


def _direction(args: dict[str, Any]) -> str:
    return TAKEN_OUT if args.get("direction") == TAKEN_OUT else PUT_BACK


def _figure_view(row: Figure):
    def show(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
        look = look_of(run, chosen, args)
        table = row.table(run.comparison, look)
        rows = table_of(table, args, _around(chosen))
        if rows is not None:
            return rows
        also = row.also(run.comparison, look, table) if row.also else {}
        return {"figure": figure_of(row, run.comparison, look, table).to_json(), **also}

    return show


for _row in FIGURES:
    view(_row.id)(_figure_view(_row))


@view("finding")
def finding_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Three sentences and what they cannot say."""
    c = run.comparison
    methods = [chosen.a] + ([chosen.b] if chosen.b else [])
    return {
        "lines": finding(c, chosen.a, chosen.b, chosen.budget),
        "caution": caution(c, methods, chosen.budget),
        "notices": notices(c, methods, chosen.budget),
        "same": same_settings(c, chosen.a, chosen.b, chosen.budget),
    }


@view("cards")
def cards_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Full cache, A and B."""
    c = run.comparison
    found = answer_cards(c, chosen.a, chosen.b, chosen.budget)
    seen = c.answer_attention
    return {
        "tokens": None if seen is None else c.full.tokens[: seen.steps],
        "stops": seen is not None and c.full.finished == "stop token" and seen.steps == len(c.full.tokens),
        "cards": [
            {**vars(card), **_own_tokens(c, card, chosen),
             "verdict": "grey" if card.grey and card.verdict else card.verdict}
            for card in found
        ]
    }


def _own_tokens(c: Comparison, card: Card, chosen: Chosen) -> dict[str, Any]:
    """Of A's and B's answers, where it is known what the full cache looked at: pieces by token, and the token
    with which the answer leaves the full cache's (None: it does not)."""
    method = {"a": chosen.a, "b": chosen.b}.get(card.role)
    v = None if method is None else shown_variant(c, method, chosen.budget)
    if v is None or c.answer_attention is None:
        return {}
    return {"pieces": by_token(card.words, v.tokens), "parts": v.first_difference}


@view("all_answers")
def all_answers_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """The full cache, then methods x decoded budgets."""
    c = run.comparison
    table = all_answers_table(c)
    rows = table_of(table, args)
    if rows is not None:
        return rows
    budgets = [c.share(b) for b in c.budgets]
    cells: dict[str, list[Any]] = {m: [None] * len(budgets) for m in c.methods}
    full, *answers = table.rows(None)
    moot = full["verdict"] == "wrong"  # nobody lost what the full cache lacks itself: as on the cards
    for row in answers:
        at = min(range(len(budgets)), key=lambda i: abs(budgets[i] - row["share"]))
        said = c.variant(row["method"], row["budget"])
        cells[row["method"]][at] = None if said is None else _answer_cell(row, said.text, moot)
    methods = [{"id": m, "label": label(c, m), "cells": cells[m]} for m in c.methods]
    return {"budgets": budgets, "full": _answer_cell(full, c.full.text, moot), "methods": methods}


def _answer_cell(row: dict[str, Any], answer: str, moot: bool) -> dict[str, Any]:
    return {
        "start": shortened(answer, 90),
        "verdict": "grey" if moot and row["verdict"] else row["verdict"],
        "kl": f"KL {kl(row['kl'])}" if row["kl"] is not None else "",
        "text": row["budget_words"],
    }


@view("document")
def document_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """A class for each token, and how many heads hold it.

    By effect only where that is known: the choice stays while the page goes to another run or budget.
    """
    c = run.comparison
    by = str(args.get("by") or "ab")
    by = by if by in ("a", "b", "ab") else "ab" if chosen.b else "a"
    table = document.document_tokens(
        c, chosen.a, chosen.b, chosen.budget, by, chosen.layer, chosen.head
    )
    rows = table_of(table, args, _around(chosen))
    if rows is not None:
        return rows
    coloured = {}
    if args.get("by") == "effect" and causes_of(c, chosen.a, chosen.budget) is not None:
        found = document_effect.text_effects(c, chosen.a, chosen.budget, _direction(args))
        codes = found.code[: len(table.tokens)]
        coloured = {"by": "effect", "codes": "".join(chr(48 + int(v)) for v in codes.tolist()),
                    "passages": found.passages, "guide": found.guide}  # fmt: skip
    cut = None if chosen.grain == "token" else units(c.prompt, chosen.grain)
    if cut is not None:
        table = document.by_units(table, cut)
    # All tokens of a unit say the same: one speaks for them.
    told = slice(None) if cut is None else np.append(cut.starts, np.arange(c.n, len(table.tokens)))
    by = table.colour_by
    values = table.code if by == "ab" else table.step
    glyphs = table.glyph_code if by == "ab" else table.glyph_step
    values = values.copy()
    parts = {}
    for glyph in np.flatnonzero(table.glyph_parts > 1).tolist():  # drawn as one
        first, last = int(table.glyph_first[glyph]), int(table.glyph_last[glyph])
        values[first : last + 1] = glyphs[glyph]
        if table.glyph_partial[glyph]:
            parts[str(first)] = document.glyph_line(table, glyph)
    return {
        "by": by,
        "codes": "".join(chr(48 + int(v)) for v in values.tolist()),
        "held_a": packed(table.held_a[told]),
        "held_b": packed(table.held_b[told]) if chosen.b else None,
        "heads": packed(table.heads[told]),
        "partial": parts,
        "guide": document.GUIDES[by],
        "rules": document.rules(table),
        "window": table.window,
        "units": None if cut is None else packed(np.diff(cut.starts, prepend=0)),
        **coloured,
    }


@view("why_card")
def why_card_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What decided about one token in one head."""
    c = run.comparison
    if chosen.tok is None:
        raise InputError("Choose a word in the text, or a dot.")
    methods = [chosen.a] + ([chosen.b] if chosen.b else [])
    if args.get("every"):
        methods += [m for m in c.methods if m not in methods]
    place = shown_head(
        c, chosen.a, chosen.b, chosen.budget, chosen.tok, chosen.layer, chosen.head
    )
    return {"card": asdict(why_card(c, chosen.tok, *place, chosen.budget, methods))}


@view("passages")
def passages_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What B still holds and A does not, passage by passage."""
    c = run.comparison
    if chosen.b is None:
        raise InputError("Choose a second method as B.")
    grain = "sentence" if chosen.grain == "token" else chosen.grain
    found = held_by_b(c, chosen.a, chosen.b, chosen.budget, grain)
    only = sum(one.only_b for one in found)
    if only:
        said = f"{only} {grain}{'s' if only > 1 else ''} that half of B's heads hold and fewer of A's."
    elif found:
        said = f"No {grain} is held by half of B's heads and fewer of A's; these differ most."
    else:
        said = f"No {grain} is held by more of B's heads than of A's."
    return {"words": said, "grain": grain, "rows": [_passage(one) for one in found]}


def _passage(one: HeldPassage) -> dict[str, Any]:
    firsts = ("at no stored budget" if f is None else budget_share(f) for f in (one.first_a, one.first_b))
    return {"tok": [one.start, one.end], "text": shortened(one.text, 160), "where": shortened(one.where, 60),
            "only": one.only_b, "a": share(one.a), "b": share(one.b), "first": list(firsts)}  # fmt: skip
