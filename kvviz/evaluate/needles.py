"""The lighthouse ledger: texts of any length that hide one sentence.

Pure text: no torch, no model. A tokenizer is needed only to count, through
`tokenizer.encode(text, add_special_tokens=False)`.

A text is prose with slots. One pass over a prose gives about 1,000 tokens in the order it was
written; longer texts take further passes in shuffled order. Every slot is drawn anew from the
seed, so no sentence occurs twice. Dates run forward, all other numbers are distractors.
The text around the needle is the same at every depth: two depths differ by the place alone.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from typing import Any

from kvviz.errors import InputError
from kvviz.resources import asset
from kvviz.results.verdict import contains_expected


@dataclass(frozen=True)
class Needle:
    """A sentence to hide, and what is asked about it."""

    sentence: str
    question: str
    expected: str


NEEDLES = (
    Needle("The code of the Marlow lighthouse door is 58213.",
           "What is the code of the Marlow lighthouse door?", "58213"),
    Needle("The cat of the Marlow lighthouse is called Pepperpot.",
           "What is the cat of the Marlow lighthouse called?", "Pepperpot"),
    Needle("The spare flag of the Marlow lighthouse is magenta.",
           "Which colour is the spare flag of the Marlow lighthouse?", "magenta"),
)  # fmt: skip
NEEDLE, QUESTION, CODE = NEEDLES[0].sentence, NEEDLES[0].question, NEEDLES[0].expected
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
MIN_TOKENS = 100  # below this the needle is a large part of the text, and depth means little
TOLERANCE = 0.02  # allowed difference from the wanted length, as a share of it

# Prose with slots in assets/needles: {date} the next date, {n:10-99} a number, {other} a word of that kind
# in words.json. The dates of a text start at its own day.
_TEXTS = ("keeper", "museum", "repair")
_STARTS = (date(1871, 3, 4), date(1953, 9, 12), date(2011, 4, 18))
N_TEXTS = len(_TEXTS)

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_SLOT = re.compile(r"\{(\w+)(?::(\d+)-(\d+))?\}")


@dataclass(frozen=True)
class NeedleCase:
    """One text with a hidden sentence and the question about it.

    depth    the asked place of the needle, 0 = start, 1 = end, as a share of the surrounding tokens.
    reached  the place it has: the nearest one between two sentences.
    tokens   length of `document` in tokens of the counting tokenizer, without special tokens.
    """

    document: str
    question: str
    expected: str
    needle_sentence: str
    depth: float
    text: int = 0
    seed: int = 0
    tokens: int = 0
    reached: float = 0.0

    @property
    def needle_span(self) -> tuple[int, int]:
        """(start, end) characters of the needle sentence in `document`."""
        start = self.document.index(self.needle_sentence)
        return start, start + len(self.needle_sentence)


def needle_text(
    length_tokens: int, depth: float, tokenizer: Any, text: int = 0, seed: int = 0
) -> NeedleCase:
    """Build text number `text` of about `length_tokens` tokens with the needle near `depth`.

    The length counts the document with its needle, without question or chat template, and is met
    within 2%. The same arguments give the same text.
    """
    return needle_cases(length_tokens, (depth,), tokenizer, (text,), seed)[0]


def needle_cases(
    length_tokens: int,
    depths: Sequence[float] = DEPTHS,
    tokenizer: Any = None,
    texts: Sequence[int] = tuple(range(N_TEXTS)),
    seed: int = 0,
    needle: Needle = NEEDLES[0],
) -> list[NeedleCase]:
    """Every text at every depth, texts outermost; at one text and seed only the place differs."""
    if tokenizer is None:
        raise InputError("Needle texts are counted in tokens: hand over the model's tokenizer.")
    if length_tokens < MIN_TOKENS:
        raise InputError(f"A needle text needs {MIN_TOKENS} tokens or more, not {length_tokens}.")
    for depth in depths:
        if not 0 <= depth <= 1:  # also refuses NaN
            raise InputError(f"A needle depth lies between 0 (start) and 1 (end), not {depth}.")
    for text in texts:
        if text not in range(N_TEXTS):
            raise InputError(f"There are {N_TEXTS} needle texts, 0 to {N_TEXTS - 1}, not {text}.")
    cases = []
    for text in texts:
        sentences, counts, breaks = _surroundings(length_tokens, tokenizer, text, seed, needle)
        for depth in depths:
            place = _boundary(counts, depth)
            document = _insert(sentences, breaks, place, needle)
            tokens = _count(tokenizer, document)
            if abs(tokens - length_tokens) > TOLERANCE * length_tokens:
                raise InputError(
                    f"The needle text came to {tokens} tokens instead of {length_tokens}: "
                    "this tokenizer counts sentences differently alone and in a text."
                )
            asked = needle.question, needle.expected, needle.sentence
            reached = sum(counts[:place]) / sum(counts)
            cases.append(NeedleCase(document, *asked, depth, text, seed, tokens, reached))
    return cases


def _surroundings(
    length_tokens: int, tokenizer: Any, text: int, seed: int, needle: Needle
) -> tuple[list[str], list[int], set[int]]:
    """Sentences around the needle, their token counts, and which of them open a paragraph."""
    rng = random.Random(f"{text}/{seed}")
    source = prose_sentences(text, rng)
    space = length_tokens - _added(tokenizer, " " + needle.sentence)
    sentences: list[str] = []
    counts: list[int] = []
    breaks = {0}
    paragraph_end = rng.randint(4, 6)
    while True:
        sentence = next(source)
        opens = len(sentences) == paragraph_end
        # Counted with what joins it to the text: a paragraph break may be a token of its own.
        count = _added(tokenizer, ("\n\n" if opens else " ") + sentence)
        if count > space:
            break
        if opens:
            breaks.add(len(sentences))
            paragraph_end += rng.randint(4, 6)
        sentences.append(sentence)
        counts.append(count)
        space -= count
    # The gap left is shorter than a sentence. Taking two back and closing with the best few of
    # these and the sentences after them meets the length almost exactly, whatever the tokenizer.
    spare = [(sentence, _added(tokenizer, " " + sentence))]
    for _ in range(min(2, len(sentences) - 1)):
        spare.insert(0, (sentences.pop(), counts.pop()))
        space += spare[0][1]
    spare += [(s, _added(tokenizer, " " + s)) for s in itertools.islice(source, 10)]
    for sentence, count in _closest(spare, space, slack=min(5, length_tokens // 500)):
        sentences.append(sentence)
        counts.append(count)
    breaks.difference_update(range(max(len(sentences) - 1, 1), max(breaks) + 1))
    return sentences, counts, breaks


def _closest(spare: list[tuple[str, int]], space: int, slack: int) -> list[tuple[str, int]]:
    """The sentences (four at most, order kept) whose tokens together come closest to `space`.

    Fewer and earlier ones win among those that miss it by `slack` tokens or less.
    """
    choices = (list(c) for size in range(5) for c in itertools.combinations(spare, size))

    def miss(chosen: list[tuple[str, int]]) -> int:
        return max(slack, abs(space - sum(count for _, count in chosen)))

    return min(choices, key=miss)


@cache
def _prose(text: int) -> tuple[str, ...]:
    """The sentences of text number `text`, slots unfilled."""
    prose = asset("needles", f"{_TEXTS[text]}.txt").read_text(encoding="utf-8")
    return tuple(re.split(r"(?<=\.)\s+", " ".join(prose.split())))


@cache
def _words() -> dict[str, list[str]]:
    return json.loads(asset("needles", "words.json").read_text(encoding="utf-8"))


def prose_sentences(text: int, rng: random.Random) -> Iterator[str]:
    """Sentences without end: first in the order written, then pass after pass in shuffled order."""
    templates = _prose(text)
    today = _STARTS[text]
    seen: set[str] = set()
    order = list(range(len(templates)))
    while True:
        for number in order:
            for _ in range(50):  # a sentence with few slots may run out: then it is passed over
                sentence, day = _fill(templates[number], rng, today)
                if sentence not in seen and not any(contains_expected(sentence, n.expected) for n in NEEDLES):
                    today = day
                    seen.add(sentence)
                    yield sentence
                    break
        # The second half of a pass never opens the next one: a sentence stays away from its twin.
        # Sentence 0 opens the text and is said once.
        rest = [number for number in order if number]
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        rng.shuffle(first)
        rng.shuffle(second)
        order = first + second


def _fill(template: str, rng: random.Random, today: date) -> tuple[str, date]:
    """Draw every slot of one sentence. Returns it and the last date used."""
    day = today

    def draw(match: re.Match[str]) -> str:
        nonlocal day
        slot, low, high = match.groups()
        if low:
            return str(rng.randint(int(low), int(high)))
        if slot == "date":
            day += timedelta(days=rng.randint(1, 9))
            return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"
        return rng.choice(_words()[slot])

    return _SLOT.sub(draw, template), day


def _boundary(counts: Sequence[int], depth: float) -> int:
    """How many sentences stand before the needle so that their tokens come closest to `depth`."""
    wanted = depth * sum(counts)
    best, passed, best_miss = 0, 0, wanted
    for number, count in enumerate(counts, start=1):
        passed += count
        if abs(passed - wanted) < best_miss:
            best, best_miss = number, abs(passed - wanted)
    return best


def _insert(sentences: Sequence[str], breaks: set[int], place: int, needle: Needle) -> str:
    """The document with the needle before sentence `place`, in the paragraph of its predecessor."""
    pieces = [*sentences[:place], needle.sentence, *sentences[place:]]
    opening = {at if at < place or at == 0 else at + 1 for at in breaks}
    joints = ("\n\n" if at in opening else " " for at in range(1, len(pieces)))
    return pieces[0] + "".join(
        joint + piece for joint, piece in zip(joints, pieces[1:], strict=True)
    )


def _count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


def _added(tokenizer: Any, text: str) -> int:
    """Tokens that `text` adds after a sentence: some tokenizers put a "▁" of their own before a text that
    stands alone."""
    return _count(tokenizer, "." + text) - _count(tokenizer, ".")
