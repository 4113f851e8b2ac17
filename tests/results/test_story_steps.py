"""The story of a run: kept by its file, checked when it is read."""

import json
import zipfile
from dataclasses import replace

import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.results.archive import load_comparison
from kvviz.results.story import MOST_STEPS, MOST_WORDS, Opening, Step

STEPS = (
    Step("The whole cache knows <b>it</b>.", "answers", Opening("snapkv", "dropkv", 0.1)),
    Step("One head saw it.", "why", Opening("snapkv", None, 0.2, (80, 85), 1, 2)),
)


@pytest.fixture
def told():
    c = synthetic_comparison(n=200, L=4)
    return replace(c, story=replace(c.story, steps=STEPS))


@pytest.mark.parametrize("kind", ["zip", "json"])
def test_a_story_comes_back_from_the_runs_file(told, tmp_path, kind):
    path = tmp_path / f"run.{kind}"
    told.save(path) if kind == "zip" else told.to_json(path)
    again = load_comparison(path)
    assert again.story.steps == STEPS
    assert "steps" not in again.settings


def _changed(path, change):
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest["settings"]["steps"])
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.mark.parametrize(
    "change",
    [
        lambda steps: steps[0].update(words="x" * (MOST_WORDS + 1)),
        lambda steps: steps[0].update(shows="#kv-app > *"),
        lambda steps: steps[0].update(more=1),
        lambda steps: steps[1]["view"].update(tok=[0, 10**6]),
        lambda steps: steps[1]["view"].update(layer=99),
        lambda steps: steps[0].update(view=None),
        lambda steps: steps.extend(steps * MOST_STEPS),
        lambda steps: steps.append("step"),
    ],
)
def test_a_step_that_is_none_is_refused(told, tmp_path, change):
    path = told.save(tmp_path / "run.zip")
    _changed(path, change)
    with pytest.raises(InputError, match="damaged"):
        load_comparison(path)
