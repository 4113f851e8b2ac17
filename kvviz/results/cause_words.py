"""What had to be kept, in sentences: each is an experiment's outcome beside its controls."""

from __future__ import annotations

import numpy as np

from kvviz.errors import InputError
from kvviz.results import words as text
from kvviz.results.causes import PUT_BACK, Causes, Effect, Rescue
from kvviz.results.comparison import Comparison

ORDINALS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SHOWN = 5  # strongest units that are named
LEAST = 0.01  # nats: what a unit must reach to be named
DIRECTIONS = {
    "put_back": "put back into what {} kept",
    "taken_out": "taken out of the whole cache",
}
PASSAGES_TOGETHER = 20  # the strongest ones, put back at once where single entries say little
NEAR_TIE = 0.5  # nats of the whole answer: less is turned by next to anything
ADD_UP = "Effects of single heads or passages do not add up."


def causes_of(c: Comparison, method: str, k: float | int) -> Causes | None:
    """What was found for this answer, None where nothing was searched."""
    v = c.variant(method, k)
    return None if v is None else c.causes.get(v.key)


def need_causes(c: Comparison, method: str, k: float | int) -> Causes:
    """`causes_of`, or an InputError that names the answers whose causes are known."""
    found = causes_of(c, method, k)
    if found is not None:
        return found
    name = f"{text.label(c, method)} at {text.budget_name(k)}"
    known = [f"{text.label(c, m)} at {text.budget_name(b)}" for m, b in known_answers(c)]
    said = f" Known here: {text.span_names(known)}." if known else ""
    raise InputError(f"What {name} lost was not put back to see what it did.{said}")


def known_answers(c: Comparison) -> list[tuple[str, float | int]]:
    """(method, budget) of every answer whose causes were searched."""
    return [(v.method, v.budget) for v in c.variants if v.key in c.causes]


def number(value: int) -> str:
    """ "three" up to ten, "1,024" beyond."""
    return ORDINALS[value] if 0 <= value < len(ORDINALS) else text.count(value)


def _many(value: int, word: str) -> str:
    return f"{number(value)} {word}{'' if value == 1 else 's'}"


def gap_sentence(c: Comparison, found: Causes) -> str:
    """How much there is to return."""
    name = f"{text.label(c, found.method)} at {text.budget_name(found.budget)}"
    tokens = "token" if len(found.tokens) == 1 else f"{text.count(len(found.tokens))} tokens"
    return (
        f"{name} makes the {tokens} of the full cache's answer {text.nats(found.gap)} less likely: "
        "so much could come back."
    )


def where_words(rescue: Rescue) -> str:
    """ "three tokens in one head"."""
    tokens = len({token for _, _, token in rescue.entries})
    heads = len({(layer, head) for layer, head, _ in rescue.entries})
    return f"{_many(tokens, 'token')} in {_many(heads, 'head')}"


def rescue_sentence(c: Comparison, found: Causes) -> str:
    """The fewest entries that return the answer, beside random sets of that size; "" where none are known."""
    rescue = found.rescue
    if rescue is None or not rescue.entries:
        return ""
    entries, random = len(rescue.entries), rescue.controls.added
    said = (
        f"Putting {text.count(entries)} of {text.count(rescue.of)} entries back into "
        f"{text.label(c, found.method)}'s cache ({where_words(rescue)}) returns the answer"
    )
    if rescue.stopped:
        return f"{said}; the search was stopped before random sets of that size were tried."
    do = "does" if sum(random) == 1 else "do"
    said += f"; {sum(random)} of {len(random)} random sets of that size {do}."
    if all(random):
        said += " So this does not single them out."
    return said


