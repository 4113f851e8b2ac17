"""Intervals and tests against independent implementations (scipy) and hand-made references."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from kvviz.results.statistics import (
    bootstrap_mean,
    holm,
    holm_words,
    mcnemar,
    p_of_mean,
    p_of_share,
    paired_means,
    student,
    wilson,
)


@pytest.mark.parametrize(("right", "n"), [(0, 5), (5, 5), (1, 3), (37, 50), (499, 1000)])
def test_wilsons_interval_is_scipys(right, n):
    mine = wilson(right, n)
    theirs = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert (mine.value, mine.n) == (right / n, n)


def test_the_bootstrap_of_a_mean_is_scipys_up_to_chance():
    x = np.random.default_rng(3).exponential(1, 60)
    mine = bootstrap_mean(x)
    done = stats.bootstrap((x,), np.mean, n_resamples=20_000, method="percentile", rng=1)
    theirs = done.confidence_interval
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert mine.value == pytest.approx(x.mean())


@pytest.mark.parametrize("values", [lambda rng: rng.choice([-1.0, 0.0, 1.0], 600, p=[0.1, 0.7, 0.2]),
                                    lambda rng: rng.exponential(1, 600)])  # fmt: skip
def test_the_bootstrap_of_many_documents_is_the_one_of_drawing_each(values):
    rng = np.random.default_rng(5)
    x, documents = values(rng), np.repeat(range(300), 2)
    mine = bootstrap_mean(x, documents)
    drawn = rng.integers(0, 300, (10_000, 300))
    means = x.reshape(300, 2)[drawn].mean((1, 2))
    assert (mine.low, mine.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.006)
    assert p_of_mean(x, x.mean(), documents) > 0.9
    assert bootstrap_mean(list(reversed(x)), documents) == mine  # in whatever order they came


def test_verdicts_of_many_items_are_drawn_by_their_kind():
    """Ten thousand resamples of a hundred thousand verdicts, one by one, would take minutes."""
    verdicts = np.random.default_rng(0).random(100_000) < 0.3
    found = bootstrap_mean(verdicts.astype(float))
    half = 1.96 * math.sqrt(0.21 / 100_000)
    assert found.high - found.value == pytest.approx(half, rel=0.05)


def test_the_bootstrap_of_six_values_is_all_46656_resamples():
    x = np.array([0.0, 1.0, 2.0, 5.0, 6.0, 7.0])
    means = x[np.array(list(itertools.product(range(6), repeat=6)))].mean(1)
    mine = bootstrap_mean(x)
    exact = np.quantile(means, [0.025, 0.975])
    assert (mine.low, mine.high) == pytest.approx(tuple(exact), abs=0.17)  # neighbouring means are 1/6 apart


def test_questions_of_one_document_count_as_one():
    """The same value asked ten times over is not ten observations."""
    values = np.random.default_rng(0).normal(size=8)
    once = bootstrap_mean(values, range(8))
    often = bootstrap_mean(np.repeat(values, 10), np.repeat(range(8), 10))
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    naive = bootstrap_mean(np.repeat(values, 10))
    assert naive.high - naive.low < 0.5 * (often.high - often.low)
    assert math.isnan(bootstrap_mean([1.0, 2.0] * 10, ["one", "two"] * 10).low)


@pytest.mark.parametrize(("a_only", "b_only"), [(0, 0), (0, 5), (0, 6), (3, 9), (10, 10)])
def test_mcnemar_is_the_exact_binomial_test(a_only, b_only):
    a = [True] * a_only + [False] * b_only + [True] * 4
    b = [False] * a_only + [True] * b_only + [True] * 4
    mine = mcnemar(a, b)
    n = a_only + b_only
    assert mine.p == pytest.approx(stats.binomtest(a_only, n).pvalue if n else 1.0)
    assert (mine.a_ahead, mine.b_ahead) == (a_only, b_only)
    expected = "too few to tell" if mine.p >= 0.05 else "B is ahead"
    assert mine.verdict() == expected


def test_a_paired_difference_is_found_where_unpaired_noise_would_hide_it():
    rng = np.random.default_rng(1)
    item = rng.normal(0, 5, 40)
    a, b = item + rng.normal(0, 0.1, 40), item + 0.2 + rng.normal(0, 0.1, 40)
    paired = paired_means(a, b)
    assert paired.verdict("A", "B") == "B is ahead" and paired.difference.low > 0
    assert stats.ttest_ind(a, b).pvalue > 0.5 and stats.ttest_rel(a, b).pvalue < 0.05
    p = stats.wilcoxon(a, b).pvalue
    assert (paired.p < 0.05) == (p < 0.05)


def test_few_items_are_too_few_to_tell_however_clear_they_look():
    assert paired_means([0, 0, 0], [1, 1, 1]).verdict() == "too few to tell"
    assert paired_means([0] * 6, [1] * 6).verdict() == "B is ahead"
    assert paired_means([0] * 30, [1] * 30, ["one"] * 15 + ["two"] * 15).verdict() == "too few to tell"
    assert paired_means([1, 2], [1, 2]).p == 1
    assert paired_means([0] * 6, [1] * 6).verdict(better="lower") == "A is ahead"


def test_false_differences_are_as_rare_as_promised():
    rng = np.random.default_rng(5)
    found = sum(paired_means(*rng.normal(size=(2, 15)), seed=i).p < 0.05 for i in range(60))
    assert found <= 9  # 5 % of 60 is 3; the percentile bootstrap of 15 is a little too sure


def test_holms_correction_by_its_definition():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])  # 0.04 may not fall below its predecessor
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
    # rejecting step by step, as the rule is usually put
    rejected = {i for i, value in enumerate(holm(p)) if value < 0.05}
    order, by_steps = sorted(range(4), key=p.__getitem__), set()
    for place, i in enumerate(order):
        if p[i] >= 0.05 / (4 - place):
            break
        by_steps.add(i)
    assert rejected == by_steps
    assert "nothing to correct" in holm_words(0) and "nothing to correct" in holm_words(1)
    assert "20 comparisons" in holm_words(20) and "Holm" in holm_words(20)


@pytest.mark.parametrize(("right", "n", "limit"), [(37, 50, 0.9), (45, 50, 0.9), (3, 40, 0.5), (40, 40, 0.9)])
def test_p_of_a_share_is_that_of_the_score_test(right, n, limit):
    p = p_of_share(right, n, limit)
    assert p == pytest.approx(stats.chisquare([right, n - right], [limit * n, (1 - limit) * n]).pvalue)
    interval = wilson(right, n)
    assert (p < 0.05) == (not interval.low <= limit <= interval.high)


@pytest.mark.parametrize("degrees", [1, 2, 3, 7, 8, 30])
def test_students_t_is_scipys(degrees):
    for t in (0.0, 0.4, 2.0, 9.0):
        assert student(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), abs=1e-12)


def test_few_documents_can_be_clear_and_cannot_be_surer_than_students_t():
    """Eight documents far from the limit stand up to a correction for ten claims; near it they do not."""
    x = 0.23 + 0.01 * np.random.default_rng(2).normal(size=24)
    documents = [i // 3 for i in range(24)]
    assert p_of_mean(x, 0.92, documents) * 10 < 0.05
    means = x.reshape(8, 3).mean(1)
    near = x.mean() - 2 * means.std(ddof=1) / 8**0.5
    assert p_of_mean(x, near, documents) >= stats.ttest_1samp(means, near).pvalue * (1 - 1e-9)
    assert p_of_mean(np.full(8, 0.5), 0.0) == 2.0**-7  # no spread to judge by


def test_p_of_a_mean_agrees_with_its_interval_and_shifts_with_the_limit():
    x = np.random.default_rng(8).normal(1, 1, 40)
    at = bootstrap_mean(x)
    assert p_of_mean(x, at.low - 0.02) < 0.05 < p_of_mean(x, at.low + 0.02)
    assert p_of_mean(x, 0.7) == p_of_mean(x - 0.7, 0.0) == paired_means(np.full(40, 0.7), x).p
    assert p_of_mean([1, 1, 1], 1) == p_of_mean([5.0], 0) == 1


def test_equal_values_say_nothing_about_others():
    same = bootstrap_mean([0.0] * 10)
    assert (same.value, same.n) == (0.0, 10) and math.isnan(same.low) and math.isnan(same.high)
    assert math.isnan(bootstrap_mean([1.0, 0.0] * 8, [i // 2 for i in range(16)]).low)  # alike by document
    assert paired_means([0.3] * 9, [0.3] * 9).verdict() == "too few to tell"
