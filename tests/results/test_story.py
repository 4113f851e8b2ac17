"""What a run says of itself: typed, and in its saved file as it always was."""

import json
import zipfile

import pytest
from synthetic import synthetic_comparison

from kvviz.results.archive import load_comparison
from kvviz.results.story import Experiment, Opening, Places, Story

TOLD = Story(
    title="A ledger",
    label="Chosen for its words.",
    opening=Opening("snapkv", None, 0.2, (20, 25), layer=1),
    places=Places({"snapkv": {0.2: (True, False), 0.05: (False, False)}}, "Code", (0.1, 0.9)),
    experiment=Experiment(({"name": "Before", "kl": "0.6 nats/token"},), "Nothing changed."),
)


@pytest.mark.parametrize("story", [TOLD, Story(), Story(title="Only a title")])
@pytest.mark.parametrize("form", ["zip", "json"])
def test_a_story_comes_back_from_a_file_and_is_no_setting(story, form, tmp_path):
    c = synthetic_comparison(n=64, L=2, budgets=(0.2,))
    c.story = story
    path = tmp_path / f"run.{form}"
    c.save(path) if form == "zip" else c.to_json(path)
    again = load_comparison(path)
    assert again.story == story
    assert not {"title", "label", "opening", "places", "experiment"} & set(again.settings)


def test_an_older_reader_finds_a_story_where_it_looks(tmp_path):
    c = synthetic_comparison(n=64, L=2, budgets=(0.2,))
    c.story = TOLD
    with zipfile.ZipFile(c.save(tmp_path / "run.zip")) as archive:
        held = json.loads(archive.read("manifest.json"))["settings"]
    assert held["title"] == "A ledger" and held["opening"]["tok"] == [20, 25]
    assert held["places"]["found"] == {"snapkv": {"0.2": [True, False], "0.05": [False, False]}}
    assert held["experiment"]["rows"][0]["name"] == "Before"


def test_places_are_found_by_share():
    assert TOLD.places.at("snapkv", 0.1 + 0.1) == (True, False)
    assert TOLD.places.at("snapkv", 0.3) is None and TOLD.places.at("dropkv", 0.2) is None
