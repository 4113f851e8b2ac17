"""How right is an answer to an item? A metric gives a score from 0 to 1, and from it comes the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from kvviz.errors import InputError
from kvviz.evaluate.items import Item
from kvviz.results.measures import token_f1
from kvviz.results.verdict import answer_part, contains_expected


@dataclass(frozen=True)
class Metric:
    """A way to hold an answer against an item's right answers.

    of      of(answer, item) -> 0 to 1; it sees all right answers and takes the best, or counts how many are
            there, as its benchmark does.
    graded  scores between 0 and 1 are usual and a full 1 is not needed to be right (F1, ROUGE): an answer
            is then also right where it contains a right answer.
    """

    id: str
    of: Callable[[str, Item], float]
    graded: bool = False


def best(pair: Callable[[str, str], float]) -> Callable[[str, Item], float]:
    """A metric of an item from one of an answer and a single right answer: the best counts."""
    return lambda text, item: max(pair(text, answer) for answer in item.answers)


# `kvviz.evaluate.metrics` adds the benchmarks' own.
METRICS = {
    metric.id: metric
    for metric in (
        Metric("contains", best(lambda text, answer: float(contains_expected(text, answer)))),
        Metric("f1", best(token_f1), graded=True),
    )
}


def metric_of(item: Item) -> Metric:
    """The metric of an item; InputError where there is none of that name."""
    if item.metric not in METRICS:
        import_module("kvviz.evaluate.metrics")
    if item.metric not in METRICS:
        raise InputError(
            f"The item {item.id} asks for the metric {item.metric!r}. Choose from: {', '.join(METRICS)}."
        )
    return METRICS[item.metric]


def judged(item: Item, text: str) -> tuple[str, float | None]:
    """("right", "wrong" or "", score from 0 to 1 or None) of an answer, thoughts left out.

    Without right answers, and where the model was cut off while it was thinking, there is neither.
    """
    answer = answer_part(text)
    if not item.answers or answer is None:
        return "", None
    metric = metric_of(item)
    score = float(metric.of(answer, item))
    right = score >= 1 or (metric.graded and any(contains_expected(answer, a) for a in item.answers))
    return "right" if right else "wrong", score
