"""Each rule of the finding with a run made for it."""

import dataclasses

import numpy as np
import pytest
from synthetic import kept_changed, synthetic_comparison

from kvviz.results.finding import caution, finding, notices
from kvviz.results.story import Places, Story
from kvviz.types import Mark


def hold(c, method, k, heads):
    """Make the first `heads` KV heads (layer by layer) hold all of M1, and no other."""
    with kept_changed(c, method, k) as mask:
        for index in range(c.model.n_layers * c.model.n_kv_heads):
            layer, head = divmod(index, c.model.n_kv_heads)
            for mark in c.marks:
                mask[layer, head, mark.start : mark.end] = index < heads


def set_kl(c, method, k, value):
    c.variant(method, k).kl[:] = value


def test_full_cache_misses_the_answer():
    c = synthetic_comparison(full_text="The code is 12.", right={"snapkv": 2.0, "dropkv": 2.0})
    set_kl(c, "snapkv", 0.1, 0.21)
    set_kl(c, "dropkv", 0.1, 0.5)
    c.variant("dropkv", 0.1).text = "It is 58213."
    first = finding(c, "snapkv", "dropkv", 0.1)[0]
    assert first == (
        "With the full cache the model already misses the expected answer, so this run cannot "
        "show who loses it. Compare the change instead: KL SnapKV 0.21, DropKV 0.50 nats/token. "
        "DropKV contains it although the full cache does not: treat as chance."
    )


def test_one_lost_it_whichever_side():
    c = synthetic_comparison()
    said = "At 10% kept, SnapKV's answer no longer contains “58213”; DropKV's still does."
    assert finding(c, "snapkv", "dropkv", 0.1)[0] == said
    assert finding(c, "dropkv", "snapkv", 0.1)[0] == said


def test_both_have_it():
    c = synthetic_comparison()
    assert finding(c, "snapkv", "dropkv", 0.5)[0] == (
        "At 50%, both answers contain “58213”. Smallest budget decoded that still does: "
        "SnapKV 20%, DropKV 5%."
    )


def test_both_lack_it():
    c = synthetic_comparison(right={"snapkv": 2, "dropkv": 2})
    assert finding(c, "snapkv", "dropkv", 0.1)[0] == ("At 10%, neither answer contains “58213”.")


def test_spelled_out_answers_count():
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).text = "the digits are 5 8 2 1 3"
    assert finding(c, "snapkv", "dropkv", 0.1)[0].startswith("At 10%, both answers contain")


def test_one_method():
    c = synthetic_comparison()
    said = finding(c, "snapkv", None, 0.1)
    assert said[0] == "At 10% kept, SnapKV's answer no longer contains “58213”."
    assert "DropKV" not in " ".join(said)
    assert finding(c, "snapkv", None, 0.5)[0].startswith("At 50%, SnapKV's answer contains")


def test_without_an_expected_answer():
    c = synthetic_comparison(expected=None)
    assert finding(c, "snapkv", "dropkv", 0.1)[0] == (
        "SnapKV's answer goes another way after “The code is”; "
        "DropKV gives the full cache's answer token for token."
    )


def test_an_answer_that_stops_early():
    c = synthetic_comparison(expected=None)
    v = c.variant("snapkv", 0.1)
    v.tokens, v.token_ids = c.full.tokens[:2], c.full.token_ids[:2]
    v.first_difference = 2
    said = finding(c, "snapkv", None, 0.1)[0]
    assert said == "SnapKV's answer ends after “The code”, where the full cache's goes on."


def test_an_answer_that_differs_from_the_start_or_goes_on():
    c = synthetic_comparison(expected=None)
    v = c.variant("snapkv", 0.1)
    v.tokens, v.token_ids, v.first_difference = ["It", " was", " 5"], [1, 2, 3], 0
    said = finding(c, "snapkv", None, 0.1)[0]
    assert said == "SnapKV's answer goes another way from its first word."
    v.tokens, v.token_ids = [*c.full.tokens, " And", " so"], [*c.full.token_ids, 7, 8]
    v.first_difference = len(c.full.token_ids)
    assert finding(c, "snapkv", None, 0.1)[0] == "SnapKV's answer goes on where the full cache's ends."


