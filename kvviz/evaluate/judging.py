"""How right is an answer to an item? A metric gives a score from 0 to 1, and from it comes the verdict."""

from __future__ import annotations

from kvviz.errors import InputError
from kvviz.evaluate.items import Item
from kvviz.evaluate.metrics import METRICS, Metric, as_scored
from kvviz.results.verdict import answer_part, contains_expected


def metric_of(item: Item) -> Metric:
    """The metric of an item; InputError where there is none of that name."""
    if item.metric not in METRICS:
        raise InputError(
            f"The item {item.id} asks for the metric {item.metric!r}. Choose from: {', '.join(METRICS)}."
        )
    return METRICS[item.metric]


def judged(item: Item, text: str) -> tuple[str, float | None]:
    """("right", "wrong" or "", score from 0 to 1 or None) of an answer, thoughts left out.

    Without right answers, and where the model was cut off while it was thinking, there is neither; a metric
    that does not judge gives a score alone.
    """
    answer = answer_part(text)
    if not item.answers or answer is None:
        return "", None
    metric = metric_of(item)
    answer = as_scored(answer, item)
    score = float(metric.of(answer, item))
    if not metric.judges:
        return "", score
    right = score >= 1 or (metric.graded and any(contains_expected(answer, a) for a in item.answers))
    return "right" if right else "wrong", score
