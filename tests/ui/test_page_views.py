"""Every view answers every request with strict JSON, and never with an exception."""

import dataclasses
import json
from pathlib import Path

import pytest

from kvviz.figures import FIGURES
from kvviz.ui.export_views import Exports
from kvviz.ui.views import VIEWS, answer

SEL = {"a": "snapkv", "b": "dropkv", "budget": 0.1, "tok": [80, 85], "layer": 1, "head": 2}


def _ask(store, tmp_path, view, sel=None, **args):
    body = {"view": view, "run": "stored-example", "sel": SEL if sel is None else sel, "args": args}
    reply = answer(store, Exports(), body)
    import orjson  # what the server itself encodes with

    return json.loads(orjson.dumps(reply))


HAND_MADE = ["meta", "text", "finding", "cards", "all_answers", "document", "why_card", "story"]
HAND_MADE += ["form", "cause", "fork", "looked", "passages", "turns", "mixes"]
ALL = [*HAND_MADE, *(row.id for row in FIGURES if row.id != "steps")]


@pytest.mark.parametrize("view", ALL)
def test_a_view_answers(store, tmp_path, view):
    reply = _ask(store, tmp_path, view)
    assert "error" not in reply, reply
    if "figure" in reply:
        assert json.loads(reply["figure"])["layout"]["meta"]["guide"]


@pytest.mark.parametrize("view", ALL)
@pytest.mark.parametrize(
    "sel", [{}, {"a": "dropkv"}, {"tok": [0, 10**9]}, "junk", {"a": "snapkv", "b": "snapkv"}]
)
def test_odd_selections_get_an_answer_or_a_sentence(store, tmp_path, view, sel):
    reply = _ask(store, tmp_path, view, sel, x0="a", x1=-4, columns=10**9, rule=[], x={}, by=3)
    assert reply.get("error", "").find("could not be drawn") < 0, reply


@pytest.mark.parametrize("view", ["document", "all_answers", *ALL[len(HAND_MADE) :]])
@pytest.mark.parametrize("give", ["rows", "csv", "json"])
def test_tables_behind_the_figures(store, tmp_path, view, give):
    reply = _ask(store, tmp_path, view, give=give)
    assert reply.get("rows") or reply.get("text"), reply


@pytest.mark.parametrize("view", ["kept", "versus", "heads", "all_methods"])
def test_no_more_columns_than_the_page_has_pixels(store, tmp_path, view):
    spec = json.loads(_ask(store, tmp_path, view, columns=90)["figure"])
    cells = spec["layout"]["meta"]["cells"]
    assert cells["size"] == 3  # 200 tokens
    assert spec["layout"]["meta"]["chip"] == "1 cell = 3 tokens"
    assert "1 cell = 3 tokens" in spec["layout"]["title"]["subtitle"]["text"]  # in a picture too


def test_a_zoom_is_binned_again(store, tmp_path):
    spec = json.loads(_ask(store, tmp_path, "kept", x0=40, x1=60)["figure"])
    assert spec["layout"]["meta"]["cells"] | {"x0": 40, "x1": 60} == spec["layout"]["meta"]["cells"]


def test_places_at_which_the_question_was_asked_reach_the_browser(store, tmp_path):
    from dataclasses import replace

    from kvviz.results.story import Places

    run = store.get("stored-example")
    places = Places({"snapkv": {0.1: (True, False)}}, "Code", (0.1, 0.9))
    run.comparison = replace(run.comparison, story=replace(run.comparison.story, places=places))
    told = _ask(store, tmp_path, "meta")["places"]
    assert told == {"found": {"snapkv": {"0.1": [True, False]}}, "what": "Code", "depths": [0.1, 0.9]}


def test_exports(store, tmp_path):
    from kvviz.results.archive import load_comparison

    saved = _ask(store, tmp_path, "export", kind="zip")
    assert load_comparison(saved["path"]).n == 200
    assert _ask(store, tmp_path, "export", kind="npz")["name"] == "kvviz-run.npz"
    assert "kvviz" in _ask(store, tmp_path, "export", kind="py")["text"]
    report = _ask(store, tmp_path, "export", kind="html")
    assert "<html" in Path(report["path"]).read_text(encoding="utf-8")[:500].lower()
    for kind in ("../x", [], {}, None):
        assert _ask(store, tmp_path, "export", kind=kind)["error"] == "There is no such export."


@pytest.mark.parametrize("body", [None, {}, {"view": "no"}, {"view": "kept"}, {"view": "kept", "run": 7}])
def test_nonsense_is_refused(store, tmp_path, body):
    assert answer(store, Exports(), body)["error"]


def test_every_view_is_covered():
    assert set(VIEWS) - set(ALL) == {"steps", "beside", "mix"}  # of these: test_page_beside, test_page_mix


def test_a_run_without_eviction_while_writing_says_so(store, tmp_path):
    assert "evicted nothing while writing" in _ask(store, tmp_path, "steps")["error"]


