"""The page's "Mix": ingredients for its sliders, and what a mix keeps, as a map and as a method file."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvviz.figures.kept import held_words, kept_figure, kept_table
from kvviz.figures.kit import captioned
from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.mix import MIX, MOST_POOL, MOST_SINKS, POWERS, Mix, method_file, missing, name_in
from kvviz.ui.chosen import Chosen
from kvviz.ui.figure_views import look_of, table_of
from kvviz.ui.runs import Run
from kvviz.ui.views import view


@view("mixes")
def mixes_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What can be mixed in this run, and what it starts from."""
    lacking = missing(run.comparison)
    ingredients = [
        {"id": name, "label": words, "low": low, "high": high, "lacks": name in lacking}
        for name, (_, words, low, high) in POWERS.items()
    ]
    words = [POWERS[name][1] for name in lacking]
    said = f"This run does not hold {_listed(words)} of its entries: run it again to mix that in."
    return {
        "ingredients": ingredients,
        "lacks": said if lacking else "",
        "most": {"pool": MOST_POOL, "sinks": MOST_SINKS},
        "start": Mix().to_dict(),
    }


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


@view("mix")
def mix_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """The map of a mix at the chosen budget, its shares in words, and its method file."""
    c, mix = run.comparison, Mix.of(args.get("mix"))
    shown = with_preview(c, mix, chosen.budget)
    look = look_of(run, chosen, args)
    table = kept_table(shown, MIX, look.budget, *look.span, look.rule, look.grain)
    rows = table_of(table, args, chosen.tok[0] if chosen.tok else None)
    if rows is not None:
        return rows
    name = name_in(c, mix)
    return {
        "figure": captioned(kept_figure(table), text.run_line(c)).to_json(),
        "score": mix.words,
        "shares": _shares(shown, chosen),
        "name": name,
        "decoded": text.label(c, name) if c.variant(name, chosen.budget) else "",
        "file": method_file(mix),
    }


def with_preview(c: Comparison, mix: Mix, budget: float | int) -> Comparison:
    """The run with the mix as one more method, "mix", of which nothing was decoded."""
    from kvviz.engine.mix import mixed  # torch: a run is looked at without it until something is mixed

    kept = Point.pack(mixed(c, mix, budget))
    preview = Variant(MIX, kept.label, kept.budget, 0, kept.options, kept)
    return dataclasses.replace(c, variants=[*c.variants, preview])


def _shares(shown: Comparison, chosen: Chosen) -> list[str]:
    """How much is kept, of the first mark and of what A and B keep."""
    mine = shown.need(MIX, chosen.budget).kept
    said = [text.budget_triple(shown, MIX, chosen.budget), held_words(shown, MIX, chosen.budget).rstrip(".")]
    for side, method in (("A", chosen.a), ("B", chosen.b)):
        other = shown.at(method, chosen.budget) if method else None
        if method and other is not None:
            both = text.share(mine.overlap(other.kept))
            said.append(f"{both} shared with {side} {text.label(shown, method)}")
    return [words for words in said if words]
