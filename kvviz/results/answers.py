"""The answers side by side: what each said, how it differs from the full cache, right or wrong."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvviz.results import words as text
from kvviz.results.cause_words import would_do_sentence
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison, Variant
from kvviz.results.measures import kl_of
from kvviz.results.table import Table
from kvviz.results.verdict import judge, verdict, verdict_notice
from kvviz.types import QUESTION_AWARE

SEARCHED = "The search took {} and leaves nothing to chance: no seed is in it. The budget does not change it."
VERDICTS = {"right": "contains the expected answer", "wrong": "does not contain it", "": ""}


@dataclass(frozen=True)
class Card:
    """One answer.

    words       (text, differs from the full cache) in reading order, spaces included; never HTML.
    verdict     "right", "wrong" or "" where no answer is expected, or this one was cut off.
    grey        the verdict is moot because the full cache lacks the expected answer itself.
    decoded_at  the budget whose answer is shown, None where none was decoded.
    banner      said above an answer of another budget, else "".
    budget_note where the bytes of the budget line go, for whoever asks.
    notice      what is to be said beside the verdict, else "".
    """

    role: str
    label: str
    words: list[tuple[str, bool]]
    kl_line: str
    budget_line: str
    verdict: str
    verdict_words: str
    decoded_at: float | int | None
    banner: str = ""
    grey: bool = False
    budget_note: str = ""
    notice: str = ""


def differing_words(answer: str, full: str) -> list[tuple[str, bool]]:
    """`answer` in pieces; True marks whole words that the full answer does not have there."""
    pieces = re.findall(r"\S+|\s+", answer)
    words = [i for i, piece in enumerate(pieces) if not piece.isspace()]
    matcher = difflib.SequenceMatcher(None, [pieces[i] for i in words], full.split(), autojunk=False)
    differs = dict.fromkeys(words, True)
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            differs[words[block.a + offset]] = False
    return [(piece, differs.get(i, False)) for i, piece in enumerate(pieces)]


def shown_variant(c: Comparison, method: str, k: float | int) -> Variant | None:
    """The answer at this budget, or the one at the nearest decoded budget (as a factor)."""
    exact = c.variant(method, k)
    if exact is not None:
        return exact
    decoded = [v for v in c.variants if v.method == method]
    asked = math.log(c.share(k))
    return min(decoded, key=lambda v: abs(math.log(c.share(v.budget)) - asked), default=None)


def difference_words(c: Comparison, v: Variant) -> str:
    """ "differs from token 5" or "same tokens as the full cache"; "cut off" where the run was stopped."""
    if v.finished == "cancelled" or c.full.finished == "cancelled":
        whose = "cut off" if v.finished == "cancelled" else "the full cache's answer was cut off"
        return f"{whose}: the run was stopped"
    if v.first_difference is not None:
        return f"differs from token {v.first_difference}"
    if c.prompt.protocol == QUESTION_AWARE and len(v.token_ids) == 1:
        return "one token, chosen before anything was evicted"
    return "same tokens as the full cache"


def kl_line(c: Comparison, v: Variant) -> str:
    """ "KL 0.21 nats/token (largest 1.4 at token 5) · differs from token 5"."""
    said = difference_words(c, v)
    mean = kl_of(c, v)
    if mean is None or v.kl is None:
        return said
    worst = int(np.argmax(v.kl))
    largest = text.kl_number(float(v.kl[worst]))
    return f"KL {text.kl(mean)} (largest {largest} at token {worst}) · {said}"


def by_token(words: Sequence[tuple[str, bool]], tokens: Sequence[str]) -> list[tuple[str, bool, int]]:
    """`words` of an answer cut where its tokens are: (text, differs, which token). Tokens that are no text
    have no piece; empty where the tokens do not spell the text."""
    said = "".join(piece for piece, _ in words)
    starts, at = {}, 0
    for step, token in enumerate(tokens):
        if token and said.startswith(token, at):
            starts[at] = step
            at += len(token)
    if at != len(said):
        return []
    pieces, at, step = [], 0, 0
    for text_, differs in words:
        cuts = [0, *(cut - at for cut in starts if at < cut < at + len(text_)), len(text_)]
        for start, end in zip(cuts, cuts[1:]):
            step = starts.get(at + start, step)
            pieces.append((text_[start:end], differs, step))
        at += len(text_)
    return pieces


def answer_cards(
    c: Comparison, a: str, b: str | None, k: float | int, expected: str | None = None
) -> list[Card]:
    """Cards for the full cache, A and B (if given) at budget k."""
    expected = c.expected if expected is None else expected
    full_verdict = judge(c.full, expected)
    grey = full_verdict == "wrong"
    cards = [
        Card(
            role="full",
            label="Full cache",
            words=[(piece, False) for piece in re.findall(r"\S+|\s+", c.full.text)],
            kl_line="",
            budget_line=text.full_line(c),
            verdict=full_verdict,
            verdict_words=_verdict_words(c.full, full_verdict),
            decoded_at=1.0,
            grey=grey,
            budget_note=text.memory_words(c, "full", 1.0),
            notice=verdict_notice(c.full, expected),
        )
    ]
    for side, method in (("a", a), ("b", b)):
        if method is not None:
            cards.append(_card(c, side, method, k, expected, grey))
    return cards


def _verdict_words(v: Variant, judged: str) -> str:
    """What the sign stands for. Without one, why there is none."""
    return "cut off: the run was stopped" if v.finished == "cancelled" else VERDICTS[judged]


def _card(c: Comparison, side: str, method: str, k, expected: str | None, grey: bool) -> Card:
    label = text.label(c, method)
    if method == FOUND:
        return _found_card(c, side, expected, grey)
    v = shown_variant(c, method, k)
    budget_line = text.budget_triple(c, method, k)
    if v is None:
        banner = f"Not decoded at {text.budget_name(k)}."
        return Card(side, label, [], "", budget_line, "", "", None, banner, grey)
    banner = ""
    if c.variant(method, k) is None:
        asked, shown = text.budget_name(k), text.budget_name(v.budget)
        banner = f"Not decoded at {asked}. Shown: the answer at {shown}."
    judged = judge(v, expected)
    return Card(
        role=side,
        label=label,
        words=differing_words(v.text, c.full.text),
        kl_line=kl_line(c, v),
        budget_line=budget_line,
        verdict=judged,
        verdict_words=_verdict_words(v, judged),
        decoded_at=v.budget,
        banner=banner,
        grey=grey,
        budget_note=text.memory_words(c, method, k),
        notice=verdict_notice(v, expected),
    )


def _found_card(c: Comparison, side: str, expected: str | None, grey: bool) -> Card:
    """The cache found by search, at its own size whatever the budget."""
    assert c.would_do is not None
    found = c.would_do
    judged = verdict(found.text, expected)
    return Card(
        role=side,
        label=text.label(c, FOUND),
        words=differing_words(found.text, c.full.text),
        kl_line=f"KL {text.kl(found.kl)} · same tokens as the full cache",
        budget_line=text.budget_triple(c, FOUND, found.budget),
        verdict=judged,
        verdict_words=VERDICTS[judged],
        decoded_at=found.budget,
        grey=grey,
        budget_note=text.memory_words(c, FOUND, found.budget),
        notice=f"{would_do_sentence(c)} {SEARCHED.format(text.seconds(found.seconds))}",
    )


@dataclass(frozen=True)
class AnswersTable(Table):
    """Every decoded answer: method and budget, sign, first 40 characters, mean KL."""

    method: list[str]
    label: list[str]
    budget: list[float | int]
    share: list[float]
    verdict: list[str]
    text: list[str]
    kl: list[float | None]
    difference: list[str]
    budget_words: list[str]

    def columns(self):
        """See `Table.columns`."""
        return dict(vars(self))


def all_answers_table(c: Comparison, expected: str | None = None) -> AnswersTable:
    """Methods x decoded budgets, the full cache first."""
    expected = c.expected if expected is None else expected
    order = {m: i for i, m in enumerate(c.methods)}
    answers = sorted(c.variants, key=lambda v: (order[v.method], -c.share(v.budget)))
    answers = [c.full, *answers]
    return AnswersTable(
        method=[v.method for v in answers],
        label=[v.label if v is c.full else text.label(c, v.method) for v in answers],
        budget=[v.budget for v in answers],
        share=[1.0 if v is c.full else c.share(v.budget) for v in answers],
        verdict=[judge(v, expected) for v in answers],
        text=[text.shortened(v.text, 40) for v in answers],
        kl=[None if v is c.full else kl_of(c, v) for v in answers],
        difference=["" if v is c.full else difference_words(c, v) for v in answers],
        budget_words=[
            text.full_line(c) if v is c.full else text.budget_triple(c, v.method, v.budget)
            for v in answers
        ],
    )
