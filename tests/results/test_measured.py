"""Measures as rows: one rule each for KL, the median error, heads improved; only whole answers are judged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import kept_changed, synthetic_comparison

from kvviz.results.answers import all_answers_table, answer_cards
from kvviz.results.measures import MEASURE, MEASURES, Against, improved, max_kl, mean_kl, token_f1


def value(c, measure, method, budget, **look):
    return MEASURE[measure].of(c, c.at(method, budget), Against(**look))


def test_mean_kl_leaves_out_the_step_that_was_chosen_before_anything_was_evicted():
    kl = np.array([0.0, 0.3, 0.5], np.float32)
    assert mean_kl(kl, "question-aware") == pytest.approx(0.4)
    assert mean_kl(kl, "question-agnostic") == pytest.approx(0.8 / 3)
    assert mean_kl(None, "question-aware") is None
    assert mean_kl(np.array([]), "question-aware") is None


def test_an_answer_of_one_token_has_no_kl_and_is_not_called_the_same():
    """Question-aware, the first token is chosen before anything was evicted: random scores 0 there."""
    kl = np.zeros(1, np.float32)
    assert mean_kl(kl, "question-aware") is None and max_kl(kl, "question-aware") is None
    assert mean_kl(kl, "question-agnostic") == 0.0
    c = synthetic_comparison(full_text="58213", right=dict.fromkeys(("snapkv", "dropkv"), 0.0))
    v = c.variant("snapkv", 0.1)
    assert (len(v.token_ids), len(v.kl)) == (1, 1)
    assert c.to_frame().set_index(["method", "budget"]).mean_kl.isna().all()
    card = answer_cards(c, "snapkv", None, 0.1)[1]
    assert card.kl_line == "one token, chosen before anything was evicted"
    assert MEASURE["kl"].words(value(c, "kl", "snapkv", 0.1)) == "–"


def test_the_median_error_is_that_of_layers_which_evicted():
    """Sliding layers that keep all they can hold have error 0, whatever the method."""
    c = synthetic_comparison(windows=(40,) * 4 + (None,) * 2, budgets=(0.5,))
    v = c.variant("snapkv", 0.5)
    v.output_error[:4] = 0
    with kept_changed(c, "snapkv", 0.5) as mask:
        mask[:4, :, -39:] = True
    assert np.median(v.output_error) == 0
    assert value(c, "output_error", "snapkv", 0.5) == pytest.approx(np.median(v.output_error[4:]))
    row = c.to_frame().set_index("method").loc["snapkv"]
    assert row.median_output_error == pytest.approx(np.median(v.output_error[4:]))
    assert row.mean_output_error == pytest.approx(v.output_error[4:].mean())
    assert row.layers_evicting == 2


def test_nothing_evicted_is_no_error():
    c = synthetic_comparison(budgets=(1.0,))
    assert value(c, "output_error", "snapkv", 1.0) == 0
    assert c.to_frame().set_index("method").layers_evicting["snapkv"] == 0


def test_heads_improved_are_counted_against_the_methods_own_base():
    c = synthetic_comparison(methods=("snapkv", "adakv", "dropkv"))
    c.settings["methods"] = {"dropkv": {"compare_with": "adakv"}, "adakv": {"compare_with": "snapkv"}}
    base, own = c.variant("adakv", 0.1).output_error, c.variant("dropkv", 0.1).output_error
    own[:] = base
    own[0, :2] = base[0, :2] * 0.5  # lower
    own[0, 2] = base[0, 2] * 0.995  # equal within 1%
    own[0, 3] = base[0, 3] * 2
    assert improved(c, c.at("dropkv", 0.1)) == pytest.approx(2 / own.size)
    frame = c.to_frame().set_index(["method", "budget"])
    assert frame.heads_improved["dropkv", 0.1] == pytest.approx(2 / own.size)
    assert improved(c, c.at("snapkv", 0.1)) is None


def test_every_measure_writes_its_values_and_has_a_known_direction():
    c = synthetic_comparison()
    for m in MEASURES:
        found = m.of(c, c.at("dropkv", 0.1), Against("snapkv", None, "58213"))
        assert m.words(None) == "–"
        if found is not None:
            assert m.words(found) not in ("", "–")
        assert m.better in ("lower", "higher", "")


def test_an_answer_that_was_cut_off_is_not_judged():
    c = synthetic_comparison()
    v = c.variant("snapkv", 0.05)
    v.finished = "cancelled"
    card = answer_cards(c, "snapkv", None, 0.05)[1]
    assert (card.verdict, card.verdict_words) == ("", "cut off: the run was stopped")
    assert card.kl_line.endswith("cut off: the run was stopped")
    table = all_answers_table(c)
    row = [r for r in table.rows(None) if (r["method"], r["budget"]) == ("snapkv", 0.05)][0]
    assert row["verdict"] == ""
    assert value(c, "expected", "snapkv", 0.05, expected="58213") is None
    c.full.finished = "cancelled"
    assert answer_cards(c, "snapkv", None, 0.1)[0].verdict == ""
    assert not answer_cards(c, "snapkv", None, 0.1)[1].grey


def test_one_token_and_everything_are_two_rows_with_their_own_budget():
    c = synthetic_comparison(budgets=(1, 1.0))
    frame = c.to_frame()
    budgets = frame[frame.method == "snapkv"].budget.tolist()
    assert [(type(b), b) for b in budgets] == [(int, 1), (float, 1.0)]
    assert frame[frame.method == "snapkv"].entries.tolist() == [1, c.n]
    assert {"share", "entries", "options", "seconds", "f1_full", "f1_expected"} <= set(frame.columns)


def test_memory_is_said_with_its_moment():
    c = synthetic_comparison()
    v = c.variant("snapkv", 0.1)
    a_token = 2 * 6 * 3 * 16 * 4  # K and V, layers, KV heads, head size, float32
    assert c.token_bytes == a_token
    assert c.bytes_at_end(v) == v.bytes + (len(v.token_ids) - 1) * a_token
    assert answer_cards(c, "snapkv", None, 0.1)[1].budget_line.endswith("MB after reading, +2.3 kB a token")
    cuts = [{"step": 4, "dropped": []}, {"step": 8, "dropped": []}]
    cut = dataclasses.replace(v, token_ids=list(range(11)), evictions=cuts)
    assert c.bytes_at_end(cut) == v.bytes + 2 * a_token


@pytest.mark.parametrize(
    ("answer", "expected", "f1"),
    [
        ("The code is 58213.", "the code is 58213", 1.0),
        ("58213", "the code is 58213", 2 * 1 / 5),
        ("a b b", "b b c", 2 * 2 / 6),
        ("", "x", 0.0),
        ("", "...", 1.0),
        ("naïve\tÉTUDE", "NAÏVE étude!", 1.0),
    ],
)
def test_word_agreement(answer, expected, f1):
    assert token_f1(answer, expected) == pytest.approx(f1)


def test_memory_at_the_end_counts_what_sliding_layers_still_hold():
    """Layers whose window is full gain a row and lose one with every token."""
    c = synthetic_comparison()
    windows = (None, 9, None, 9, None, 9)
    c = dataclasses.replace(c, model=dataclasses.replace(c.model, windows=windows))
    a_token = 2 * 3 * 3 * 16 * 4  # K and V, three growing layers, KV heads, head size, float32
    assert c.token_bytes == a_token
    written = len(c.full.token_ids) - 1
    assert c.bytes_at_end(c.full) == c.full.bytes + written * a_token, "the window's 8 rows stay 8"
    v = c.variant("snapkv", 0.1)
    kept = v.packed.kept.mask()[1::2]
    left, tail = kept[..., : c.n + len(v.token_ids) - 1 - 8].sum(), min(8, len(v.token_ids) - 1)
    gained = 3 * 3 * (len(v.token_ids) - 1) + 3 * 3 * tail - left
    assert c.bytes_at_end(v) == v.bytes + int(gained) * 2 * 16 * 4