def test_one_token_of_a_known_question_shows_nothing():
    """It was chosen before anything was evicted."""
    c = synthetic_comparison(expected=None, full_text="58213")
    v = c.variant("snapkv", 0.1)
    v.tokens, v.token_ids, v.first_difference = ["58213"], list(c.full.token_ids), None
    said = finding(c, "snapkv", None, 0.1)[0]
    assert said == "SnapKV's answer is one token, which was chosen before anything was evicted."


def test_a_curve_that_rises_again_is_said():
    c = synthetic_comparison(budgets=(0.5, 0.2, 0.1, 0.02))
    for k, answer in ((0.5, "58213"), (0.2, "5"), (0.1, "12"), (0.02, "58213")):
        c.variant("snapkv", k).text = answer
    c.variant("dropkv", 0.02).text = "58213"
    assert finding(c, "snapkv", "dropkv", 0.5)[0].startswith(
        "At 50%, both answers contain “58213”. Smallest budget decoded that still does: "
        "SnapKV 2% (lost at 20% and 10%), DropKV 2%."
    )
    said = finding(c, "snapkv", "dropkv", 0.1)[0]
    assert said == (
        "At 10% kept, SnapKV's answer no longer contains “58213”; DropKV's still does. "
        "SnapKV's does again at 2%."
    )


def test_an_answer_that_stands_nowhere_in_the_text_is_said():
    c = synthetic_comparison(marked=False, expected="Paris", full_text="It is Paris.")
    said = "“Paris” does not occur in the document: the model may have known it, whatever was evicted."
    assert said in notices(c, ["snapkv", "dropkv"], 0.1)
    spelled = synthetic_comparison(marked=False, expected="58213")
    object.__setattr__(spelled.prompt, "document", "the code is 5 8 2 1 3 here")
    assert not any("does not occur" in line for line in notices(spelled, ["snapkv"], 0.1))


def test_settings_that_differ_are_said_whenever_they_do():
    c = synthetic_comparison()
    assert not any("Settings" in line for line in finding(c, "snapkv", "dropkv", 0.1))
    c.variant("dropkv", 0.1).options.update(window=8, pool=11, pool_kind="max")
    c.variant("snapkv", 0.1).options.update(pool_kind="avg")
    said = finding(c, "snapkv", "dropkv", 0.1)
    assert "Settings" not in said[0]  # the headline is what was answered
    assert said[1] == (
        "Settings differ too: SnapKV window 32, average over 7; DropKV window 8, maximum over 11."
    )
    c.variant("streaming_llm", 0.1).options = {"sinks": 4}  # another formula, no setting in common
    assert not any("Settings" in line for line in finding(c, "snapkv", "streaming_llm", 0.1))


@pytest.mark.parametrize("expected", [None, "58213"])
def test_answers_that_were_cut_off_are_no_finding(expected):
    c = synthetic_comparison(expected=expected)
    c.variant("snapkv", 0.1).finished = "cancelled"
    said = finding(c, "snapkv", "dropkv", 0.1)
    assert said[0] == "This run was stopped before SnapKV's answer was complete."
    assert "KL" not in " ".join(said) and "changed" not in " ".join(said)
    c.full.finished, c.full.text = "cancelled", "The"
    said = finding(c, "dropkv", "streaming_llm", 0.1)
    assert said[0].startswith("This run was stopped before the full cache's answer was complete")
    assert len(said) == 2


def test_a_miss_at_the_length_limit_is_said_to_be_one():
    c = synthetic_comparison(full_text="The code is 5821", right={})
    c.full.finished = "length"
    assert "(It was cut at 4 tokens: a longer answer may reach it.)" in finding(c, "snapkv", None, 0.1)[0]


def test_equal_kept_sets_are_one_method_here():
    c = synthetic_comparison()
    with kept_changed(c, "dropkv", 0.1) as mask:
        mask[:] = c.at("snapkv", 0.1).kept.mask()
    said = "SnapKV and DropKV keep the very same entries at 10%: they are one method here."
    assert said in notices(c, ["snapkv", "dropkv"], 0.1)
    assert not any("very same" in line for line in notices(c, ["snapkv", "streaming_llm"], 0.1))


