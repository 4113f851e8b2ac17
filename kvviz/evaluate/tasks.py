"""RULER's synthetic tasks (arXiv:2404.06654) under its names: needles, chains of variables, frequent words.

    TASKS["niah_single_2"](tokenizer, tokens=4000, count=20, seed=0)   -> list[Item]

Texts, needles, questions and scoring are RULER's; a document holds everything but the question, so that a
cache can be compressed without it. Differences, all on purpose: sentences are split by their end marks (no
corpus to fetch); the haystack is the app's own prose unless `haystack=essays`; the length counts document and
question, without chat template or room for the answer, and is met within 2% by a shorter last line of noise.

The same arguments and tokenizer give the same items.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvviz.engine.ask import whole
from kvviz.errors import InputError
from kvviz.evaluate import counting
from kvviz.evaluate.haystacks import HAYSTACKS, NOISE, haystack_words, split_sentences
from kvviz.evaluate.items import Item, read_items
from kvviz.evaluate.lengths import Sample, check_size, fit
from kvviz.evaluate.several import several_documents
from kvviz.resources import asset

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_INTRO = "{some} special magic {kind} {are} hidden within the following text. Make sure to memorize it. "
_INTRO += "I will quiz you about the {kind} afterwards."
_QUESTION = "What {are} the special magic {kind} for {query} mentioned in the provided text?"
_CUE = "The special magic {kind} for {query} mentioned in the provided text {are}"
_DEPTHS = [round(number * 100 / 39) for number in range(40)]  # percent of the text, as RULER draws them


@dataclass(frozen=True)
class Needles:
    """What a needle task hides and asks for.

    haystack  noise: a repeated paragraph; prose: essays or the app's own text; needles: distracting needles.
    keys      needles of different keys, one (or `queries`) of which is asked for.
    values    needles of one key, all of which are asked for.
    """

    haystack: str = "prose"
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


NEEDLES = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles(),
    "niah_single_3": Needles(value_kind="uuids"),
    "niah_multikey_1": Needles(keys=4),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", "uuids", "uuids"),
    "niah_multivalue": Needles(values=4),
    "niah_multiquery": Needles(keys=4, queries=4),
}


def needle_sample(what: Needles, units: int, rng: random.Random, words: list[str] | None = None) -> Sample:
    """One needle text of `units` words of prose, paragraphs of noise or distracting needles.

    words  the haystack's words, where it is prose.
    """
    keys, values, needles = [], [], []
    for _ in range(what.keys):
        keys.append(_draw(what.key_kind, rng))
        values.append([_draw(what.value_kind, rng) for _ in range(what.values)])
        needles += [NEEDLE.format(kind=what.value_kind, key=keys[-1], value=value) for value in values[-1]]
    random.Random(42).shuffle(needles)  # RULER's order, the same for every item
    if what.haystack == "prose":
        context = _among_sentences(split_sentences(" ".join((words or [])[:units])), needles, rng)
    else:
        context = "\n".join(_among_lines(what, units, needles, rng))
    asked = rng.sample(range(what.keys), what.queries)
    queries = [keys[number] for number in asked]
    query = queries[0] if len(queries) == 1 else f"{', '.join(queries[:-1])}, and {queries[-1]}"
    one = what.values * what.queries == 1
    kind = what.value_kind.removesuffix("s") if one else what.value_kind
    intro = _INTRO.format(some="A" if one else "Some", kind=kind, are="is" if one else "are")
    return Sample(
        document=f"{intro}\n{context}",
        question=_QUESTION.format(kind=kind, query=query, are="is" if one else "are all"),
        answers=tuple(value for number in asked for value in values[number]),
        cue=_CUE.format(kind=what.value_kind[:-1] if one else kind, query=query, are="is" if one else "are"),
        hidden=tuple(needles),
    )


def _among_sentences(sentences: list[str], needles: list[str], rng: random.Random) -> str:
    """The needles at places of their own, each of the 40 depths at most once."""
    places = sorted(int(len(sentences) * (depth / 100)) for depth in rng.sample(_DEPTHS, len(needles)))
    parts = []
    for start, end, needle in zip([0, *places], [*places, len(sentences)], [*needles, None], strict=True):
        parts.append(" ".join(sentences[start:end]))
        parts += [needle] if needle else []
    return " ".join(parts)


def _among_lines(what: Needles, units: int, needles: list[str], rng: random.Random) -> list[str]:
    if what.haystack == "noise":
        lines = [NOISE] * units
    else:
        kind = what.value_kind
        drawn = ((_draw(what.key_kind, rng), _draw(kind, rng)) for _ in range(units))
        lines = [NEEDLE.format(kind=kind, key=key, value=value) for key, value in drawn]
    places = sorted(rng.sample(range(units), len(needles)), reverse=True)
    for place, needle in zip(places, needles, strict=True):
        lines.insert(place, needle)
    return lines


def _draw(kind: str, rng: random.Random) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    nouns, adjectives, _ = counting.word_lists()
    return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"


def needle_items(
    tokenizer: Any, name: str, tokens: int = 1000, count: int = 10, seed: int = 0, haystack: str = "own",
    new_tokens: int = 128,
) -> list[Item]:  # fmt: skip
    """`count` items of the needle task `name` of about `tokens` tokens each.

    new_tokens  most tokens of an answer: RULER's 128 are more than one number needs.
    """
    what = NEEDLES[name]
    check_size(tokens, count, seed)
    if haystack not in HAYSTACKS:
        raise InputError(f"There is no haystack {haystack!r}; choose {' or '.join(HAYSTACKS)}.")
    smallest = what.keys * what.values
    items = []
    for number in range(count):
        words = haystack_words(haystack, tokens, seed + number) if what.haystack == "prose" else None

        def build(units: int, rng: random.Random, words: list[str] | None = words) -> Sample:
            return needle_sample(what, units, rng, words)

        items.append(
            fit(build, tokenizer, tokens, f"{name}/{seed}/{number}", smallest,
                filler=NOISE if what.haystack == "noise" else "").item(
                f"{name}-{tokens}-{seed}-{number}", name, seed=seed, asked_tokens=tokens,
                max_new_tokens=whole(new_tokens, "The number of new tokens", 1),
                haystack=haystack if what.haystack == "prose" else what.haystack,
            )
        )  # fmt: skip
    return items


def eight_documents(tokenizer: Any) -> Sequence[Item]:
    """Eight short documents that come with kvviz, with three questions each; every item takes the answer that
    stands in its document word for word."""
    return read_items(asset("documents"))


TASKS: dict[str, Callable[..., Sequence[Item]]] = {
    **{name: partial(needle_items, name=name) for name in NEEDLES},
    "vt": counting.variable_tracking,
    "cwe": counting.common_words,
    "fwe": counting.frequent_words,
    "qa": several_documents,
    "documents": eight_documents,
}
