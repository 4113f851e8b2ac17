"""Rank correlation of what is kept with what matters."""

import numpy as np
import pytest

from kvviz.errors import InputError
from kvviz.results.agreement import agreement, kept_shares, spearman
from kvviz.results.causes import Causes, Effect
from kvviz.results.passages import Passage


def causes_of(effects, kind="document"):
    rows = [
        Effect("passage", 4, e, 0.0, passage=Passage(kind, 2 * i, 2 * i + 2, f"p{i}"))
        for i, e in enumerate(effects)
    ]
    return Causes("snapkv", 0.1, "", [], "", 0.0, None, 0.0, 2 * len(effects), taken_out=rows)


def mask_of(shares):
    mask = np.zeros((1, 10, 2 * len(shares)), bool)
    for i, share in enumerate(shares):
        mask[:, :share, 2 * i : 2 * i + 2] = True
    return mask


def test_spearman_by_hand():
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 1000])) == pytest.approx(1)
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1])) == pytest.approx(-1)
    # d = (0, 1, -1, 0): 1 - 6 * 2 / (4 * 15)
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    # ranks (1, 2.5, 2.5, 4) against (1, 2, 3, 4)
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])) == pytest.approx(4.5 / np.sqrt(22.5))
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_who_keeps_what_matters():
    effects = [5.0, 0.1, 3.0, 0.2, 8.0, 0.3, 1.0, 0.0]
    best = mask_of([7, 2, 6, 3, 8, 4, 5, 1])
    worst = mask_of([2, 7, 3, 6, 1, 5, 4, 8])
    rows = {row.name: row for row in agreement(causes_of(effects), {"best": best, "worst": worst})}
    assert rows["best"].rho == pytest.approx(1) and rows["best"].low > 0.9
    assert rows["worst"].rho == pytest.approx(-1)
    assert rows["recency"].rho == pytest.approx(spearman(np.arange(8.0), np.array(effects)))
    assert rows["random"].low < 0 < rows["random"].high and abs(rows["random"].rho) < 0.05
    assert all(r.low <= r.rho + 1e-9 and r.rho <= r.high + 1e-9 for r in rows.values())


def test_shares_of_passages():
    pieces = [Passage("document", 0, 2, ""), Passage("document", 2, 4, "")]
    assert kept_shares(mask_of([3, 10]), pieces).tolist() == pytest.approx([0.3, 1.0])


def test_too_few_passages_are_refused():
    with pytest.raises(InputError, match="at least four passages"):
        agreement(causes_of([1.0, 2.0, 3.0]), {})
    with pytest.raises(InputError, match="at least four passages"):
        agreement(causes_of([1.0] * 9, kind="template"), {})