def spread_sentence(found: Causes, entries: int, together: float) -> str:
    """Why no small rescue was found: `entries` return the answer, and together is what the strongest passages
    return, nats."""
    said = f"No small set was found: {text.count(entries)} entries return the answer. "
    if found.gap < NEAR_TIE:
        gap = text.nats(found.gap)
        said += f"The gap is only {gap}: at such a near tie many sets of entries turn the answer."
    else:
        said += (
            f"The loss is spread over the text: the {PASSAGES_TOGETHER} strongest passages put back together "
            f"return {text.nats(together)} of {text.nats(found.gap)}."
        )
    if found.expected_gap is None:
        said += (
            f" All {text.count(len(found.tokens))} tokens of the answer must come back: fewer of them, or an "
            "expected answer, ask for less."
        )
    return said


def rescue_details(found: Causes) -> list[str]:
    """What else was checked of a rescue: each entry alone, and the same size of the cache."""
    rescue = found.rescue
    if rescue is None or not rescue.entries:
        return []
    spared = len(rescue.necessary) - sum(rescue.necessary)
    if rescue.minimal:
        first = "None of them can be spared: without any one of them the answer is lost again."
    elif spared < len(rescue.necessary):
        first = f"{_many(spared, 'entry').replace('entrys', 'entries').capitalize()} could be spared alone."
    else:
        first = "The search ended before it was known which of them can be spared."
    if rescue.stopped:
        return [first]
    verb = "still returns" if rescue.same_size else "does not return"
    swapped = rescue.controls.same_size
    second = (
        f"At the same size of the cache (as many of the head's worst-scored entries leave) the set {verb} "
        f"the answer; {sum(swapped)} of {len(swapped)} random sets do."
    )
    return [first, second]


def would_do_sentence(c: Comparison) -> str:
    """The smallest cache found that gives the answer, and how far the search went."""
    would = c.would_do
    if would is None:
        return ""
    whole = int(c.whole.kept.counts().sum())
    said = (
        f"A cache of {text.count(would.entries)} of {text.count(whole)} entries "
        f"({text.share(would.entries / whole)}, {text.mb(would.bytes)}) gives the full cache's answer, "
        "found by search: "
    )
    ended = "no entry of it can be spared alone" if would.minimal else (
        f"the search ended at its limit of {text.count(would.most)} trials"
    )  # fmt: skip
    return f"{said}{ended}. A smaller one may exist."


def held_shares(c: Comparison, mask: np.ndarray, k: float | int) -> dict[str, float]:
    """{method: share of these entries (bool [L, Hkv, n]) that it holds at budget k}."""
    points = {method: c.at(method, k) for method in c.methods}
    total = max(1, int(mask.sum()))
    return {m: float((p.kept.mask() & mask).sum()) / total for m, p in points.items() if p is not None}


def unit_words(c: Comparison, e: Effect) -> str:
    """ "layer 18, KV head 2", "“The code of the door is 58213.”", "question"."""
    parts = [text.place(e.layer, e.head, e.token)] if e.layer is not None or e.token is not None else []
    if e.passage is not None:
        own = e.passage.kind == "document"
        parts.append(text.quoted(e.passage.text, 90) if own else f"the {e.passage.kind}")
    return ", ".join(parts)


def effect_words(e: Effect, direction: str) -> str:
    """ "7.7 nats returned (937 entries)", "less likely by 0.1 nats", "nothing was lost there"."""
    if not e.entries:
        return "nothing was lost there" if direction == PUT_BACK else "nothing is there"
    forth, back = ("returned", "taken away") if direction == PUT_BACK else ("lost", "gained")
    said = text.nats(abs(e.effect))
    entries = "1 entry" if e.entries == 1 else f"{text.count(e.entries)} entries"
    return f"{said} {forth if e.effect >= 0 or abs(e.effect) < LEAST else back} ({entries})"


def strongest(found: Causes, direction: str, unit: str) -> list[Effect]:
    """The few units that did most, strongest first; those that did next to nothing are left out."""
    rows = [e for e in found.of(direction, unit) if e.effect >= LEAST]
    return sorted(rows, key=lambda e: -e.effect)[:SHOWN]
