"""What a browser sends as an edit, and the sentences about an edit, which claim no more than it shows."""

import dataclasses

import pytest

from kvviz.engine.experiment import Edit
from kvviz.errors import InputError
from kvviz.results.edits import report, sentence
from kvviz.ui.chosen import edits_of


@pytest.fixture
def snapkv(comparison):
    return comparison.variant("snapkv", 0.2)


@pytest.mark.parametrize("raw", [None, [], [{}], [{"kind": "pin"}], [{"kind": "x", "tok": [1, 2]}],
                                 [{"kind": "pin", "tok": [5, 2]}], "junk"])  # fmt: skip
def test_junk_edits_are_refused(comparison, raw):
    with pytest.raises(InputError, match="Choose tokens"):
        edits_of(raw, comparison)


RIGHT, WRONG = "It is 58213.", "It is 1947."


@pytest.mark.parametrize(
    "before, after, controls, words",
    [(WRONG, RIGHT, [WRONG] * 3, "contains “58213”; with random pins it did in 0 of 3."),
     (WRONG, RIGHT, [RIGHT] * 3, "does not single out “58213” (M1)"),
     (WRONG, WRONG, [WRONG] * 3, "does not contain “58213”; with random pins it did in 0 of 3."),
     (RIGHT, RIGHT, [WRONG] * 3, "It did before the edit as well."),
     (RIGHT, WRONG, [RIGHT] * 3, "no longer contains “58213”")],
)  # fmt: skip
def test_sentences(comparison, snapkv, before, after, controls, words):
    mark = comparison.marks[0]
    answers = [dataclasses.replace(snapkv, text=t) for t in (after, *controls)]
    was = dataclasses.replace(snapkv, text=before)
    edits = [Edit("pin", mark.start, mark.end)]
    said = sentence(comparison, was, answers, edits)
    assert words in said and "because" not in said
    assert len(report(comparison, was, answers, edits).rows) == 5
