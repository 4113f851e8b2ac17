"""The story of a run: the steps it was saved with, and the tour that every run can tell of itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvviz.results import words as text
from kvviz.results.answers import shown_variant
from kvviz.results.cause_words import causes_of, rescue_sentence
from kvviz.results.comparison import Comparison
from kvviz.results.marks import holders
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run
from kvviz.ui.views import view


@view("story")
def story(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """The steps that came with the run, and the tour for the chosen methods and budget."""
    c = run.comparison
    return {"steps": [asdict(step) for step in c.story.steps], "tour": _tour(c, chosen)}


def _tour(c: Comparison, chosen: Chosen) -> list[dict[str, Any]]:
    """Steps as a story has them. A view here names only what it changes of the selection; every number and
    answer comes from the run."""
    label = text.label(c, chosen.a)
    variant = shown_variant(c, chosen.a, chosen.budget)
    dropped = text.share(1 - c.share(chosen.budget))
    said = _short(variant.text) if variant else "not decoded"
    first = (
        f"The model read this text once. Then each method threw away {dropped} of its cache. "
        f"The full cache answers {_short(c.full.text)}. {label} answers {said}."
    )
    mark = [c.marks[0].start, c.marks[0].end] if c.marks else None
    slide = "Slide the budget, or press Play, and watch the maps empty."
    if mark:
        slide += f" At which size does {label} hold {c.marks[0].name} in half of its heads?"
    else:
        slide += " Choose a word to follow it everywhere."
    found = causes_of(c, chosen.a, chosen.budget)
    rescue = rescue_sentence(c, found) if found else ""
    steps = [
        (first, "answers"),
        *([(_held(c, chosen), "kept")] if mark else []),
        (slide, "budget"),
        *([(rescue, "cause")] if rescue else []),
        (_last(c), "try"),
    ]
    return [
        {"words": words, "shows": shows, "view": {"tok": mark} if at and mark else {}}
        for at, (words, shows) in enumerate(steps)
    ]


def _held(c: Comparison, chosen: Chosen) -> str:
    mark, label = c.marks[0], text.label(c, chosen.a)
    one = holders(c, chosen.a, chosen.budget, mark.start, mark.end)
    sentence = f"This is {text.quoted(mark.text, 40)} ({mark.name}) in the text, and here is the map."
    two = holders(c, chosen.b, chosen.budget, mark.start, mark.end) if chosen.b else None
    if one is None or two is None or not chosen.b:
        return sentence
    other = text.label(c, chosen.b)
    if one.count < two.count:
        return (
            f"{sentence} At its column {label} is less solid than {other}: {one.count} of {one.total} "
            f"heads hold all of it against {two.count}."
        )
    words = "both hold it about equally" if one.count == two.count else "more hold it in A"
    return f"{sentence} {one.count} of {one.total} heads of {label}, {two.count} of {other}: {words}."


def _last(c: Comparison) -> str:
    if c.story.experiment:  # the view below says what came of it, with its numbers
        return (
            "Was that the reason? Here it was pinned, and so were random tokens; each time the answer was "
            "decoded again."
        )
    return "What was kept and what was answered are facts of one run. Now try it on your own text."


def _short(answer: str, limit: int = 80) -> str:
    return f"“{text.shortened(answer, limit)}”"
