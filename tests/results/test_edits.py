"""The sentence about an edit: what changed beside the controls, and no cause."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from synthetic import synthetic_comparison

import kvviz
from kvviz.resources import asset
from kvviz.results.edits import sentence


def tried(c, after, controls, kl):
    """(before, answers) with these texts and mean KLs, the first of each before the edit."""
    v = c.variant("snapkv", 0.1)
    texts = ["582.", after, *controls]
    made = [
        dataclasses.replace(v, text=text, kl=np.array([0, mean, mean], np.float32))
        for text, mean in zip(texts, kl)
    ]
    return made[0], made[1:]


def pin(c):
    return [SimpleNamespace(kind="pin", start=c.marks[0].start, end=c.marks[0].end, layer=None, head=None)]


def test_a_change_is_told_even_where_the_answer_stays_wrong():
    c = synthetic_comparison()
    before, answers = tried(c, "582133.", ["582."] * 3, [0.62, 0.11, 0.62, 0.62, 0.62])
    assert sentence(c, before, answers, pin(c)) == (
        "After pinning “58213” (M1) in all heads, the answer does not contain “58213”; with random pins "
        "it did in 0 of 3. The answer went from “582.” to “582133.”. KL was 0.62 before and is 0.11 "
        "after, 0.62, 0.62 and 0.62 with random pins (nats/token)."
    )


def test_no_verdict_where_the_full_cache_misses_the_answer():
    c = synthetic_comparison(full_text="The code is 12.")
    before, answers = tried(c, "582.", ["582."] * 3, [0.5, 0.4, 0.5, 0.5, 0.5])
    said = sentence(c, before, answers, pin(c))
    assert said.startswith("The full cache misses “58213” itself, so there is no right or wrong here. ")
    assert "lost" not in said and "contain" not in said
    assert "The text did not change with pinning “58213” (M1) in all heads." in said


@pytest.mark.parametrize("full_text", ["The code is 58213.", "The code is 12."])
@pytest.mark.parametrize("after", ["582.", "58213", "x"])
@pytest.mark.parametrize("expected", [None, "58213"])
def test_no_cause_is_claimed(full_text, after, expected):
    c = synthetic_comparison(full_text=full_text, expected=expected)
    before, answers = tried(c, after, ["582.", after, "y"], [0.5, 0.4, 0.5, 0.3, 0.2])
    said = sentence(c, before, answers, pin(c)).lower()
    for banned in ("because", "lies elsewhere", "caused", "bring the answer back", "lost lies"):
        assert banned not in said


def test_an_edit_that_was_stopped_is_not_judged():
    c = synthetic_comparison()
    before, answers = tried(c, "58213", ["582."] * 3, [0.62, 0.11, 0.62, 0.62, 0.62])
    answers[2].finished = "cancelled"
    assert "contain" not in sentence(c, before, answers, pin(c))


def test_text_of_a_run_stays_on_one_line():
    c = synthetic_comparison()
    before, answers = tried(c, "a\n\u202eb" * 90, ["582."] * 3, [0.62, 0.11, 0.62, 0.62, 0.62])
    said = sentence(c, before, answers, pin(c))
    assert "\n" not in said and "\u202e" not in said
    assert len(said) < 500


def test_the_shipped_experiment_claims_no_cause():
    tried = kvviz.load_comparison(asset("runs", "1-lighthouse-ledger.zip")).story.experiment
    assert "elsewhere" not in tried.sentence
    assert "KL was 0.62 before and is 0.11 after" in tried.sentence
