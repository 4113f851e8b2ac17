"""The finding in words: at most three sentences, each computed from the run.

Slots in order: the answers, who holds the mark, the effect (or the places, where the run has
them). The words say what was kept and what was answered, never that one caused the other.

An example that repeats its question with the needle at several places stores the outcome in
`settings["places"]`: {"what": "Code", "found": {method: {share: [found at place 1, ...]}}}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvviz.engine.ask import Ask
from kvviz.results import words as text
from kvviz.results.answers import first_difference, verdict
from kvviz.results.comparison import Comparison, mean_kl
from kvviz.results.kept import head_counts, jaccard, kept, packed, window_starts
from kvviz.results.marks import group_holders, groups
from kvviz.results.words import span_names
from kvviz.types import QUESTION_AWARE, Variant

END = "end of the answer"
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def finding(
    c: Comparison,
    a: str,
    b: str | None,
    k: float | int,
    expected: str | None = None,
    places: Mapping[str, Any] | None = None,
) -> list[str]:
    """At most three sentences about methods `a` and `b` (or None) at budget `k`."""
    expected = c.expected if expected is None else expected
    places = c.settings.get("places") if places is None else places
    methods = [a] if b is None else [a, b]
    lines = [
        _answers(c, methods, k, expected),
        _marks(c, methods, k, expected),
        _places(c, methods, k, places) or _effect(c, methods, k, expected),
    ]
    return [line for line in lines if line]


def caution(c: Comparison, a: str) -> str:
    """What the finding cannot say: one document, one question, and what later tokens may carry."""
    decoding = Ask.of_settings(c.settings).decoding
    words = f"One document, one question, {c.model.id}, {c.prompt.protocol}, {decoding}."
    if c.prompt.protocol == QUESTION_AWARE:
        return (
            "Later tokens were read while everything was still there, so they may carry part of "
            f"what was dropped. {words}"
        )
    return words


def notices(c: Comparison, methods: Sequence[str], k: float | int) -> list[str]:
    """Limits reached at this budget, one sentence each."""
    said = []
    for method in methods:
        label = text.label(c, method)
        counts, full = head_counts(c, method, k), head_counts(c, "full", 1.0)
        if counts is None:
            continue
        if (counts == full).all():
            said.append(f"{label} kept everything at this budget: nothing was evicted.")
            continue
        mask, protected = kept(c, method, k), c.protected(method, k)
        start, end = c.prompt.document_span
        end = min(end, c.n)
        # A sliding window that has left the whole document behind is not this method's doing.
        reach = mask[window_starts(c) < end][:, :, start:end]
        empty = int((~reach.any(axis=-1)).sum()) if start < end else 0
        if empty:
            heads = "1 head" if empty == 1 else f"{text.count(empty)} heads"
            said.append(f"In {heads} {label} kept no entry of the document.")
        if protected is not None and not (mask & ~protected).any():
            name = text.budget_name(c, k)
            said.append(f"At {name}, {label} can keep only its protected tokens.")
    return said


def _quoted(expected: str) -> str:
    """The expected answer in a sentence: on one line, not endless."""
    return f"'{text.shortened(expected, 60)}'"


def _has_expected(expected: str | None) -> bool:
    return bool(expected and expected.strip())


def _answers(c: Comparison, methods: list[str], k, expected: str | None) -> str:
    variants = [c.variant(method, k) for method in methods]
    decoded = all(v is not None for v in variants)
    if _has_expected(expected) and verdict(c.full.text, expected) == "wrong":
        return _full_misses(c, methods, variants, k, expected)
    if not decoded:
        return f"Answers at {text.budget_name(c, k)} are not decoded yet."
    if _has_expected(expected):
        return _against_expected(c, methods, variants, k, expected)
    return "; ".join(_against_full(c, v) for v in variants) + "."


def _full_misses(c, methods, variants: list[Variant | None], k, expected: str) -> str:
    said = (
        "With the full cache the model already misses the expected answer, so this run cannot "
        "show who loses it."
    )
    if any(v is None for v in variants):
        return f"{said} Answers at {text.budget_name(c, k)} are not decoded yet."
    means = [mean_kl(v.kl, c.prompt.protocol) for v in variants]
    if all(m is not None for m in means):
        values = [f"{text.label(c, m)} {text.kl_number(x)}" for m, x in zip(methods, means)]
        said += f" Compare the change instead: KL {', '.join(values)} nats/token."
    lucky = [m for m, v in zip(methods, variants) if verdict(v.text, expected) == "right"]
    if lucky:
        names = span_names([text.label(c, m) for m in lucky])
        verb = "contains" if len(lucky) == 1 else "contain"
        said += f" {names} {verb} it although the full cache does not: treat as chance."
    return said


def _against_expected(c, methods, variants: list[Variant], k, expected: str) -> str:
    name, quoted = text.budget_name(c, k), _quoted(expected)
    has = [verdict(v.text, expected) == "right" for v in variants]
    labels = [text.label(c, m) for m in methods]
    if all(has):
        smallest = [f"{label} {_smallest(c, method, expected)}" for label, method in zip(labels, methods)]
        who = "both answers contain" if len(methods) == 2 else f"{labels[0]}'s answer contains"
        return f"At {name}, {who} {quoted}. Smallest budget decoded that still does: {', '.join(smallest)}."
    if not any(has):
        if len(methods) == 2:
            return f"At {name}, neither answer contains {quoted}."
        return f"At {name} kept, {labels[0]}'s answer no longer contains {quoted}."
    lost, kept_it = (0, 1) if has[1] else (1, 0)
    return (
        f"At {name} kept, {labels[lost]}'s answer no longer contains {quoted}; "
        f"{labels[kept_it]}'s still does."
    )


def _smallest(c: Comparison, method: str, expected: str) -> str:
    containing = [v.budget for v in c.variants if v.method == method and verdict(v.text, expected) == "right"]
    return text.budget_name(c, min(containing, key=c.share))


def _against_full(c: Comparison, v: Variant) -> str:
    at = first_difference(v, c.full)
    if at is None:
        return f"{text.label(c, v.method)} gives the full cache's answer token for token"
    own, full = _token(v.tokens, at), _token(c.full.tokens, at)
    return f"{text.label(c, v.method)} first differs at token {at} ({own} instead of {full})"


def _token(tokens: list[str], at: int) -> str:
    return f"'{text.plain(tokens[at])}'" if at < len(tokens) else END


def _marks(c: Comparison, methods: list[str], k, expected: str | None) -> str:
    found = groups(c)
    if not found:
        return _overlap(c, methods, k)
    marks = next(iter(found.values()))
    held = [group_holders(c, method, k, marks) for method in methods]
    if any(h is None for h in held):
        return ""
    names = [m.name for m in marks]
    what = f"all of {names[0]}" if len(names) == 1 else f"at least one of {', '.join(names)}"
    first, *rest = held
    said = f"{text.label(c, methods[0])} holds {what} in {text.count(first.count)} of "
    said += f"{text.count(first.total)} KV heads"
    said += "".join(f", {text.label(c, m)} in {text.count(h.count)}" for m, h in zip(methods[1:], rest))
    return f"{said}.{_held_and_answered(c, methods, held, k, expected)}"


def _held_and_answered(c, methods, held, k, expected: str | None) -> str:
    """What stands out when the marks held are put beside the answers; "" where nothing does."""
    variants = [c.variant(method, k) for method in methods]
    if not _has_expected(expected) or verdict(c.full.text, expected) == "wrong":
        return ""
    said: dict[str, list[str]] = {}
    for method, h, v in zip(methods, held, variants):
        if v is None:
            continue
        has = verdict(v.text, expected) == "right"
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


def _overlap(c: Comparison, methods: list[str], k) -> str:
    masks = [packed(c, method, k) for method in methods]
    if len(masks) < 2 or any(m is None for m in masks):
        return ""
    return f"The two kept sets share {text.share(jaccard(*masks))} of their entries."


def _effect(c: Comparison, methods: list[str], k, expected: str | None) -> str:
    variants = [c.variant(method, k) for method in methods]
    if any(v is None for v in variants):
        return ""
    if _has_expected(expected) and verdict(c.full.text, expected) == "wrong":
        return ""  # the first sentence has the figures already
    means = [mean_kl(v.kl, c.prompt.protocol) for v in variants]
    if any(m is None for m in means):
        return ""
    if len(means) == 1:
        return f"Mean KL {text.kl(means[0])}."
    x, y = means
    if abs(x - y) < 0.1 * max(x, y) or max(x, y) < 0.001:
        return f"Mean KL about the same: {text.kl_number(x)} and {text.kl(y)}."
    return f"Mean KL {text.kl_number(x)} against {text.kl(y)}."


def _places(c: Comparison, methods: list[str], k, places: Mapping[str, Any] | None) -> str:
    if not places:
        return ""
    found = {method: places_found(c, places, method) for method in methods}
    here = {m: _at(f, c.share(k)) for m, f in found.items()}
    if any(h is None for h in here.values()):
        return ""
    total = len(here[methods[0]])
    number = _NUMBERS[total] if total < len(_NUMBERS) else str(total)
    listed = ", ".join(
        f"{text.label(c, m)} {sum(h)}" + (f" of {total}" if m == methods[0] else "") for m, h in here.items()
    )
    said = f"{places.get('what', 'Answer')} at {number} places: {listed}."
    said += " Too few to rank methods."
    for method in methods:
        n = sum(here[method])
        larger = [(s, sum(f)) for s, f in found[method].items() if s > c.share(k) and sum(f) < n]
        if larger:
            share, fewer = min(larger)
            said += (
                f" {text.label(c, method)} finds {n} at {text.budget_name(c, k)} and fewer ({fewer}) "
                f"at {text.budget_share(share)}: single answers are noisy."
            )
    return said


def places_found(c: Comparison, places: Mapping[str, Any], method: str) -> dict[float, list[bool]]:
    """{share: found at each place} of one method (a saved file has turned the shares to text)."""
    rows = places.get("found", {}).get(method, {})
    return {float(share): [bool(x) for x in row] for share, row in rows.items()}


def _at(rows: Mapping[float, list[bool]], share: float) -> list[bool] | None:
    return next((row for s, row in rows.items() if abs(s - share) < 1e-9), None)
