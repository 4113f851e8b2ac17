"""The stored example runs: present, labelled, light, and what the model really says."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import kvviz
from kvviz.engine.ask import Ask
from kvviz.results.verdict import contains_expected
from kvviz.ui.runs import STORED

FILES = sorted(STORED.glob("*.zip"))
MADE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "assets" / "make_runs.py"), run_name="made")


def test_the_page_has_runs_to_open():
    assert [path.name[0] for path in FILES] == ["1", "2", "3", "4"]
    assert all(path.stat().st_size < 6_500_000 for path in FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_each_run_is_labelled(path):
    c = kvviz.load_comparison(path)
    assert c.story.title and c.settings["date"] and c.settings["stored"]
    assert c.model.id == "smollm2-135m" and c.model.dtype == "float32"
    assert {p.method for p in c.at_stops} == set(c.methods) and {"attention", "effect"} <= set(c.lenses)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_run_carries_what_its_first_method_lost(path):
    c = kvviz.load_comparison(path)
    assert "attention_answer" in c.lenses and c.fork is not None and c.ablation is not None
    (found,) = c.causes.values()
    assert found.method == "snapkv" and found.gap > 0
    assert len(found.rescue.entries) == len(found.rescue.necessary) > 0
    assert 0 < found.would_do.mask.mean() < 0.05
    assert not any(found.rescue.controls.added)


def test_the_first_run_opens_where_methods_disagree():
    c = kvviz.load_comparison(FILES[0])
    opening = c.story.opening
    a, b = (c.variant(side, opening.budget) for side in (opening.a, opening.b))
    assert contains_expected(c.full.text, c.expected)
    assert not contains_expected(a.text, c.expected)
    assert contains_expected(b.text, c.expected)
    assert c.story.experiment.sentence and len(c.story.places.depths) == 5
    found = c.story.places.found
    assert set(found) == set(MADE["METHODS"]) and all(len(row) == 5 for row in found["snapkv"].values())


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_recomputing_gives_the_stored_run(path, smollm):
    old = kvviz.load_comparison(path)
    prompt = kvviz.build_prompt(
        smollm, old.prompt.document, old.prompt.question, protocol=old.prompt.protocol
    )
    assert prompt.input_ids.tolist() == old.prompt.input_ids.tolist()
    ask = Ask.of_settings(old.settings)
    new = kvviz.compare(smollm, prompt, old.methods, ask.budgets, ask.max_new_tokens, measures=())
    assert new.full.text == old.full.text
    same = [a.text == b.text for a, b in zip(new.variants, old.variants)]
    # Another machine's float32 sums may flip a near-tie; a whole run of flips would be another model.
    assert np.mean(same) >= 0.9
    for a, b in zip(new.variants, old.variants):
        kept = [np.asarray(x) == np.asarray(y) for x, y in zip(a.selection.mask, b.selection.mask)]
        assert np.mean(kept) > 0.999
