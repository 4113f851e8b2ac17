"""The finding in words: at most three sentences of the run, and one on settings that differ.

Slots in order: the answers, how settings differ, what had to be put back (where it is known), who holds the
mark, the effect (or the places, where the run has them). The words say what was kept and what was answered,
never that one caused the other; only what was put back by trial is said to return an answer.

An example that repeats its question with the needle at several places has the outcome in its story.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeGuard

import numpy as np

from kvviz.engine.ask import Ask
from kvviz.results import words as text
from kvviz.results.cause_words import causes_of, rescue_sentence, would_do_sentence
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.marks import Holders, group_holders, groups
from kvviz.results.measures import kl_of
from kvviz.results.same import settings_apart
from kvviz.results.verdict import answer_part, judge, verdict
from kvviz.results.words import span_names
from kvviz.types import QUESTION_AWARE, complete

MOST_LINES = 3
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def finding(
    c: Comparison,
    a: str,
    b: str | None,
    k: float | int,
    expected: str | None = None,
) -> list[str]:
    """At most three sentences about methods `a` and `b` (or None) at budget `k`; a fourth, the second, where
    what the answers show is not their formulas alone."""
    expected = c.expected if expected is None else expected
    methods = [a] if b is None else [a, b]
    chosen = [m for m in methods if m != FOUND]  # what a search found has its own size, not the budget
    answers, settings = _answers(c, chosen, k, expected) if chosen else ("", "")
    lines = [
        answers,
        would_do_sentence(c) if FOUND in methods else "",
        _rescued(c, chosen, k),
        _marks(c, methods, k, expected),
        (_places(c, chosen, k) or _effect(c, chosen, k, expected)) if chosen else "",
    ]
    said = [line for line in lines if line][:MOST_LINES]
    return [*said[:1], settings, *said[1:]] if settings else said


def _rescued(c: Comparison, methods: list[str], k: float | int) -> str:
    """What had to be put back, where it was searched: the strongest thing a run can say."""
    known = [found for method in methods if (found := causes_of(c, method, k)) is not None]
    return " ".join(filter(None, (rescue_sentence(c, found) for found in known)))


def caution(c: Comparison, methods: Sequence[str], k: float | int) -> str:
    """What the finding cannot say: one document, one question, and what later tokens may carry."""
    ask = Ask.of_settings(c.settings)
    aware = c.prompt.protocol == QUESTION_AWARE
    said = []
    if any(_evicted(c, method, k) for method in methods):
        if aware:
            said.append(
                "Later tokens were read while everything was still there, so they may carry part of what "
                "was dropped."
            )
        else:
            readers = [text.label(c, m) for m in methods if _reads_window(c, m)]
            if readers:
                verb = "reads" if len(readers) == 1 else "read"
                names = text.span_names(readers)
                said.append(f"The question comes later: {names} {verb} the end of the document instead.")
    if aware:
        said.append("The question was known while compressing: this cache serves this one question.")
    words = ["One document", "one question", text.isolated(c.model.id), c.prompt.protocol, ask.decoding]
    if ask.evict_every:
        words.append(f"evicting again every {text.count(ask.evict_every)} tokens while writing")
    return " ".join([*said, ", ".join(words) + "."])


def _evicted(c: Comparison, method: str, k: float | int) -> bool:
    """Did the method drop anything at this budget? True where that is not known."""
    point = c.at(method, k)
    return point is None or bool(c.evicted(point).any())


def _reads_window(c: Comparison, method: str) -> bool:
    options = next((v.options for v in c.variants if v.method == method), {})
    return bool(options.get("window"))


def notices(c: Comparison, methods: Sequence[str], k: float | int) -> list[str]:
    """What was known without the text, equal kept sets, limits reached at this budget: a sentence each."""
    said = [sentence for sentence in (_known_before(c), _equal_sets(c, methods, k)) if sentence]
    for method in methods:
        label = text.label(c, method)
        point = c.at(method, k)
        if point is None:
            continue
        if not c.evicted(point).any():
            said.append(f"{label} kept everything at this budget: nothing was evicted.")
            continue
        mask, protected = point.kept.mask(), point.kept.protected()
        start, end = c.prompt.document_span
        end = min(end, c.n)
        # A sliding window that has left the whole document behind is not this method's doing.
        reach = mask[c.window_starts() < end][:, :, start:end]
        empty = int((~reach.any(axis=-1)).sum()) if start < end else 0
        if empty:
            heads = "1 head" if empty == 1 else f"{text.count(empty)} heads"
            said.append(f"In {heads} {label} kept no entry of the document.")
        if not (mask & ~protected).any():
            name = text.budget_name(k)
            said.append(f"At {name}, {label} can keep only its protected tokens.")
    return said


def _known_before(c: Comparison) -> str:
    """The expected answer is right but stands nowhere in the document."""
    if not _has_expected(c.expected) or c.marks or judge(c.full, c.expected) != "right":
        return ""
    if _stands_in(c.prompt.document, c.expected):
        return ""
    quoted = text.quoted(c.expected)
    return f"{quoted} does not occur in the document: the model may have known it, whatever was evicted."


@lru_cache(maxsize=8)
def _stands_in(document: str, expected: str) -> bool:
    return verdict(document, expected) == "right"


def _equal_sets(c: Comparison, methods: Sequence[str], k: float | int) -> str:
    """Two methods that keep the same entries are one method at this budget."""
    if len(methods) != 2 or not all(_evicted(c, m, k) for m in methods):
        return ""
    points = complete(c.at(method, k) for method in methods)
    if points is None or not np.array_equal(points[0].kept.bits, points[1].kept.bits):
        return ""
    names = text.span_names([text.label(c, m) for m in methods])
    return f"{names} keep the very same entries at {text.budget_name(k)}: they are one method here."


def _has_expected(expected: str | None) -> TypeGuard[str]:
    return bool(expected and expected.strip())


def _answers(
    c: Comparison, methods: list[str], k: float | int, expected: str | None
) -> tuple[str, str]:
    """What the answers show, and how the settings of the two methods differ."""
    variants = [c.variant(method, k) for method in methods]
    cut = _cut_off(c, variants)
    if cut:
        return cut, ""
    if _has_expected(expected) and judge(c.full, expected) == "wrong":
        return _full_misses(c, methods, variants, k, expected), ""
    answers = complete(variants)
    if answers is None:
        return f"Answers at {text.budget_name(k)} are not decoded yet.", ""
    said = (
        _against_expected(c, methods, answers, k, expected)
        if _has_expected(expected)
        else "; ".join(_against_full(c, v) for v in answers) + "."
    )
    return said, settings_apart(c, answers)


def _cut_off(c: Comparison, variants: Sequence[Variant | None]) -> str:
    """Answers that were cut off, by Stop or in the middle of a thought, show no finding."""
    if c.full.finished == "cancelled":
        return (
            "This run was stopped before the full cache's answer was complete: nothing is compared with it."
        )
    if answer_part(c.full.text) is None:
        return "The full cache's answer was cut off while thinking: nothing is compared with it."
    thinking = [f"{text.label(c, v.method)}'s" for v in variants if v and answer_part(v.text) is None]
    if thinking:
        answers = "answer was" if len(thinking) == 1 else "answers were"
        return f"{text.span_names(thinking)} {answers} cut off while thinking: a longer answer may tell."
    cut = [f"{text.label(c, v.method)}'s" for v in variants if v is not None and v.finished == "cancelled"]
    if not cut:
        return ""
    answers = "answer was" if len(cut) == 1 else "answers were"
    return f"This run was stopped before {text.span_names(cut)} {answers} complete."


def _full_misses(
    c: Comparison, methods: list[str], variants: list[Variant | None], k: float | int, expected: str
) -> str:
    said = (
        "With the full cache the model already misses the expected answer, so this run cannot "
        "show who loses it."
    )
    if c.full.finished == "length":
        said += f" (It was cut at {text.count(len(c.full.token_ids))} tokens: a longer answer may reach it.)"
    answers = complete(variants)
    if answers is None:
        return f"{said} Answers at {text.budget_name(k)} are not decoded yet."
    means = complete(kl_of(c, v) for v in answers)
    if means is not None:
        values = [f"{text.label(c, m)} {text.kl_number(x)}" for m, x in zip(methods, means)]
        said += f" Compare the change instead: KL {', '.join(values)} nats/token."
    lucky = [m for m, v in zip(methods, answers) if judge(v, expected) == "right"]
    if lucky:
        names = span_names([text.label(c, m) for m in lucky])
        verb = "contains" if len(lucky) == 1 else "contain"
        said += f" {names} {verb} it although the full cache does not: treat as chance."
    return said


def _against_expected(
    c: Comparison, methods: list[str], variants: list[Variant], k: float | int, expected: str
) -> str:
    name, quoted = text.budget_name(k), text.quoted(expected)
    has = [judge(v, expected) == "right" for v in variants]
    labels = [text.label(c, m) for m in methods]
    if all(has):
        smallest = [f"{label} {_smallest(c, method, expected)}" for label, method in zip(labels, methods)]
        who = "both answers contain" if len(methods) == 2 else f"{labels[0]}'s answer contains"
        return f"At {name}, {who} {quoted}. Smallest budget decoded that still does: {', '.join(smallest)}."
    again = "".join(_again(c, m, k, expected) for m, found in zip(methods, has) if not found)
    if not any(has):
        if len(methods) == 2:
            return f"At {name}, neither answer contains {quoted}.{again}"
        return f"At {name} kept, {labels[0]}'s answer no longer contains {quoted}.{again}"
    lost, kept_it = (0, 1) if has[1] else (1, 0)
    return (
        f"At {name} kept, {labels[lost]}'s answer no longer contains {quoted}; "
        f"{labels[kept_it]}'s still does.{again}"
    )


def _by_answer(c: Comparison, method: str, expected: str) -> tuple[list, list]:
    """Decoded budgets whose answer contains it, and those whose answer does not, largest first."""
    answers = [v for v in c.variants if v.method == method and v.finished != "cancelled"]
    answers.sort(key=lambda v: -c.share(v.budget))
    has = [v.budget for v in answers if judge(v, expected) == "right"]
    return has, [v.budget for v in answers if v.budget not in has]


def _names(c: Comparison, budgets: Sequence[float | int]) -> str:
    return text.span_names([text.budget_name(b) for b in budgets])


def _smallest(c: Comparison, method: str, expected: str) -> str:
    """ "5%", or "2% (lost at 20% and 10%)" where larger budgets lose what a smaller one keeps."""
    has, lacks = _by_answer(c, method, expected)
    lost = [b for b in lacks if c.share(b) > c.share(has[-1])]
    said = text.budget_name(has[-1])
    return f"{said} (lost at {_names(c, lost)})" if lost else said


def _again(c: Comparison, method: str, k: float | int, expected: str) -> str:
    """ " SnapKV's does at 2% again." where a smaller budget has what this one lost."""
    smaller = [b for b in _by_answer(c, method, expected)[0] if c.share(b) < c.share(k)]
    return f" {text.label(c, method)}'s does again at {_names(c, smaller)}." if smaller else ""


def _against_full(c: Comparison, v: Variant) -> str:
    label, at = text.label(c, v.method), v.first_difference
    if c.prompt.protocol == QUESTION_AWARE and at is None and len(c.full.token_ids) == 1:
        return f"{label}'s answer is one token, which was chosen before anything was evicted"
    if at is None:
        return f"{label} gives the full cache's answer token for token"
    before = "".join(c.full.tokens[:at]).strip()
    if at >= len(v.tokens):
        return f"{label}'s answer ends after {_ending(before)}, where the full cache's goes on"
    if at >= len(c.full.tokens):
        return f"{label}'s answer goes on where the full cache's ends"
    if not before:
        return f"{label}'s answer goes another way from its first word"
    return f"{label}'s answer goes another way after {_ending(before)}"


def _ending(words: str, limit: int = 40) -> str:
    """The last words of a piece of text, quoted."""
    words = " ".join(words.split())
    return text.quoted(words if len(words) <= limit else "…" + words[-limit:].lstrip())


def _marks(c: Comparison, methods: list[str], k: float | int, expected: str | None) -> str:
    found = groups(c)
    if not found:
        return _overlap(c, methods, k)
    marks = next(iter(found.values()))
    held = complete(group_holders(c, method, k, marks) for method in methods)
    if held is None:
        return ""
    names, quoted = [m.name for m in marks], text.quoted(marks[0].text, 40)
    what = (
        f"all of {quoted} ({names[0]})" if len(names) == 1 else f"{quoted} at {text.span_names(names, 'or')}"
    )
    first, *rest = held
    said = f"{text.label(c, methods[0])} holds {what} in {text.count(first.count)} of "
    said += f"{text.count(first.total)} KV heads"
    said += "".join(f", {text.label(c, m)} in {text.count(h.count)}" for m, h in zip(methods[1:], rest))
    return f"{said}.{_held_and_answered(c, methods, held, k, expected)}"


def _held_and_answered(
    c: Comparison, methods: list[str], held: list[Holders], k: float | int, expected: str | None
) -> str:
    """What stands out when the marks held are put beside the answers; "" where nothing does."""
    variants = [c.variant(method, k) for method in methods]
    if judge(c.full, expected) != "right" or _cut_off(c, variants):
        return ""
    said: dict[str, list[str]] = {}
    for method, h, v in zip(methods, held, variants):
        if v is None:
            continue
        has = judge(v, expected) == "right"
        sentence = ""
        if not has and 2 * h.count >= h.total:
            sentence = "Most heads still hold it; the answer changed all the same."
        elif has and h.count == 0:
            sentence = "No head holds all of it; other tokens may carry the answer."
        if sentence:
            said.setdefault(sentence, []).append(text.label(c, method))
    parts = []
    for sentence, labels in said.items():
        # The sentences name no method: say whose they are unless they hold for all shown.
        alone = len(labels) < len(methods)
        parts.append(f" {labels[0]}: {sentence}" if alone else f" {sentence}")
    return "".join(parts)


def _overlap(c: Comparison, methods: list[str], k: float | int) -> str:
    points = complete(c.at(method, k) for method in methods)
    if points is None or len(points) < 2:
        return ""
    shared = points[0].kept.overlap(points[1].kept)
    return f"The two kept sets share {text.share(shared)} of their entries."


def _effect(c: Comparison, methods: list[str], k: float | int, expected: str | None) -> str:
    variants = complete(c.variant(method, k) for method in methods)
    if variants is None or _cut_off(c, variants):
        return ""
    if _has_expected(expected) and judge(c.full, expected) == "wrong":
        return ""  # the first sentence has the figures already
    means = complete(kl_of(c, v) for v in variants)
    if means is None:
        return ""
    if len(means) == 1:
        return f"Mean KL {text.kl(means[0])}."
    x, y = means
    if abs(x - y) < 0.1 * max(x, y) or max(x, y) < 0.001:
        return f"Mean KL about the same: {text.kl_number(x)} and {text.kl(y)}."
    return f"Mean KL {text.kl_number(x)} against {text.kl(y)}."


def _places(c: Comparison, methods: list[str], k: float | int) -> str:
    places = c.story.places
    rows = complete(places.at(method, c.share(k)) for method in methods) if places else None
    if places is None or rows is None:
        return ""
    here = dict(zip(methods, rows))
    total = len(here[methods[0]])
    number = _NUMBERS[total] if total < len(_NUMBERS) else str(total)
    listed = ", ".join(
        f"{text.label(c, m)} {sum(h)}" + (f" of {total}" if m == methods[0] else "") for m, h in here.items()
    )
    said = f"{places.what} at {number} places: {listed}."
    said += " Too few to rank methods."
    for method in methods:
        n = sum(here[method])
        larger = [(s, sum(f)) for s, f in places.found[method].items() if s > c.share(k) and sum(f) < n]
        if larger:
            share, fewer = min(larger)
            said += (
                f" {text.label(c, method)} finds {n} at {text.budget_name(k)} and fewer ({fewer}) "
                f"at {text.budget_share(share)}: single answers are noisy."
            )
    return said
