"""What had to be kept, in sentences: counts come from the search, and random sets stand beside them."""

import dataclasses

import pytest
from synthetic import synthetic_comparison, with_findings

from kvviz.errors import InputError
from kvviz.results import cause_words, fork_words
from kvviz.results.ablation import Ablation, AblationRow
from kvviz.results.causes import Controls
from kvviz.results.finding import finding
from kvviz.results.fork import Fork, Path, Step
from kvviz.results.same import same_settings, settings_apart
from kvviz.results.times import causes_seconds


@pytest.fixture(scope="module")
def c():
    return with_findings(synthetic_comparison())


def rescued(c, entries, added):
    found = c.causes["snapkv@0.1"]
    rescue = dataclasses.replace(
        found.rescue, entries=entries, necessary=[True] * len(entries), controls=Controls(added, added)
    )
    return dataclasses.replace(found, rescue=rescue)


def test_the_finding_says_what_returns_the_answer_beside_random_sets(c):
    found = rescued(c, [(1, 2, 80), (1, 2, 81), (1, 2, 82)], [False] * 20)
    said = finding(dataclasses.replace(c, causes={"snapkv@0.1": found}), "snapkv", "dropkv", 0.1)[1]
    assert said == (
        "Putting 3 of 5,400 entries back into SnapKV's cache (three tokens in one head) returns the answer; "
        "0 of 20 random sets of that size do."
    )


def test_a_set_that_any_other_equals_is_not_singled_out(c):
    said = cause_words.rescue_sentence(c, rescued(c, [(0, 0, 5)], [True] * 20))
    assert said.endswith("20 of 20 random sets of that size do. So this does not single them out.")


def test_an_answer_without_causes_names_those_that_are_known(c):
    with pytest.raises(InputError, match="Known here: SnapKV at 10%."):
        cause_words.need_causes(c, "dropkv", 0.1)


def path(name, tokens, near):
    return Path(name, "".join(tokens), [Step(t, [(t, 0.5)]) for t in tokens], near)


@pytest.mark.parametrize("rank, how", [(2, "went another way"), (1204, "lost it")])
def test_lost_is_told_from_another_way(c, rank, how):
    tokens = ["The", " code", " is", " 58", "213", "."]
    near = [(0.9, 1)] * 3 + [(0.31, rank)] + [(0.9, 1)] * 2
    fork = Fork(tokens, {"full": path("full", tokens, [(1.0, 1)] * 6),
                         "x": path("x", ["The", " code", " is", " 12"], near)})  # fmt: skip
    said = fork_words.near_words(c, fork, "x", "SnapKV")
    assert said.startswith(f"SnapKV {how}: led that far,") and "(31%)" in said
    assert fork_words.expected_steps(tokens, "58213") == range(3, 5)


def test_same_settings_names_b_with_as_options():
    c = synthetic_comparison()
    assert same_settings(c, "snapkv", "dropkv", 0.1) is None
    c.variant("dropkv", 0.1).options = {"window": 8, "pool": 11, "pool_kind": "max"}
    same = same_settings(c, "snapkv", "dropkv", 0.1)
    assert same["method"] == "dropkv:pool=7,window=32" and not same["held"]


def test_a_token_says_how_much_of_what_it_looked_at_is_gone(c):
    said = fork_words.looked_words(c, 1, [("SnapKV", "snapkv@0.1"), ("DropKV", "dropkv@0.1")])
    gone = c.answer_attention.gone("snapkv@0.1")[1]
    assert f"{round(100 * gone)}% of what this token looked at is gone in SnapKV" in said


@pytest.mark.parametrize(
    "verdicts, said",
    [
        (
            {8: ("right", "right"), 32: ("wrong", "wrong")},
            "both find it with window 8, maximum over 11; both miss it with window 32, maximum over 11: "
            "here the settings decide, not the formula.",
        ),
        ({8: ("right", "right")}, "both find it with window 8, maximum over 11."),
        ({8: ("wrong", "right")}, "only DropKV finds it with window 8, maximum over 11."),
    ],
)
def test_what_the_settings_do_is_not_put_down_to_the_formula(verdicts, said):
    c = synthetic_comparison()
    rows = [
        AblationRow(method, window, "max", 11, 0.1, verdict, 0.1, "text")
        for window, pair in verdicts.items() for method, verdict in zip(("snapkv", "dropkv"), pair)
    ]  # fmt: skip
    c = dataclasses.replace(c, ablation=Ablation(rows, "text", "right"))
    sides = [c.variant("snapkv", 0.1), c.variant("dropkv", 0.1)]
    assert settings_apart(c, sides) == ""
    sides[1].options = {"window": 8, "pool": 11, "pool_kind": "max"}
    assert settings_apart(c, sides).endswith(f". With equal settings, {said}")


def test_how_long_a_search_takes_is_told_from_how_long_reading_took():
    """More with more units; None where that is not known."""
    c = with_findings(synthetic_comparison(n=300, L=4))
    c.seconds["prefill"] = 1.3 * c.n / 1041
    c.full.token_ids = list(range(17))
    assert 30 < causes_seconds(c, 132) < 90  # a token of a trial costs about as much as one that is read
    assert causes_seconds(c, 264) > causes_seconds(c, 132)
    del c.seconds["prefill"]
    assert causes_seconds(c, 132) is None


@pytest.mark.parametrize(
    "gap, said",
    [
        (6.47, "the 20 strongest passages put back together return 1.3 nats of 6.5 nats."),
        (0.15, "The gap is only 0.15 nats: at such a near tie many sets of entries turn the answer."),
    ],
)
def test_why_no_small_rescue_was_found_is_said(c, gap, said):
    found = dataclasses.replace(c.causes["snapkv@0.1"], gap=gap, expected_gap=None)
    words = cause_words.spread_sentence(found, 33792, 1.3)
    assert said in words and "33,792 entries" in words and "All 4 tokens of the answer" in words
    found.expected_gap = 1.0
    assert "tokens of the answer" not in cause_words.spread_sentence(found, 33792, 1.3)
