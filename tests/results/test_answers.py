"""Answer cards, the table of answers, the KL strip."""

import dataclasses

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.figures.kl import kl_strip_figure, kl_strip_table
from kvviz.results.answers import (
    all_answers_table,
    answer_cards,
    by_token,
    differing_words,
)
from kvviz.results.finding import finding


def test_whole_words_that_differ_are_marked():
    words = differing_words("The code is 1947, sir.", "The code is 58213, sir.")
    assert "".join(piece for piece, _ in words) == "The code is 1947, sir."
    assert [piece for piece, differs in words if differs] == ["1947,"]
    assert not any(differs for _, differs in differing_words("a b", "a b"))
    assert [d for p, d in differing_words("a  x b", "a b") if p == "x"] == [True]


def test_cards_say_what_was_answered(run):
    full, a, b = answer_cards(run, "snapkv", "dropkv", 0.1)
    assert [card.role for card in (full, a, b)] == ["full", "a", "b"]
    assert (full.verdict, a.verdict, b.verdict) == ("right", "wrong", "right")
    assert a.verdict_words == "does not contain it"
    assert b.verdict_words == "contains the expected answer"
    assert a.decoded_at == 0.1
    assert not a.banner
    assert full.budget_line == "0.7 MB after reading, +2.3 kB a token"
    assert a.budget_line == "10% kept · 30 tokens per KV head · 0.1 of 0.7 MB after reading, +2.3 kB a token"
    assert b.kl_line.endswith("· same tokens as the full cache")
    assert a.kl_line.endswith("· differs from token 3")


def test_kl_line_leaves_the_shared_first_step_out():
    c = synthetic_comparison()
    v = c.variant("snapkv", 0.1)
    v.kl = np.array([0, 0.1, 1.4, 0.3], np.float32)
    line = answer_cards(c, "snapkv", None, 0.1)[1].kl_line
    assert line == "KL 0.60 nats/token (largest 1.4 at token 2) · differs from token 3"
    v.kl = None
    assert answer_cards(c, "snapkv", None, 0.1)[1].kl_line == "differs from token 3"


def test_an_undecoded_budget_shows_the_nearest_answer(run):
    card = answer_cards(run, "snapkv", None, 0.07)[1]
    assert card.decoded_at == 0.05
    assert card.banner == "Not decoded at 7%. Shown: the answer at 5%."
    assert card.budget_line.startswith("7% kept")


def test_no_expected_answer_no_verdict():
    cards = answer_cards(synthetic_comparison(expected=None), "snapkv", "dropkv", 0.1)
    assert {card.verdict for card in cards} == {""}


def test_verdicts_are_grey_when_the_full_cache_fails():
    cards = answer_cards(synthetic_comparison(full_text="No."), "snapkv", "dropkv", 0.1)
    assert all(card.grey for card in cards)


def test_the_memory_of_a_cache_is_taken_apart():
    c = synthetic_comparison()
    v = c.variant("snapkv", 0.1)
    entries = c.token_bytes * int(v.packed.kept.counts().sum()) / (c.model.n_layers * c.model.n_kv_heads)
    v.bytes = int(entries) + 100_000
    note = answer_cards(c, "snapkv", None, 0.1)[1].budget_note
    assert note == (
        f"{v.bytes / 1e6:.1f} MB as allocated: {entries / 1e6:.1f} MB of entries, and 0.1 MB of blocks that "
        "are not full and of their indices."
    )
    assert answer_cards(c, "snapkv", None, 0.07)[1].budget_note.endswith("at this budget no cache was made.")


def test_thoughts_are_named_where_they_decide():
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).text = "<think>It may be 58213. Or not"
    c.variant("dropkv", 0.1).text = "Maybe 58213. No.</think> The code is 99999."
    _, a, b = answer_cards(c, "snapkv", "dropkv", 0.1)
    assert (a.verdict, a.notice) == ("", "Cut off while thinking: there is no answer to judge.")
    assert (b.verdict, b.notice) == ("wrong", "The number stands only in the thoughts.")
    assert finding(c, "snapkv", "dropkv", 0.1)[0].startswith("SnapKV's answer was cut off while thinking")
    c.variant("snapkv", 0.1).text = "The code is 1947."
    assert finding(c, "snapkv", "dropkv", 0.1)[0].startswith("At 10%, neither answer contains")
    c.full.text = "<think>Let me see"
    assert finding(c, "snapkv", "dropkv", 0.1)[0].startswith("The full cache's answer was cut off while")


DENIED = "The expected answer stands behind a negation: read the answer itself."


@pytest.mark.parametrize(("answer", "notice"), [
    ("It is 58213.", ""),
    ("It is not 58213.", DENIED),
    ("It isn't 58213", DENIED),
    ("Never use 58213, no", DENIED),
    ("It is not 58214 but 58213.", "It names another number as well, 58214: read the answer itself."),
    ("58213 or 58214", "It names another number as well, 58214: read the answer itself."),
    ("58,213 of 1,947 in 1902", ""),
    ("58213 58213", ""),
    ("99999", ""),
])  # fmt: skip
def test_a_right_answer_that_may_be_none_is_named(answer, notice):
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).text = answer
    _, a = answer_cards(c, "snapkv", None, 0.1)
    assert (a.verdict, a.notice) == ("wrong" if answer == "99999" else "right", notice)


def test_table_of_all_answers(run):
    rows = all_answers_table(run).rows()
    assert len(rows) == 1 + len(run.variants)
    assert rows[0]["method"] == "full"
    assert all(len(row["text"]) <= 40 for row in rows)
    signs = {(row["method"], row["budget"]): row["verdict"] for row in rows}
    assert signs["dropkv", 0.05] == "right"
    assert signs["snapkv", 0.1] == "wrong"


def test_kl_strip(run):
    table = kl_strip_table(run, "snapkv", 0.1)
    figure = kl_strip_figure(table)
    assert np.allclose(figure.data[0].y, run.variant("snapkv", 0.1).kl)
    assert figure.layout.yaxis.title.text == "KL, nats"
    assert list(figure.layout.xaxis.ticktext)[1] == "·code"
    assert [row["step"] for row in table.rows()] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="KL was not measured"):
        kl_strip_table(run, "snapkv", 0.15)


def test_words_of_an_answer_are_cut_where_its_tokens_are():
    words = [("It", False), (" ", False), ("is", False), (" ", False), ("582.", True)]
    pieces = by_token(words, ["It", " is", " ", "58", "2", ".", "<|im_end|>"])
    assert "".join(piece for piece, _, _ in pieces) == "It is 582."
    assert pieces[-3:] == [("58", True, 3), ("2", True, 4), (".", True, 5)]
    assert [step for _, _, step in pieces] == [0, 1, 1, 2, 3, 4, 5]
    assert by_token(words, ["It", " was"]) == [] == by_token([], [])


def test_a_further_question_to_caches_cut_for_the_first_is_said_to_be_one():
    from kvviz.results.turns import words

    c = synthetic_comparison()
    assert c.prompt.protocol == "question-aware"
    assert words(c).startswith("The caches were cut for the first question")
    c.prompt = dataclasses.replace(c.prompt, protocol="question-agnostic")
    assert words(c) == ""
