"""Scores of answers: RULER's string matches, LongBench's metrics, and the app's own verdict.

A score lies between 0 and 1. Where an item has several right answers the best counts, except for RULER's
`contains_all`, whose answers are all asked for.
"""

from __future__ import annotations

import difflib
import re
import string
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvviz.errors import InputError
from kvviz.results.verdict import contains_expected

if TYPE_CHECKING:
    from kvviz.evaluate.items import Item

# LongBench's metric of each English dataset. Chinese ones need a word segmenter and are left out.
LONGBENCH = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), "f1"),
    "triviaqa": "f1",
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), "rouge_l"),
    "trec": "classification",
    "passage_retrieval_en": "retrieval",
    "passage_count": "count",
    **dict.fromkeys(("lcc", "repobench-p"), "edit_similarity"),
}
# Of RULER's tasks, as others publish their items. Its "qa" is a name that files of anybody may have.
RULER = {
    **{f"niah_{kind}_{n}": "contains_all" for kind in ("single", "multikey") for n in (1, 2, 3)},
    **dict.fromkeys(("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"), "contains_all"),
    **dict.fromkeys(("qa_1", "qa_2"), "contains_part"),
}
# Datasets with examples in the prompt: the model goes on with more of them, so the first line is the answer.
_FIRST_LINE = ("trec", "triviaqa", "samsum")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_CONTROL = re.compile(r"[\x00-\x1f]")


@dataclass(frozen=True)
class Metric:
    """A way to hold an answer against an item's right answers.

    of      of(answer, item) -> 0 to 1; it sees all right answers and takes the best, or counts how many are
            there, as its benchmark does.
    graded  scores between 0 and 1 are usual and a full 1 is not needed to be right (F1): an answer is then
            also right where it contains a right answer.
    judges  False: how alike two texts are, as of summaries and lines of code; none is right or wrong.
    """

    id: str
    of: Callable[[str, Item], float]
    graded: bool = False
    judges: bool = True


def best(pair: Callable[[str, str], float]) -> Callable[[str, Item], float]:
    """A metric of an item from one of an answer and a single right answer: the best counts."""
    return lambda answer, item: max(pair(answer, truth) for truth in item.answers)


def as_scored(answer: str, item: Item) -> str:
    """The part of an answer that is scored: its first line in datasets with examples in the prompt."""
    return answer.lstrip("\n").split("\n")[0] if item.task.removesuffix("_e") in _FIRST_LINE else answer


def _shares(answer: str, truths: tuple[str, ...]) -> float:
    """Share of `truths` that stand in `answer`, case left out: RULER's string match."""
    plain = _CONTROL.sub("\n", answer.strip()).strip().lower()
    return sum(truth.lower() in plain for truth in truths) / len(truths)


def contains_all(answer: str, item: Item) -> float:
    """RULER's string_match_all: the share of the answers found."""
    return _shares(answer, item.answers)


def contains_part(answer: str, item: Item) -> float:
    """RULER's string_match_part: 1 where any of the answers is found."""
    return max(_shares(answer, (truth,)) for truth in item.answers)


def f1(answer: str, truth: str) -> float:
    """F1 over words, lower case, without punctuation and articles (as SQuAD counts them)."""
    given, wanted = _words(answer), _words(truth)
    same = sum((Counter(given) & Counter(wanted)).values())
    return 2 * same / (len(given) + len(wanted)) if same else 0.0


def _words(text: str) -> list[str]:
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return _ARTICLES.sub(" ", plain).split()


def rouge_l(answer: str, truth: str) -> float:
    """F of the longest common subsequence of words, by the package that LongBench uses."""
    from rouge import Rouge

    deep = sys.getrecursionlimit()
    # The package walks back through two summaries by one call a word.
    sys.setrecursionlimit(deep + len(answer.split()) + len(truth.split()) + 100)
    try:
        return float(Rouge(metrics=["rouge-l"]).get_scores([answer], [truth])[0]["rouge-l"]["f"])
    except ValueError:  # one of them holds no word
        return 0.0
    finally:
        sys.setrecursionlimit(deep)


def classification(answer: str, item: Item) -> float:
    """1 / (number of class names found) where the right one is among them.

    A class whose name is part of the right one's does not count against it.
    """
    classes = item.meta.get("all_classes")
    if not classes:
        raise InputError(f"Item {item.id} is scored by classes but lists none in 'all_classes'.")

    def one(truth: str) -> float:
        found = [name for name in classes if name in answer and not (name in truth and name != truth)]
        return 1 / len(found) if truth in found else 0.0

    return max(one(truth) for truth in item.answers)


def retrieval(answer: str, truth: str) -> float:
    """Share of the numbers in `answer` that are the paragraph's, as in "Paragraph 7"."""
    wanted = re.search(r"\d+", truth)
    return count(answer, wanted.group() if wanted else truth)


def count(answer: str, truth: str) -> float:
    """Share of the numbers in `answer` that are `truth`."""
    numbers = re.findall(r"\d+", answer)
    return numbers.count(truth.strip()) / len(numbers) if numbers else 0.0


def edit_similarity(answer: str, truth: str) -> float:
    """Similarity of the first line of code in `answer` (no fence or comment) to `truth`, in whole percent."""
    lines = (line for line in answer.split("\n") if line.strip())
    code = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(100 * difflib.SequenceMatcher(None, code, truth).ratio()) / 100


METRICS = {
    metric.id: metric
    for metric in (
        Metric("contains", best(lambda answer, truth: float(contains_expected(answer, truth)))),
        Metric("contains_all", contains_all),
        Metric("contains_part", contains_part),
        Metric("f1", best(f1), graded=True),
        Metric("rouge_l", best(rouge_l), judges=False),
        Metric("classification", classification),
        Metric("retrieval", best(retrieval)),
        Metric("count", best(count)),
        Metric("edit_similarity", best(edit_similarity), judges=False),
    )
}
