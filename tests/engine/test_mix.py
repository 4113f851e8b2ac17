"""A mix of stored numbers: what it shows, what is decoded and what its method file keeps are one set."""

import dataclasses

import numpy as np
import pytest
import torch
from reference import prompt_of
from tiny import make_model

import kvviz
from kvviz.engine.mix import mixed, try_mix
from kvviz.errors import InputError
from kvviz.methods import own
from kvviz.results.mix import Mix, method_file, missing, with_mix

N, BUDGET = 120, 0.4
MIXES = [
    Mix(),
    Mix(attention=0.5, value=1.0, across=True),
    Mix(attention=0, key=-1.0, sinks=4),
    Mix(attention=2, recency=0.5, pool=5, pool_kind="max", sinks=2),
    Mix(attention=0),
]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def run(request):
    """(model, run, trace); one model whose layers all see everything, one with sliding layers."""
    model = make_model(request.param)
    events = kvviz.compare_stream(model, prompt_of(model, N), ["snapkv"], [BUDGET], 4, lenses=True)
    *_, last = events
    return model, last.result, last.scored.trace


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(own, "_OWN", {})


def masks(selection):
    return np.stack([np.asarray(row) for row in selection.mask])


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: mix.words)
def test_the_file_keeps_what_the_mix_keeps(run, mix, tmp_path):
    _, c, trace = run
    path = tmp_path / "my_mix.py"
    path.write_text(method_file(mix), encoding="utf-8")
    (method,) = kvviz.load_plugin(path)
    for budget in (BUDGET, 0.1, 50):
        shown, kept = mixed(c, mix, budget), kvviz.select(trace, method.id, budget)
        assert (masks(shown) == masks(kept)).all()
        assert (shown.stage == kept.stage).all() and kept.options.items() <= shown.options.items()


def test_a_stored_run_mixes_as_it_did_before_it_was_stored(run, tmp_path):
    _, c, _ = run
    for rounded in (False, True):
        again = kvviz.load_comparison(c.save(tmp_path / "run.zip", rounded=rounded))
        for mix in MIXES:
            assert (masks(mixed(c, mix, BUDGET)) == masks(mixed(again, mix, BUDGET))).all()


def test_the_default_is_snapkv(run):
    """But for the three digits that are kept of its attention, which may change a near tie."""
    _, c, _ = run
    apart = masks(mixed(c, Mix(), BUDGET)) != masks(c.variants[0].selection)
    assert apart.mean() < 0.02


def test_what_is_decoded_is_what_is_shown(run, tmp_path):
    model, c, trace = run
    mix, other = MIXES[1], MIXES[3]
    found = with_mix(c, mix, try_mix(model, c, mix, BUDGET, trace=trace))
    found = with_mix(found, other, try_mix(model, found, other, BUDGET, trace=trace))
    found = with_mix(found, mix, try_mix(model, found, mix, 0.1, trace=trace))
    assert [v.key for v in found.variants[1:]] == ["mix+mix1@0.4", "mix+mix2@0.4", "mix+mix1@0.1"]
    assert [v.label for v in found.variants[1:]] == ["Mix 1", "Mix 2", "Mix 1"]
    back = kvviz.load_comparison(found.save(tmp_path / "run.zip"))
    for v, made in zip(back.variants[1:], (mix, other, mix), strict=True):
        assert (v.selection.mask == masks(mixed(c, made, v.budget))).all()
        assert v.token_ids and v.kl is not None and v.output_error is not None
    assert back.settings["mixes"] == found.settings["mixes"]
    with pytest.raises(InputError, match="already: it is Mix 2"):
        try_mix(model, back, other, BUDGET, trace=trace)


def test_the_answer_is_that_of_the_method_file(run, tmp_path):
    model, c, trace = run
    path = tmp_path / "my_mix.py"
    path.write_text(method_file(MIXES[1]), encoding="utf-8")
    kvviz.load_plugin(path)
    decoded = try_mix(model, c, MIXES[1], BUDGET, trace=trace).variants[0]
    method = kvviz.compare(model, c.prompt, ["my_mix"], [BUDGET], 4, trace=trace).variants[0]
    assert decoded.token_ids == method.token_ids and torch.equal(
        torch.as_tensor(masks(decoded.selection)), torch.as_tensor(masks(method.selection))
    )


def test_a_run_without_the_numbers_says_which(run):
    _, c, _ = run
    older = dataclasses.replace(c, lenses={"attention": c.lenses["attention"]})
    assert list(missing(older)) == ["value", "key"] and not missing(c)
    assert not missing(older, Mix(recency=1))
    with pytest.raises(InputError, match="does not hold each entry's value size: run it again"):
        mixed(older, MIXES[1], BUDGET)