def test_hostile_labels_and_ids_cannot_turn_a_sentence_round():
    c = synthetic_comparison(expected="\u202e31285")
    for v in c.variants:
        if v.method == "snapkv":
            v.label = "Snap\u202eKV\u2069"
    object.__setattr__(c.model, "id", "\u05d0\u202e/x")
    said = " ".join([*finding(c, "snapkv", "dropkv", 0.1), caution(c, ["snapkv"], 0.1)])
    assert "\u202e" not in said
    assert "Snap▯KV▯" in said
    assert "\u2068\u05d0▯/x\u2069" in said  # right to left text is set apart
    assert said.count("\u2068") == said.count("\u2069")


def test_not_decoded():
    c = synthetic_comparison()
    said = finding(c, "snapkv", "dropkv", 0.15)
    assert said[0] == "Answers at 15% are not decoded yet."
    assert said[1].startswith("SnapKV holds all of “58213” (M1) in")
    assert len(said) == 2  # KL needs decoding


@pytest.mark.parametrize(("a", "b"), [(0, 5), (9, 0), (18, 18), (3, 12)])
def test_counts_of_holders(a, b):
    c = synthetic_comparison()
    hold(c, "snapkv", 0.1, a)
    hold(c, "dropkv", 0.1, b)
    said = finding(c, "snapkv", "dropkv", 0.1)[1]
    assert said.startswith(f"SnapKV holds all of “58213” (M1) in {a} of 18 KV heads, DropKV in {b}.")
    most = "SnapKV: Most heads still hold it; the answer changed all the same."
    none = "DropKV: No head holds all of it; other tokens may carry the answer."
    assert (most in said) == (a >= 9)  # SnapKV lost the answer here
    assert (none in said) == (b == 0)  # DropKV kept it


def test_held_sentences_need_no_name_when_one_method_is_shown():
    c = synthetic_comparison()
    hold(c, "snapkv", 0.1, 18)
    assert finding(c, "snapkv", None, 0.1)[1] == (
        "SnapKV holds all of “58213” (M1) in 18 of 18 KV heads. "
        "Most heads still hold it; the answer changed all the same."
    )


def test_part_of_a_mark_does_not_count():
    c = synthetic_comparison()
    hold(c, "snapkv", 0.1, 18)
    with kept_changed(c, "snapkv", 0.1) as mask:
        mask[:, :, c.marks[0].start] = False
    assert "SnapKV holds all of “58213” (M1) in 0 of 18" in finding(c, "snapkv", None, 0.1)[1]


def test_several_places_of_the_answer_count_at_least_one():
    c = synthetic_comparison()
    start, end = c.marks[0].start, c.marks[0].end
    c.marks[:] = [Mark("M1a", start, end, "58213"), Mark("M1b", 200, 205, "58213")]
    with kept_changed(c, "snapkv", 0.1) as mask:
        for index, layer in enumerate(mask):
            layer[:, start:end] = index == 0
            layer[:, 200:205] = index == 1
    said = finding(c, "snapkv", None, 0.1)[1]
    assert said.startswith("SnapKV holds “58213” at M1a or M1b in 6 of 18 KV heads.")


def test_overlap_without_a_mark():
    c = synthetic_comparison(marked=False)
    a, b = c.at("snapkv", 0.2).kept.mask(), c.at("dropkv", 0.2).kept.mask()
    share = 100 * (a & b).sum() / (a | b).sum()
    said = finding(c, "snapkv", "dropkv", 0.2)[1]
    assert said == f"The two kept sets share {share:.0f}% of their entries."


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (0.21, 0.0123, "Mean KL 0.21 against 0.012 nats/token."),
        (0.2, 0.19, "Mean KL about the same: 0.20 and 0.19 nats/token."),
        (0.0009, 0.0001, "Mean KL about the same: <0.001 and <0.001 nats/token."),
        (0.0021, 0.0001, "Mean KL 0.0021 against <0.001 nats/token."),
    ],
)
def test_effect(x, y, said):
    c = synthetic_comparison()
    set_kl(c, "snapkv", 0.1, x)
    set_kl(c, "dropkv", 0.1, y)
    assert finding(c, "snapkv", "dropkv", 0.1)[2] == said


def test_no_kl_no_sentence():
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).kl = None
    assert len(finding(c, "snapkv", "dropkv", 0.1)) == 2


def story_of_places(a, b):
    return Story(places=Places({"snapkv": a, "dropkv": b}, "Code"))


def test_places():
    c = synthetic_comparison()
    c.story = story_of_places({0.1: (False,) * 5}, {0.1: (True,) * 4 + (False,)})
    assert finding(c, "snapkv", "dropkv", 0.1)[2] == (
        "Code at five places: SnapKV 0 of 5, DropKV 4. Too few to rank methods."
    )


