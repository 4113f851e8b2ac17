"""Causes, fork, answer attention and ablation in a saved run: the same again, and lies about them told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from synthetic import synthetic_comparison, with_findings
from test_damaged import DAMAGED, changed, put

from kvviz.errors import InputError
from kvviz.results.archive import load_comparison
from kvviz.results.attention import decode, encode
from kvviz.results.cause_words import would_do_sentence
from kvviz.results.causes import FOUND


@pytest.fixture(scope="module")
def c():
    methods = ("snapkv", "dropkv")
    return with_findings(synthetic_comparison(n=120, L=2, methods=methods, budgets=(0.5, 0.1), stops=(0.1,)))


@pytest.mark.parametrize("form", ["zip", "json"])
def test_everything_comes_back(c, form, tmp_path):
    again = load_comparison(changed(c, tmp_path / f"run.{form}", lambda m: None, form))
    (key,) = again.causes
    old, new = c.causes[key], again.causes[key]
    bare = {"would_do": None}
    assert dataclasses.replace(old, **bare) == dataclasses.replace(new, **bare)
    assert new.to_dict() == old.to_dict()
    assert np.array_equal(new.would_do.mask, old.would_do.mask)
    assert again.fork == c.fork and again.ablation == c.ablation
    for one, other in zip(again.answer_attention.arrays, c.answer_attention.arrays, strict=True):
        assert np.array_equal(one, other)
    assert again.answer_attention.keys == c.answer_attention.keys == [v.key for v in c.variants]


def test_runs_without_them_open(tmp_path):
    plain = synthetic_comparison(n=40, L=2, budgets=(0.5,))

    def older(manifest):
        for name in ("causes", "fork", "answer_attention", "ablation"):
            del manifest[name]

    again = load_comparison(changed(plain, tmp_path / "run.zip", older))
    assert again.causes == {} and again.fork is again.answer_attention is again.ablation is None
    assert again.would_do is None and again.at(FOUND, 0.1) is None


def test_the_cache_that_would_do_is_a_point_at_its_true_size(c):
    point = c.at(FOUND, 0.5)
    mask = c.would_do.mask
    assert np.array_equal(point.kept.mask(), mask)
    assert point.budget == pytest.approx(mask.sum() / mask.size)
    assert FOUND not in c.methods and point.budget not in c.budgets


def test_a_search_that_ended_says_the_limit_it_was_given_and_not_the_trials_it_made(c):
    (found,) = c.causes.values()
    stopped = dataclasses.replace(found.would_do, minimal=False, trials=946, most=1000)
    causes = {"it": dataclasses.replace(found, would_do=stopped)}
    said = would_do_sentence(dataclasses.replace(c, causes=causes))
    assert "ended at its limit of 1,000 trials" in said


def test_agreement_is_with_the_answers_at_that_budget(c):
    (found,) = c.causes.values()
    assert [a.name for a in found.agreement] == ["snapkv@0.1", "dropkv@0.1", "recency", "random"]


def test_effects_along_the_prompt(c):
    (found,) = c.causes.values()
    tokens = {e.token: e.effect for e in found.of("put_back", "token")}
    assert found.token_map() == pytest.approx([tokens[t] for t in range(120)])
    only = dataclasses.replace(found, put_back=found.of("put_back", "passage"))
    spread = only.token_map()
    for e in only.put_back:
        part = spread[e.passage.start : e.passage.end]
        assert part.sum() == pytest.approx(e.effect) and np.ptp(part) == 0
    assert dataclasses.replace(found, put_back=[]).token_map() is None


def test_weights_are_stored_on_a_scale_of_square_roots():
    x = np.linspace(0, 1, 10_001, dtype=np.float32)
    assert np.abs(decode(encode(x)) - x).max() < 0.004
    small = np.float32([0, 1e-5, 1e-4, 1e-3])
    again = decode(encode(small))
    assert again == pytest.approx(small, rel=0.6) and (np.diff(again) > 0).all()


def test_what_was_looked_at_and_lost(c):
    a = c.answer_attention
    weights = decode(a.codes)
    assert a.weights(2, 1, 0) == pytest.approx(weights[2, 1, 0])
    assert a.weights(2) == pytest.approx(weights[2].mean((0, 1)), abs=1e-6)
    lost = ~c.variant("snapkv", 0.1).packed.kept.mask()
    assert a.gone("snapkv@0.1") == pytest.approx((weights * lost).sum(-1).mean((1, 2)), abs=0.03)
    first, last = c.prompt.document_span
    inside = (weights * lost)[..., first:last].sum((1, 2, 3)) / weights[..., first:last].sum((1, 2, 3))
    assert a.gone_document("snapkv@0.1") == pytest.approx(inside, abs=0.05)


CAUSE = ("causes", 0)
LIES = {
    "causes of no method": put(*CAUSE, "method", value=5),
    "a budget of nothing": put(*CAUSE, "budget", value=0),
    "a gap without end": put(*CAUSE, "gap", value="inf"),
    "a passage beyond the text": put(*CAUSE, "passages", 1, value=["document", 5, 10**6]),
    "a passage of the template": put(*CAUSE, "passages", 0, value=["document", 0, 2]),
    "a passage of no kind": put(*CAUSE, "passages", 0, value=["<b>", 0, 2]),
    "fewer passages": put(*CAUSE, "passages", value=[]),
    "an entry elsewhere": put(*CAUSE, "rescue", "entries", 0, value=[0, 0, 10**6]),
    "a necessity of none": put(*CAUSE, "rescue", "necessary", value=[True]),
    "a control in words": put(*CAUSE, "rescue", "controls", "added", 0, value="yes"),
    "a verdict of its own": put(*CAUSE, "rescue", "verdict", value="<script>"),
    "a share that is none": put(*CAUSE, "would_do", "held", value={"snapkv@0.1": "all"}),
    "notes that are none": put(*CAUSE, "would_do", "notes", value="none"),
    "an agreement in words": put(*CAUSE, "agreement", 0, "rho", value="high"),
    "a fork without the full cache": lambda m: m["fork"]["paths"].pop("full"),
    "a probability in words": put("fork", "paths", "full", "steps", 0, "likeliest", value=[["a", "b"]]),
    "a rank of nothing": put("fork", "paths", "full", "expected", 0, value=[0.5, 0]),
    "keys that are none": put("answer_attention", value="snapkv@0.1"),
    "more keys than shares": put("answer_attention", value=["a", "b", "c", "d", "e"]),
    "a pooling of its own": put("ablation", "rows", 0, "pool_kind", value="median"),
    "an ablation of nothing": put("ablation", value=[1]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_one_sentence(c, lie, tmp_path):
    with pytest.raises(InputError, match=DAMAGED):
        load_comparison(changed(c, tmp_path / "run.zip", LIES[lie]))


@pytest.mark.parametrize("name", ["places", "values"])
def test_arrays_of_effects_are_checked(c, name, tmp_path, monkeypatch):
    from kvviz.results import stored

    honest = stored.pack_causes

    def lying(causes):
        spec, arrays = honest(causes)
        row = arrays[f"causes0_put_back_{name}"] = arrays[f"causes0_put_back_{name}"].copy()
        row[0, 1] = 2 if name == "places" else np.inf  # a third layer of two
        return spec, arrays

    monkeypatch.setattr(stored, "pack_causes", lying)
    with pytest.raises(InputError, match=DAMAGED):
        load_comparison(c.save(tmp_path / "run.zip"))
