"""What the first run opens with, made before anybody asks."""

import json

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.ui import replies, runs
from kvviz.ui.export_views import Exports
from kvviz.ui.replies import first_replies
from kvviz.ui.runs import RunStore
from kvviz.ui.views import answer


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "STORED", tmp_path)
    monkeypatch.setattr(replies, "_first", {})
    return tmp_path


def test_what_a_run_opens_with_is_what_the_page_would_be_told(folder):
    synthetic_comparison(n=130, L=3).save(folder / "one.zip")
    told, store = json.loads(first_replies()), RunStore()
    assert {one["view"] for one in told} >= {"meta", "text", "finding", "cards", "document", "kept", "versus"}
    for one in told:
        args = {"side": one["side"], "columns": one["columns"], "by": "ab"}
        body = {"view": one["view"], "run": "stored-one", "sel": one["sel"], "args": args}
        asked = answer(store, Exports(), body)
        assert one["reply"] == json.loads(json.dumps(asked, default=np.ndarray.tolist)), one["view"]


def test_its_maps_are_there_in_every_width_in_which_they_differ(folder):
    synthetic_comparison(n=130, L=3).save(folder / "one.zip")
    maps = [one for one in json.loads(first_replies()) if (one["view"], one["side"]) == ("kept", "a")]
    widths = [one["columns"] for one in maps]
    assert widths == [22, 26, 33, 44, 65, 130]  # 6, 5, 4, 3, 2 tokens in a cell, and one


def test_without_a_run_or_with_a_broken_one_nothing_is_told(folder):
    assert first_replies() == b"[]"
    (folder / "broken.zip").write_bytes(b"no archive")
    assert first_replies() == b"[]"
