"""Editing what was kept: sizes, protection, controls, and sentences that claim no more."""

import dataclasses

import numpy as np
import pytest

from kvviz.errors import InputError
from kvviz.ui import experiment
from kvviz.ui.experiment import Edit


@pytest.fixture
def snapkv(comparison):
    return comparison.variant("snapkv", 0.2)


def _kept(variant):
    return np.stack([np.asarray(m) for m in variant.selection.mask])


def test_pinning_keeps_the_size_of_every_head(comparison, snapkv):
    mark = comparison.marks[0]
    edit, *controls = experiment.masks(snapkv, [Edit("pin", mark.start, mark.end)], True)
    kept, protected = _kept(snapkv), np.asarray(snapkv.selection.protected)
    assert edit[:, :, mark.start : mark.end].all()
    for mask in (edit, *controls):
        assert (mask.sum(-1) == kept.sum(-1)).all()
        assert mask[protected].all()
    assert len(controls) == 3 and any((a != controls[0]).any() for a in controls[1:])


def test_what_pinning_pushes_out_scored_lowest(comparison, snapkv):
    edit = experiment.masks(snapkv, [Edit("pin", 20, 23)], True)[0]
    kept, scores = _kept(snapkv), np.stack(list(snapkv.selection.scores))
    for layer, head in np.ndindex(kept.shape[:2]):
        out = kept[layer, head] & ~edit[layer, head]
        stayed = kept[layer, head] & edit[layer, head] & np.isfinite(scores[layer, head])
        stayed[20:23] = False
        if out.any() and stayed.any():
            assert scores[layer, head, out].max() <= scores[layer, head, stayed].min()


def test_growing_changes_nothing_else(comparison, snapkv):
    edit = experiment.masks(snapkv, [Edit("pin", 20, 23, layer=1, head=2)], False)[0]
    changed = np.argwhere(edit != _kept(snapkv))
    assert (changed[:, 0] == 1).all() and (changed[:, 1] == 2).all()
    assert set(changed[:, 2]) <= {20, 21, 22}


def test_evicting_lets_the_best_dropped_entries_in(comparison, snapkv):
    edit = experiment.masks(snapkv, [Edit("evict", 0, 4)], True)[0]
    assert not edit[:, :, :4].any()
    assert (edit.sum(-1) == _kept(snapkv).sum(-1)).all()


def test_controls_change_as_much_elsewhere(comparison, snapkv):
    mark = comparison.marks[0]
    edit, *controls = experiment.masks(snapkv, [Edit("pin", mark.start, mark.end)], False)
    kept = _kept(snapkv)
    for mask in controls:
        assert ((mask & ~kept).sum(-1) == (edit & ~kept).sum(-1)).all()
        assert not (mask & ~kept)[:, :, mark.start : mark.end].any()


@pytest.mark.parametrize("raw", [None, [], [{}], [{"kind": "pin"}], [{"kind": "x", "tok": [1, 2]}],
                                 [{"kind": "pin", "tok": [5, 2]}], "junk"])  # fmt: skip
def test_junk_edits_are_refused(comparison, raw):
    with pytest.raises(InputError, match="Choose tokens"):
        experiment.edits_of(raw, comparison)


RIGHT, WRONG = "It is 58213.", "It is 1947."


@pytest.mark.parametrize(
    "before, after, controls, words",
    [(WRONG, RIGHT, [WRONG] * 3, "contains '58213'; with random pins it did in 0 of 3."),
     (WRONG, RIGHT, [RIGHT] * 3, "does not single out M1"),
     (WRONG, WRONG, [WRONG] * 3, "did not bring the answer back"),
     (RIGHT, RIGHT, [WRONG] * 3, "It did before the edit as well."),
     (RIGHT, WRONG, [RIGHT] * 3, "no longer contains '58213'")],
)  # fmt: skip
def test_sentences(comparison, snapkv, before, after, controls, words):
    mark = comparison.marks[0]
    answers = [dataclasses.replace(snapkv, text=t) for t in (after, *controls)]
    was = dataclasses.replace(snapkv, text=before)
    edits = [Edit("pin", mark.start, mark.end)]
    said = experiment.sentence(comparison, was, answers, edits)
    assert words in said and "because" not in said
    assert len(experiment.report(comparison, was, answers, edits)["rows"]) == 5