def test_places_in_the_text_are_those_of_a_browser(store, tmp_path):
    """A browser's strings count characters beyond U+FFFF twice: words after one must not shift."""
    import base64

    import numpy as np

    c = store.get("stored-example").comparison
    reply = _ask(store, tmp_path, "text")
    kinds = {"u1": "u1", "u2": "<u2", "i4": "<i4", "i1": "i1", "i2": "<i2"}

    def read(spec):
        return np.frombuffer(base64.b64decode(spec["bdata"]), kinds[spec["dtype"]]).astype(int)

    starts, lengths = np.cumsum(read(reply["steps"])), read(reply["lengths"])
    units = c.prompt.document.encode("utf-16-le")
    assert "\U0001f98a" in c.prompt.document
    inside = [t for t, o in zip(c.prompt.tokens, c.prompt.offsets) if o]
    for token, start, length in zip(inside, starts, lengths):
        assert units[2 * start : 2 * (start + length)].decode("utf-16-le") == token


def test_the_page_calls_methods_as_its_sentences_do(store, tmp_path):
    c = store.get("stored-example").comparison
    for v in c.variants:
        if v.method == "snapkv":
            v.label = "SnapKV with global (allocation=global, group=max, pool=5)"
    methods = _ask(store, tmp_path, "meta")["methods"]
    named = next(m for m in methods if m["id"] == "snapkv")
    assert named == {"id": "snapkv", "label": "SnapKV", "title": c.labels["snapkv"], "made": False}
    assert any(named["label"] in line for line in _ask(store, tmp_path, "finding")["lines"])


def test_a_set_that_was_changed_by_hand_is_told_apart_whatever_it_is_called(store, tmp_path):
    c = store.get("stored-example").comparison
    c.variants[-1].method, c.variants[-1].label = "snapkv+edit1", "A + B"
    methods = _ask(store, tmp_path, "meta")["methods"]
    assert {m["id"]: m["made"] for m in methods}["snapkv+edit1"] is True
    assert sum(m["made"] for m in methods) == 1


def test_the_full_cache_has_its_row_and_no_verdict_is_said_everywhere_alike(store, tmp_path):
    c = store.get("stored-example").comparison
    reply = _ask(store, tmp_path, "all_answers")
    assert reply["full"]["start"] == c.full.text and reply["full"]["verdict"] == "right"
    c.full.text = "The code is 12."  # nobody can lose what the full cache lacks
    reply = _ask(store, tmp_path, "all_answers")
    cells = [cell for m in reply["methods"] for cell in m["cells"]] + [reply["full"]]
    assert {cell["verdict"] for cell in cells} == {"grey"}
    assert {card["verdict"] for card in _ask(store, tmp_path, "cards")["cards"]} == {"grey"}


def test_a_run_of_someone_else_is_called_shared(store, comparison):
    run = store.add(comparison, "own", "Your run", owner="owner")
    body = {"view": "meta", "run": run.id}
    titles = [answer(store, Exports(), body, who)["title"] for who in ("owner", "x")]
    assert titles == ["Your run", "Shared run"]


def test_exports_survive_a_cleaned_folder_and_say_when_the_disk_does_not_take_them(store, monkeypatch):
    import shutil

    exports = Exports()
    body = {"view": "export", "run": "stored-example", "args": {"kind": "npz"}}
    first = answer(store, exports, body)
    shutil.rmtree(exports.folder)
    assert Path(answer(store, exports, body)["path"]).is_file() and first["name"]

    def full(*given):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "could not be written on the server" in answer(store, exports, body)["error"]


def test_exports_are_removed_when_the_server_ends(store, monkeypatch):
    at_end = []
    monkeypatch.setattr("atexit.register", lambda call, *a, **k: at_end.append(lambda: call(*a, **k)))
    exports = Exports()
    body = {"view": "export", "run": "stored-example", "args": {"kind": "npz"}}
    assert Path(answer(store, exports, body)["path"]).is_file()
    for call in at_end:
        call()
    assert not exports.folder.exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "greedy"),
        ({"temperature": 0.7, "top_p": 0.9, "seed": 3}, "sampled at temperature 0.7 (top-p 0.9, seed 3)"),
        ({"evict_every": 8}, "greedy · evicted again every 8 new tokens"),
        ({"evict_every": 8, "temperature": 1},
         "sampled at temperature 1 (top-p 1, seed 0) · evicted again every 8 new tokens"),
    ],
)
def test_the_line_of_the_source_says_how_answers_were_written(store, comparison, asked, said):
    from kvviz.engine.ask import Ask

    ask = dataclasses.replace(Ask.of_settings(comparison.settings), **asked)
    settings = {**comparison.settings, "ask": ask.to_dict()}
    run = store.add(dataclasses.replace(comparison, settings=settings), "own", "t")
    assert answer(store, None, {"view": "meta", "run": run.id})["decoding"] == said


def test_effect_as_colour_stays_chosen_where_it_is_not_known(store, comparison):
    """The page goes to another budget, or to a run without causes: the text shows what is held there."""
    run = store.add(comparison, "own", "t").id
    without = store.add(dataclasses.replace(comparison, causes={}), "own", "t").id

    def shown_by(run, budget, b="dropkv"):
        sel = {"a": "snapkv", "b": b, "budget": budget}
        body = {"view": "document", "run": run, "sel": sel, "args": {"by": "effect"}}
        return answer(store, None, body)["by"]

    assert shown_by(run, 0.1) == "effect"
    assert shown_by(run, 0.2) == shown_by(without, 0.1) == "ab"
    assert shown_by(without, 0.1, b=None) == "a"
