"""RULER's tasks that track and count: chains of variables, common words, frequent coded words."""

from __future__ import annotations

import math
import random
import string
from dataclasses import replace
from functools import cache
from typing import Any

from kvviz.evaluate.haystacks import NOISE
from kvviz.evaluate.items import Item
from kvviz.evaluate.lengths import Sample, check_size, fit

HOPS = 4  # assignments after the first: five variables of one value
N_COMMON = 10


@cache
def word_lists() -> tuple[list[str], list[str], list[str]]:
    """(nouns, adjectives, verbs) of the package that RULER draws its words from."""
    from wonderwords import RandomWord

    lists = RandomWord()._categories
    return list(lists["noun"]), list(lists["adjective"]), list(lists["verb"])


# Variable tracking -----------------------------------------------------------------------------------------


def chain_sample(units: int, rng: random.Random, letters: int = 5, hops: int = HOPS) -> Sample:
    """One chain of assignments among `units` paragraphs of noise."""
    names = ["".join(rng.choices(string.ascii_uppercase, k=letters)) for _ in range(hops + 1)]
    while len(set(names)) <= hops:
        names = ["".join(rng.choices(string.ascii_uppercase, k=letters)) for _ in range(hops + 1)]
    value = rng.randrange(10000, 99999)
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in zip(names, names[1:], strict=False)]
    lines = [NOISE + "\n"] * units
    places = sorted(rng.sample(range(len(lines)), len(chain)))
    for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
        lines.insert(place + number, assignment)
    context = " ".join(lines).replace(". \n", ".\n")
    return Sample(
        document="Memorize and track the chain(s) of variable assignment hidden in the following text."
        f"\n\n{context.rstrip()}",
        question=f"Question: Find all variables that are assigned the value {value} in the text above.",
        answers=tuple(names),
        cue="Answer: According to the chain(s) of variable assignment in the text above, "
        f"{hops + 1} variables are assgined the value {value}, they are:",  # RULER's spelling
        hidden=tuple(assignment.strip() for assignment in chain),
    )


def variable_tracking(tokenizer: Any, tokens: int = 1000, count: int = 10, seed: int = 0) -> list[Item]:
    """`vt`: which variables have this value, through a chain of assignments; behind one worked example."""
    check_size(tokens, count, seed)

    def build(units: int, rng: random.Random) -> Sample:
        example = chain_sample(HOPS + 1, rng, letters=3)
        sample = chain_sample(units, rng)
        solved = f"{example.document}\n\n{example.question} {example.cue} {' '.join(example.answers)}"
        return replace(sample, document=f"{solved}\n\n\n\n{sample.document}")

    return [
        fit(build, tokenizer, tokens, f"vt/{seed}/{number}", HOPS + 1, filler=NOISE)
        .item(f"vt-{tokens}-{seed}-{number}", "vt", max_new_tokens=30, seed=seed, asked_tokens=tokens)
        for number in range(count)
    ]  # fmt: skip


# Common words ----------------------------------------------------------------------------------------------

_LIST = "Below is a numbered list of words. In these words, some appear more often than others. "
_LIST += "Memorize the ones that appear most often."
_LIST_QUESTION = f"Question: What are the {N_COMMON} most common words in the above list?"
_LIST_CUE = f"Answer: The top {N_COMMON} words that appear most often in the list are:"


@cache
def common_vocabulary() -> list[str]:
    """All words, in RULER's fixed shuffled order."""
    words = sorted({word for words in word_lists() for word in words})
    random.Random(42).shuffle(words)
    return words


def list_sample(units: int, rng: random.Random, common: int, uncommon: int) -> Sample:
    """A numbered list of `units` words: ten of them `common` times each, the others `uncommon` times."""
    drawn = rng.sample(common_vocabulary(), min(units, len(common_vocabulary())))
    words = drawn[:N_COMMON] * common + drawn[N_COMMON:] * uncommon
    rng.shuffle(words)
    return Sample(f"{_LIST}\n{_numbered(words)}", _LIST_QUESTION, tuple(drawn[:N_COMMON]), _LIST_CUE)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def common_words(tokenizer: Any, tokens: int = 4000, count: int = 10, seed: int = 0) -> list[Item]:
    """`cwe`: the ten words that appear most often in a list; one worked example stands before.

    Below 4,096 tokens common words appear 6 times and others once, from there on 30 and 3 times.
    """
    check_size(tokens, count, seed)
    short = tokens < 4096

    def build(units: int, rng: random.Random) -> Sample:
        example = list_sample(20, rng, 3, 1) if short else list_sample(40, rng, 10, 3)
        sample = list_sample(units, rng, 6, 1) if short else list_sample(units, rng, 30, 3)
        solved = f"{example.document}\n{example.question} {example.cue}{_numbered(list(example.answers))}"
        return replace(sample, document=f"{solved}\n{sample.document}")

    return [
        fit(build, tokenizer, tokens, f"cwe/{seed}/{number}", N_COMMON + 1)
        .item(f"cwe-{tokens}-{seed}-{number}", "cwe", max_new_tokens=120, seed=seed, asked_tokens=tokens)
        for number in range(count)
    ]  # fmt: skip


# Frequent coded words --------------------------------------------------------------------------------------

_CODED = "Read the following coded text and track the frequency of each coded word. "
_CODED += "Find the three most frequently appeared coded words."
_CODED_QUESTION = "Question: Do not provide any explanation. Please ignore the dots '....'. What are the "
_CODED_QUESTION += "three most frequently appeared words in the above coded text?"
_CODED_CUE = "Answer: According to the coded text above, the three most frequently appeared words are:"
_LETTERS = 6


def coded_sample(units: int, rng: random.Random, vocabulary: int) -> Sample:
    """About `units` coded words, the k-th of `vocabulary` as often as 1/k^2; the first is dots, as noise."""
    words = ["".join(rng.choices(string.ascii_lowercase, k=_LETTERS)) for _ in range(vocabulary)]
    while len(set(words)) < vocabulary:
        words.append("".join(rng.choices(string.ascii_lowercase, k=_LETTERS)))
    words = sorted(set(words))
    random.Random(42).shuffle(words)
    words[0] = "..."
    zeta = math.pi**2 / 6  # of 2, the sum of all 1/k^2
    text = [word for k, word in enumerate(words, 1) for _ in range(int(units * k**-2.0 / zeta))]
    random.Random(42).shuffle(text)
    return Sample(f"{_CODED} {' '.join(text)}", _CODED_QUESTION, tuple(words[1:4]), _CODED_CUE)


def frequent_words(tokenizer: Any, tokens: int = 1000, count: int = 10, seed: int = 0) -> list[Item]:
    """`fwe`: the three most frequent words of a made-up language, drawn from a Zipf distribution."""
    check_size(tokens, count, seed)
    vocabulary = max(tokens // 50, 4)

    def build(units: int, rng: random.Random) -> Sample:
        return coded_sample(units, rng, vocabulary)

    return [
        fit(build, tokenizer, tokens, f"fwe/{seed}/{number}", 20)
        .item(f"fwe-{tokens}-{seed}-{number}", "fwe", max_new_tokens=50, seed=seed, asked_tokens=tokens)
        for number in range(count)
    ]  # fmt: skip
