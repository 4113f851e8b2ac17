"""Editing a kept set: sizes, what is protected, controls, and that evicted entries are really gone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from reference import prompt_of
from tiny import make_model

import kvviz
from kvviz.engine.experiment import SEEDS, Edit, edited_masks, try_edits, try_edits_stream
from kvviz.errors import InputError
from kvviz.results.edits import edited

N, BUDGET = 64, 0.25
MIDDLE = Edit("pin", 20, 24)


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


@pytest.fixture(scope="module")
def run(model):
    """A comparison and the trace behind it."""
    prompt = prompt_of(model, N)
    events = kvviz.compare_stream(model, prompt, ["snapkv:window=4", "streaming_llm"], [BUDGET], 6, seed=3)
    *_, last = events
    return last.result, last.scored


@pytest.fixture(scope="module", params=[0, 1], ids=["by score", "by position"])
def variant(request, run):
    return run[0].variants[request.param]


def kept(variant) -> np.ndarray:
    return np.stack([np.asarray(m) for m in variant.selection.mask])


def masks(run, variant, edits, same_size=True):
    return edited_masks(variant, edits, same_size, run[0].model)


def test_pinning_keeps_the_size_of_every_head(run, variant):
    edit, *controls = masks(run, variant, [MIDDLE])
    before, protected = kept(variant), np.asarray(variant.selection.protected)
    assert edit[:, :, 20:24].all()
    assert len(controls) == 3
    for mask in (edit, *controls):
        assert (mask.sum(-1) == before.sum(-1)).all()
        assert mask[protected].all()


def test_evicting_takes_out_and_lets_in(run, variant):
    before = kept(variant)
    start = int(np.flatnonzero(before[0, 0])[0])
    edit, *controls = masks(run, variant, [Edit("evict", start, start + 3)])
    assert not edit[:, :, start : start + 3].any()
    scored = np.isfinite(np.stack(list(variant.selection.scores))).any()
    assert (edit.sum(-1) == before.sum(-1)).all() or not scored


def test_what_pinning_pushes_out_scored_lowest(run):
    variant = run[0].variants[0]
    edit, before = masks(run, variant, [MIDDLE])[0], kept(variant)
    scores = np.stack(list(variant.selection.scores))
    for layer, head in np.ndindex(before.shape[:2]):
        out = before[layer, head] & ~edit[layer, head]
        stayed = before[layer, head] & edit[layer, head] & np.isfinite(scores[layer, head])
        stayed[20:24] = False
        if out.any() and stayed.any():
            assert scores[layer, head, out].max() <= scores[layer, head, stayed].min()


@pytest.mark.parametrize("kind", ["pin", "evict"])
def test_growing_and_shrinking_touch_nothing_else(run, variant, kind):
    edit = masks(run, variant, [Edit(kind, 10, 50, layer=1, head=1)], same_size=False)[0]
    changed = np.argwhere(edit != kept(variant))
    assert (changed[:, 0] == 1).all() and (changed[:, 1] == 1).all()
    assert changed.size == 0 or (changed[:, 2].min() >= 10 and changed[:, 2].max() < 50)


def test_a_later_edit_overrules_an_earlier_one(run, variant):
    edit = masks(run, variant, [MIDDLE, Edit("evict", 22, 23)], same_size=False)[0]
    assert edit[:, :, [20, 21, 23]].all() and not edit[:, :, 22].any()


@pytest.mark.parametrize("kind", ["pin", "evict"])
def test_controls_change_as_many_in_the_same_heads(run, kind):
    variant = run[0].variants[0]
    before, protected = kept(variant), np.asarray(variant.selection.protected)
    start = 20 if kind == "pin" else int(np.flatnonzero((before & ~protected).any((0, 1)))[0])
    edit, *controls = masks(run, variant, [Edit(kind, start, start + 2)], same_size=False)
    counts = (edit != before).sum(-1)
    for mask in controls:
        changed = mask != before
        assert (changed.sum(-1) == counts).all()
        assert not changed[:, :, start : start + 2].any() and not changed[protected].any()
    assert any((mask != controls[0]).any() for mask in controls[1:])
    again = masks(run, variant, [Edit(kind, start, start + 2)], same_size=False)
    assert all((a == b).all() for a, b in zip(controls, again[1:]))


def test_a_sliding_layer_takes_no_pin_it_cannot_see():
    model = make_model("mistral")  # every layer sees the last 23 tokens
    c = kvviz.compare(model, prompt_of(model, N), ["knorm"], [0.1], 2)
    edit = edited_masks(c.variants[0], [Edit("pin", 10, 14)], True, c.model)[0]
    assert not edit[:, :, 10:14].any() and (edit == kept(c.variants[0])).all()


def test_edits_are_decoded_and_measured_beside_their_controls(model, run):
    c, scored = run
    tried = try_edits(model, c, "snapkv:window=4", BUDGET, [MIDDLE], scored=scored)
    assert [v.label for v in tried.variants][0] == "SnapKV (window=4) + edit" and len(tried.variants) == 4
    assert len({v.key for v in tried.variants}) == 4
    assert tried.full.token_ids == c.full.token_ids
    for v in tried.variants:
        assert v.text is not None and v.kl is not None and v.output_error.shape == (3, 4)
        assert v.tokens_kept == c.variants[0].tokens_kept


def test_a_held_trace_is_not_read_again(model, run):
    c, scored = run
    stages = [e.stage for e in try_edits_stream(model, c, "streaming_llm", BUDGET, [MIDDLE], scored=scored)]
    assert "prefill" not in stages
    stages = [e.stage for e in try_edits_stream(model, c, "streaming_llm", BUDGET, [MIDDLE])]
    assert stages[0] == "prefill"


def test_with_and_without_the_trace_the_answer_is_the_same(model, run):
    c, scored = run
    one = try_edits(model, c, "snapkv:window=4", BUDGET, [MIDDLE], scored=scored)
    two = try_edits(model, c, "snapkv:window=4", BUDGET, [MIDDLE])
    for a, b in zip(one.variants, two.variants):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.kl, b.kl, atol=1e-5)


def test_an_evicted_entry_cannot_be_felt(model, run):
    """Keys and values of what an edit evicts may hold anything: nothing of the answer changes."""
    import dataclasses

    c, scored = run
    edits = [Edit("evict", 0, 30)]
    sound = try_edits(model, c, "streaming_llm", BUDGET, edits, same_size=False, scored=scored)
    trace = scored.trace
    clones = {side: [rows.clone() for rows in getattr(trace, side)] for side in ("keys", "values")}
    spoilt = dataclasses.replace(trace, **clones)
    for rows in (*spoilt.keys, *spoilt.values):
        rows[:, :30] = 50.0
    broken = try_edits(model, c, "streaming_llm", BUDGET, edits, same_size=False, trace=spoilt)
    assert sound.variants[0].token_ids == broken.variants[0].token_ids
    assert torch.equal(sound.variants[0].selection.mask[0], broken.variants[0].selection.mask[0])


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [Edit("keep", 1, 2)],
        [Edit("pin", 5, 5)],
        [Edit("pin", -1, 2)],
        [Edit("pin", 0, N + 1)],
        [Edit("pin", 0, 1, layer=9)],
        [Edit("pin", 0, 1, head=9)],
    ],
)
def test_edits_that_name_nothing_are_refused(model, run, edits):
    with pytest.raises(InputError):
        try_edits_stream(model, run[0], "streaming_llm", BUDGET, edits, scored=run[1])  # at the call


def test_only_what_was_decoded_can_be_edited(model, run):
    with pytest.raises(InputError, match="decoded"):
        try_edits(model, run[0], "streaming_llm", 0.9, [MIDDLE])


def test_the_python_lines_repeat_the_edit(model, run):
    import dataclasses

    from kvviz.exports import python_lines

    c, scored = run
    tried = try_edits(model, c, "streaming_llm", BUDGET, [MIDDLE], scored=scored)
    made = {
        "method": "streaming_llm",
        "budget": BUDGET,
        "same_size": True,
        "edits": [dataclasses.asdict(MIDDLE)],
    }
    more = dataclasses.replace(c, variants=[*c.variants, tried.variants[0]])
    more.settings = {**c.settings, "edits": [made]}
    lines = python_lines(more)
    compile(lines, "lines", "exec")
    assert "Edit('pin', 20, 24, None, None)" in lines and "same_size=True" in lines
    assert "+edit" not in lines.split("kvviz.compare")[1].split(")")[0]


def test_an_edited_set_can_be_edited_again_and_again(model, run):
    c, scored = run
    method = c.variants[0].method
    for number in (1, 2, 3, 4):
        before = c.variant(method, BUDGET)
        edit = Edit("pin", 20 + number, 21 + number)
        tried = try_edits(model, c, method, BUDGET, [edit], scored=scored)
        assert [v.method for v in tried.variants] == ["snapkv:window=4+edit"] + [
            f"snapkv:window=4+control{seed}" for seed in SEEDS
        ]
        c = edited(c, before, tried.variants, [edit], same_size=True)
        method = c.variants[-1].method
        assert method == f"snapkv:window=4+edit{number}"
        assert kept(c.variants[-1])[:, :, 20 + number].all()


def test_a_kept_set_without_scores_says_that_it_must_be_compared_again(run):
    variant = run[0].variants[0]
    bare = dataclasses.replace(variant, selection=dataclasses.replace(variant.packed, scores=None))
    with pytest.raises(InputError, match="compare again"):
        edited_masks(bare, [MIDDLE], True, run[0].model)
