"""Metrics of answers, against values worked out by hand."""

from __future__ import annotations

import pytest

from kvviz.errors import InputError
from kvviz.evaluate.items import Item
from kvviz.evaluate.judging import judged
from kvviz.evaluate.metrics import LONGBENCH, METRICS


def item(metric, *answers, task="t", **meta):
    return Item("i", task, "document", "question", answers, metric, meta)


@pytest.mark.parametrize(
    ("metric", "answers", "text", "score"),
    [
        ("contains_all", ("1234567", "7654321"), "It is 1234567.", 0.5),
        ("contains_all", ("apple", "Pear"), "PEAR\x01Apple", 1),
        ("contains_part", ("apple", "pear"), "A pear", 1),
        ("contains_part", ("apple", "pear"), "A plum", 0),
        ("f1", ("the cat sat",), "A cat sat down.", 0.8),  # 2 of 2 wanted words, 2 of 3 given
        ("f1", ("dog", "cat"), "cat", 1),
        ("f1", ("dog",), "", 0),
        (
            "rouge_l",
            ("the cat sat on the mat",),
            "the cat on the mat",
            2 * 1 * 0.8 / 1.8,
        ),  # 4 of 5 words
        ("rouge_l", ("the cat",), " . ", 0),
        ("rouge_l", (" ".join(map(str, range(700))),), " ".join(map(str, range(0, 1400, 2))), 0.5),
        ("rouge_l", ("cat",), "cat. ", 2 / 3),  # as the package counts: a blank after a full stop is a word
        ("count", ("7",), "7 of 8 or 7", 2 / 3),
        ("retrieval", ("Paragraph 12",), "Paragraph 12 or 3", 0.5),
        ("retrieval", ("Paragraph 12",), "none", 0),
        ("edit_similarity", ("return x",), "```python\n# a comment\nreturn y\nreturn x", 0.88),
        ("edit_similarity", ("    return x",), "    return x\n", 1),
    ],
)
def test_scores_worked_out_by_hand(metric, answers, text, score):
    assert METRICS[metric].of(text, item(metric, *answers)) == pytest.approx(score, abs=1e-6)


def test_a_class_name_within_the_right_one_does_not_count_against_it():
    classes = ["number", "Other number", "Abbreviation"]
    of = METRICS["classification"].of
    assert of("Other number", item("classification", "Other number", all_classes=classes)) == 1
    assert of("Other number", item("classification", "number", all_classes=classes)) == 0.5
    assert of("Abbreviation", item("classification", "number", all_classes=classes)) == 0
    with pytest.raises(InputError, match="all_classes"):
        of("number", item("classification", "number"))


def test_datasets_with_examples_in_the_prompt_are_scored_by_their_first_line():
    assert judged(item("f1", "Paris", task="triviaqa"), "\nParis\nQuestion: next?")[1] == 1
    assert judged(item("f1", "Paris", task="hotpotqa"), "Paris\nQuestion: next?")[1] == 0.5


def test_every_dataset_has_a_metric_that_exists():
    assert set(LONGBENCH.values()) < set(METRICS)
