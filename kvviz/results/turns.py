"""Further questions to the caches of a run, and what each of them answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.results.points import Variant
from kvviz.results.verdict import judge
from kvviz.results.words import answer_lines, shortened
from kvviz.types import QUESTION_AGNOSTIC

if TYPE_CHECKING:
    from kvviz.results.comparison import Comparison

CUT_FOR_FIRST = (
    "The caches were cut for the first question: what only this one needs may be gone. Caches that are cut "
    "before any question is known (“The question comes later”) serve all alike."
)


@dataclass(repr=False)
class Turn:
    """A further question and the answers to it.

    fresh      asked of the compressed document alone; otherwise the turns since the last fresh one, and
               without one the first question and answer, stood in each cache.
    input_ids  the tokens that were fed to every cache for it.
    full, variants  as in a `Comparison`, without selections: `kl` is against the full cache's answer, each
               cache after its own earlier answers.
    """

    question: str
    expected: str | None
    fresh: bool
    input_ids: list[int]
    full: Variant
    variants: list[Variant]
    seconds: float = 0.0

    def __repr__(self) -> str:
        """The question and a line an answer."""
        return "\n".join([f"Turn: {shortened(self.question, 80)!r}", *answer_lines(self.full, self.variants)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values but for the answers."""
        names = ("question", "expected", "fresh", "input_ids", "seconds")
        return {name: getattr(self, name) for name in names}

    def answer(self, key: str) -> Variant | None:
        """The answer of the cache "method@budget", or of "full"."""
        return next((v for v in [self.full, *self.variants] if key in (v.key, v.method)), None)


def mean_kl(v: Variant) -> float | None:
    """Mean KL of an answer to a further question, nats a token; every step says something."""
    return None if v.kl is None or not len(v.kl) else float(np.mean(v.kl))


def chain(turns: list[Turn]) -> tuple[bool, list[Turn]]:
    """(whether the run's own question and answer stand before it, the turns that the next one builds on)."""
    fresh = [i for i, turn in enumerate(turns) if turn.fresh]
    return not fresh, turns[fresh[-1] :] if fresh else turns


def words(c: Comparison) -> str:
    """What is to be known before a further question is asked, "" where nothing is."""
    every = c.settings.get("evict_every")
    said = [] if c.prompt.protocol == QUESTION_AGNOSTIC else [CUT_FOR_FIRST]
    if every:
        said.append(f"Each cache goes on being cut every {every} new tokens, over the turns as well.")
    return " ".join(said)


def rows(c: Comparison) -> list[dict[str, Any]]:
    """One row a question and answer, the run's own question as number 0."""
    from kvviz.results.measures import kl_of

    first = [(0, c.prompt.question, c.expected, False, v, kl_of(c, v)) for v in [c.full, *c.variants]]
    later = [
        (i, t.question, t.expected, t.fresh, v, mean_kl(v))
        for i, t in enumerate(c.turns, 1)
        for v in [t.full, *t.variants]
    ]
    return [
        {
            "number": number,
            "question": question,
            "expected": expected,
            "fresh": fresh,
            "method": v.method,
            "label": v.label,
            "budget": v.budget,
            "text": v.text,
            "verdict": judge(v, expected),
            "mean_kl": kl,
            "first_difference": v.first_difference,
        }
        for number, question, expected, fresh, v, kl in [*first, *later]
    ]
