"""Lost it, or went another way? How near each cache came to the expected answer, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvviz.results import words as text
from kvviz.results.comparison import FULL, Comparison
from kvviz.results.fork import Fork
from kvviz.results.verdict import contains_expected
from kvviz.types import QUESTION_AWARE

NEAR = 10  # a token among so many likeliest was not lost


def expected_steps(tokens: Sequence[str], expected: str | None) -> range:
    """The tokens of an answer that write the expected one: the shortest stretch; empty where none do."""
    expected = expected or ""
    if not expected.strip() or not contains_expected("".join(tokens), expected):
        return range(0)
    has = lambda first, last: contains_expected("".join(tokens[first : last + 1]) + " ", expected)  # noqa: E731
    last = next(i for i in range(len(tokens)) if has(0, i))
    return range(max(i for i in range(last + 1) if has(i, last)), last + 1)


def near_words(c: Comparison, fork: Fork, key: str, label: str) -> str:
    """ "SnapKV went another way: “13” is its 2nd choice (31%)." or "… lost it: …", of the worst token of the
    expected answer where one is given, else of the token at which it parts from the full cache."""
    path, steps = fork.paths[key], expected_steps(fork.tokens, c.expected)
    parts = fork.parts[key]
    if not steps:
        if parts is None or parts >= len(path.expected):
            return f"{label} writes the full cache's answer."
        steps = range(parts, parts + 1)
    worst = max(steps, key=lambda i: path.expected[i][1])
    share, rank = path.expected[worst]
    token = text.quoted(text.plain(fork.tokens[worst]).replace("·", " "))
    if rank == 1:
        if parts is None:
            return f"{label} writes the full cache's answer."
        return f"{label} would have written it: led that far, every token of it is its first choice."
    said = f"{token} is its {ordinal(rank)} choice ({text.share(share)})"
    how = "went another way" if rank <= NEAR else "lost it"
    return f"{label} {how}: led that far, {said}."


def ordinal(number: int) -> str:
    """ "2nd", "1,204th"."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{text.count(number)}{ending}"


def looked_words(c: Comparison, step: int, answers: Sequence[tuple[str, str]], layer=None, head=None) -> str:
    """ "“58”: 38% of what this token looked at is gone in SnapKV, 4% in DropKV (of the text alone: …)."

    answers  (label, key) of the kept sets, those that are not known left out.
    """
    seen = c.answer_attention
    known = [] if seen is None else [(label, key) for label, key in answers if key in seen.keys]
    if seen is None or not known:
        return ""
    gone = [(label, seen.gone(key, layer, head)[step], seen.gone_document(key, layer, head)[step])
            for label, key in known]  # fmt: skip
    (first, share, _), rest = gone[0], gone[1:]
    token = text.quoted(c.full.tokens[step].strip() or text.plain(c.full.tokens[step]))
    said = f"{token}: {text.share(float(share))} of what this token looked at is gone in {first}"
    said += "".join(f", {text.share(float(s))} in {label}" for label, s, _ in rest)
    own = ", ".join(text.share(float(x)) for _, _, x in gone)
    first_step = step == 0 and c.prompt.protocol == QUESTION_AWARE
    early = " It was chosen before anything was evicted." if first_step else ""
    return f"{said} (of the text alone: {own}).{early}"


def path_rows(fork: Fork, key: str) -> dict[str, Any]:
    """One path as plain values for the page: [token, [[likely token, probability], ...]] a step."""
    path = fork.paths[key]
    return {
        "text": path.text,
        "steps": [[s.token, [[t, round(p, 6)] for t, p in s.likeliest]] for s in path.steps],
        "near": [[round(p, 6), rank] for p, rank in path.expected],
        "parts": fork.parts[key] if key != FULL else None,
    }
