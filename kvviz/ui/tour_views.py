"""The captions of the tour: every number and answer in them comes from the run."""

from __future__ import annotations

from typing import Any

from kvviz.results import words as text
from kvviz.results.answers import shown_variant
from kvviz.results.marks import holders
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run
from kvviz.ui.views import view


@view("tour")
def tour(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Captions for the chosen methods and budget."""
    c = run.comparison
    label = text.label(c, chosen.a)
    variant = shown_variant(c, chosen.a, chosen.budget)
    dropped = text.share(1 - c.share(chosen.budget))
    said = _short(variant.text) if variant else "not decoded"
    steps = [
        f"The model read this text once. Then each method threw away {dropped} of its cache. "
        f"The full cache answers {_short(c.full.text)}. {label} answers {said}."
    ]
    steps += _marks(c, chosen)
    steps.append(_last(c))
    return {"steps": steps}


def _marks(c: Any, chosen: Chosen) -> list[str]:
    if not c.marks:
        return ["Slide the budget and watch the maps fill. Choose a word to follow it everywhere."]
    mark, label = c.marks[0], text.label(c, chosen.a)
    one = holders(c, chosen.a, chosen.budget, mark.start, mark.end)
    sentence = f"This is {text.quoted(mark.text, 40)} ({mark.name}) in the text, and here is the map."
    two = holders(c, chosen.b, chosen.budget, mark.start, mark.end) if chosen.b else None
    if one is not None and two is not None and chosen.b:
        other = text.label(c, chosen.b)
        if one.count < two.count:
            sentence += (
                f" At its column {label} is less solid than {other}: {one.count} of {one.total} "
                f"heads hold all of it against {two.count}."
            )
        else:
            words = "both hold it about equally" if one.count == two.count else "more hold it in A"
            sentence += f" {one.count} of {one.total} heads of {label}, {two.count} of {other}: {words}."
    return [
        sentence,
        "Slide the budget. Watch the column fill. At which size does "
        f"{label} hold {mark.name} in half of its heads?",
    ]


def _last(c: Any) -> str:
    tried = c.story.experiment
    if tried:
        return f"Was that the reason? Here it was pinned and the answer decoded again: {tried.sentence}"
    return "What was kept and what was answered are facts of one run. Now try it on your own text."


def _short(answer: str, limit: int = 80) -> str:
    return f"“{text.shortened(answer, limit)}”"
