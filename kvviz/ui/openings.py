"""Where the page opens on a run whose maker did not say."""

from __future__ import annotations

from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening
from kvviz.results.verdict import judge


def opening(c: Comparison) -> Opening:
    """A, B, budget and tokens: where right and wrong part if they do, else the first two methods.

    Among cases where one method's answer holds the expected words and another's lacks them, the
    largest budget is taken: the least eviction that already makes a difference.
    """
    tok = (c.marks[0].start, c.marks[0].end) if c.marks else None
    if judge(c.full, c.expected) == "right":
        for budget in c.budgets:
            judged = {
                v.method: judge(v, c.expected) for v in c.variants if v.budget == budget
            }
            wrong = [m for m in c.methods if judged.get(m) == "wrong"]
            right = [m for m in c.methods if judged.get(m) == "right"]
            if wrong and right:
                return Opening(wrong[0], right[0], c.share(budget), tok)
    methods = c.methods
    middle = c.budgets[len(c.budgets) // 2] if c.budgets else 1.0
    b = methods[1] if len(methods) > 1 else None
    return Opening(methods[0], b, c.share(middle), tok)