def test_places_that_are_not_monotonic():
    c = synthetic_comparison()
    c.story = story_of_places(
        {0.1: (True, False, False)},
        {0.1: (True, True, True), 0.2: (True, False, False)},
    )
    assert finding(c, "snapkv", "dropkv", 0.1)[2] == (
        "Code at three places: SnapKV 1 of 3, DropKV 3. Too few to rank methods. "
        "DropKV finds 3 at 10% and fewer (1) at 20%: single answers are noisy."
    )


def test_caution():
    aware = caution(synthetic_comparison(), ["snapkv"], 0.1)
    assert aware == (
        "Later tokens were read while everything was still there, so they may carry part of what "
        "was dropped. The question was known while compressing: this cache serves this one question. "
        "One document, one question, test/tiny, question-aware, greedy."
    )
    agnostic = synthetic_comparison(protocol="question-agnostic")
    assert caution(agnostic, ["snapkv"], 0.1) == (
        "The question comes later: SnapKV reads the end of the document instead. "
        "One document, one question, test/tiny, question-agnostic, greedy."
    )
    agnostic.settings["temperature"] = 0.7
    assert "sampled at temperature 0.7" in caution(agnostic, ["snapkv"], 0.1)


def test_no_caution_about_what_was_dropped_where_nothing_was():
    c = synthetic_comparison(budgets=(1.0, 0.1))
    assert "may carry part" not in caution(c, ["snapkv", "dropkv"], 1.0)
    assert "this cache serves this one question" in caution(c, ["snapkv"], 1.0)


def test_eviction_while_writing_is_said():
    c = synthetic_comparison(evict_every=1)
    c.settings["evict_every"] = 16
    assert caution(c, ["snapkv"], 0.1).endswith("greedy, evicting again every 16 tokens while writing.")


def test_notices():
    c = synthetic_comparison(budgets=(1.0, 0.1, 0.01))
    assert notices(c, ["snapkv"], 1.0) == ["SnapKV kept everything at this budget: nothing was evicted."]
    with kept_changed(c, "snapkv", 0.01) as mask:
        mask[:] = c.at("snapkv", 0.01).kept.protected()
    first, last = notices(c, ["snapkv"], 0.01)
    assert first == "In 18 heads SnapKV kept no entry of the document."
    assert last == "At 1%, SnapKV can keep only its protected tokens."


def test_never_more_than_three_lines_and_no_judgement():
    for seed in range(3):
        for k in (0.5, 0.1, 0.15):
            for b in ("dropkv", None):
                lines = finding(synthetic_comparison(seed=seed), "snapkv", b, k)
                assert 1 <= len(lines) <= 3
                words = " ".join(lines).lower()
                for banned in ("because", "better", "wins", "proves"):
                    assert banned not in words


def test_hostile_answers_stay_text():
    c = synthetic_comparison(expected="<img src=x onerror=1>\n" + "y" * 90)
    said = finding(c, "snapkv", "dropkv", 0.1)[0]
    assert "\n" not in said
    assert len(said) < 500


def test_methods_with_options_keep_their_own_label():
    c = synthetic_comparison()
    for v in c.variants:
        if v.method == "dropkv":
            v.method, v.label = "dropkv:window=16", "DropKV (window 16)"
    said = finding(c, "snapkv", "dropkv:window=16", 0.1)[0]
    assert "DropKV (window 16)'s still does" in said


def test_partial_runs():
    """A stopped run has some of its answers and no stops."""
    c = synthetic_comparison()
    kept = [v for v in c.variants if v.method == "snapkv" or v.budget == 0.5]
    c = dataclasses.replace(c, variants=kept, at_stops=[])
    assert finding(c, "snapkv", "dropkv", 0.1) == ["Answers at 10% are not decoded yet."]
    assert np.isfinite(c.share(0.1))


def test_layers_that_slid_past_the_document_lost_nothing_to_a_method():
    c = synthetic_comparison(n=300, windows=(6,) + (None,) * 5, budgets=(0.5,))
    assert not c.variant("snapkv", 0.5).selection.mask[0][:, : c.prompt.document_span[1]].any()
    assert notices(c, ["snapkv"], 0.5) == []
