"""Texts of an asked length: as many units as fit, met within 2%, with every hidden sentence in place."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvviz.errors import InputError
from kvviz.evaluate.items import Item
from kvviz.evaluate.needles import TOLERANCE

MIN_TOKENS = 100
MAX_TOKENS = 1_000_000
MAX_COUNT = 10_000
TRIES = 100  # draws of an item, until its length is met and what it hides stands there once


@dataclass(frozen=True)
class Sample:
    """A generated text before it is an item.

    cue     how RULER lets the answer begin.
    hidden  sentences that must stand in the document once each, verbatim, also after tokenising.
    tokens  of document and question, once counted.
    """

    document: str
    question: str
    answers: tuple[str, ...]
    cue: str = ""
    hidden: tuple[str, ...] = ()
    tokens: int = 0

    def item(self, id: str, task: str, metric: str = "contains_all", **meta: Any) -> Item:
        known = {"tokens": self.tokens, "cue": self.cue, "needles": list(self.hidden), **meta}
        if len(self.hidden) == 1:
            known["depth"] = round(self.document.index(self.hidden[0]) / len(self.document), 3)
        return Item(id, task, self.document, self.question, self.answers, metric, known)


def check_size(tokens: int, count: int, seed: int) -> None:
    """InputError where a task cannot be made of these numbers."""
    for name, value, low, high in (
        ("length in tokens", tokens, MIN_TOKENS, MAX_TOKENS),
        ("number of items", count, 1, MAX_COUNT),
        ("seed", seed, 0, 2**63 - 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(f"The {name} is a whole number from {low:,} to {high:,}, not {value!r}.")


def fit(
    build: Callable[[int, random.Random], Sample],
    tokenizer: Any,
    tokens: int,
    seed: str,
    smallest: int = 1,
    filler: str = "",
) -> Sample:
    """The sample of as many units as come to at most `tokens`, or of one more, within 2% of them.

    build   makes the sample of a number of units from a random generator; more units are more tokens.
    filler  sentences that may be added to the document, as many as fit, where units are coarse.

    Drawn again, up to 100 times, where the length is missed or a hidden sentence does not stand there once.
    Raises InputError where no draw meets it.
    """
    lengths = []
    for attempt in range(TRIES):
        def make(units: int, attempt: int = attempt) -> Sample:
            return build(units, random.Random(f"{seed}/{attempt}"))

        units = _most(lambda u: _tokens(tokenizer, make(u)) <= tokens, smallest, tokens)
        if units is None:
            lengths.append(_tokens(tokenizer, make(smallest)))
            continue
        for sample in (_filled(make(units), filler, tokenizer, tokens), _counted(make(units + 1), tokenizer)):
            lengths.append(sample.tokens)
            if abs(sample.tokens - tokens) <= TOLERANCE * tokens and stands_once(sample, tokenizer):
                return sample
    near = min(lengths, key=lambda length: abs(length - tokens))
    raise InputError(
        f"No text of this task comes within {TOLERANCE:.0%} of {tokens:,} tokens with what it hides whole; "
        f"the nearest has {near:,}. Ask for another length."
    )


def stands_once(sample: Sample, tokenizer: Any) -> bool:
    """Does every hidden sentence stand in the document exactly once, before and after tokenising?"""
    ids = tokenizer.encode(sample.document, add_special_tokens=False)
    read = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return all(text.count(hidden) == 1 for hidden in sample.hidden for text in (sample.document, read))


def _filled(sample: Sample, filler: str, tokenizer: Any, tokens: int) -> Sample:
    """The sample with as many sentences of `filler` at its end as fit."""
    best = _counted(sample, tokenizer)
    sentences = re.split(r"(?<=\.)\s+", filler) if filler else []
    for number in range(1, len(sentences) + 1):
        longer = replace(sample, document=f"{sample.document}\n{' '.join(sentences[:number])}")
        length = _tokens(tokenizer, longer)
        if length > tokens:
            break
        best = replace(longer, tokens=length)
    return best


def _counted(sample: Sample, tokenizer: Any) -> Sample:
    return replace(sample, tokens=_tokens(tokenizer, sample))


def _most(fits: Callable[[int], bool], smallest: int, largest: int) -> int | None:
    """The most units that fit, by doubling and then halving; None where even the smallest do not."""
    if not fits(smallest):
        return None
    low, high = smallest, smallest + 1
    while high <= largest and fits(high):
        low, high = high, 2 * high
    high = min(high, largest + 1)  # a unit is a token at least
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _tokens(tokenizer: Any, sample: Sample) -> int:
    return len(tokenizer.encode(f"{sample.document}\n{sample.question}", add_special_tokens=False))
