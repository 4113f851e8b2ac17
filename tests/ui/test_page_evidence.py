"""Requests of the page Evidence: a sweep is looked at, its items are handed on; nothing is trusted."""

from __future__ import annotations

import json
import math

import pytest
from many import sweep_folder, zipped
from synthetic import synthetic_comparison

from kvviz.resources import asset
from kvviz.results import evidence as said
from kvviz.results.sweeps import open_sweep
from kvviz.settings import settings
from kvviz.ui import evidence, figure_views, sweeps
from kvviz.ui.asks import form_request
from kvviz.ui.evidence import Evidence
from kvviz.ui.runs import RunStore


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with one stored sweep, "stored-made-up", whose item-3 has a kept run."""
    c = synthetic_comparison(n=200, L=4, methods=("snapkv", "criticalkv", "keydiff"))
    run = c.save(tmp_path / "run.zip").read_bytes()
    both = ("question-aware", "question-agnostic")
    sweep_folder(tmp_path / "stored" / "made-up", run=run, protocols=both)
    monkeypatch.setattr(sweeps, "STORED", tmp_path / "stored")
    return Evidence(RunStore())


def asked(page, view, sel=None, run="stored-made-up", **args):
    reply = page.answer({"view": view, "run": run, "sel": sel, "args": args})
    json.dumps(reply, allow_nan=False)
    return reply


def test_every_view_answers_and_others_are_not_its_business(page):
    meta = asked(page, "evidence")
    assert meta["title"] == "A made-up sweep" and meta["sel"]["budget"] == "20%" and meta["needles"]
    for view in page._views:
        reply = asked(page, view, meta["sel"], item="item-3", quality=0.5)
        assert "error" not in reply, (view, reply)
    assert page.answer({"view": "finding"}) is None and page.answer(None) is None


def test_what_can_be_chosen_is_looked_up_once_for_each_protocol(page, monkeypatch):
    looked, look = [], said._choices
    monkeypatch.setattr(said, "_choices", lambda *part: looked.append(part[2]) or look(*part))
    for protocol in ("question-aware", "question-agnostic") * 2:
        for view in ("evidence", "evidence_choose", "evidence_budget"):
            assert "error" not in asked(page, view, {"protocol": protocol})
    assert sorted(looked) == ["question-agnostic", "question-aware"]


@pytest.mark.parametrize("sel", [
    None, [], "x", {"a": "<b>", "b": 7, "budget": math.inf, "measure": "__class__", "by": []},
    {"model": "other", "protocol": "none"}, {"a": "criticalkv", "b": "criticalkv"},
])  # fmt: skip
def test_a_selection_is_forced_into_the_sweep(page, sel):
    got = asked(page, "evidence", sel)["sel"]
    assert got["a"] != got["b"] and got["budget"] == "20%" and got["measure"] == "right"
    assert got["protocol"] == "question-aware" and got["by"] == "task"


def test_protocols_are_looked_at_one_at_a_time(page):
    later = asked(page, "evidence", {"protocol": "question-agnostic"})
    assert later["sel"]["protocol"] == "question-agnostic" and "the question comes later" in later["facts"][0]


def test_an_item_opens_its_kept_run_once_else_is_asked_again(page):
    first, again = (asked(page, "evidence_item", item="item-3") for _ in range(2))
    assert first["run"] == again["run"] and page.runs.get(first["run"]).title == "A made-up sweep: item-3"
    assert first["sel"] == {"a": "snapkv", "b": "criticalkv", "budget": 0.2}
    reply = asked(page, "evidence_item", {"a": "keydiff", "b": "snapkv"}, item="item-4")
    form = reply["fields"]
    assert form["document"] == "The text of item-4." and form["expected"] == "58213"
    assert form["methods"] == ["keydiff", "snapkv"] and form["protocol"] == "question-aware"
    assert reply["sel"] == {"a": "keydiff", "b": "snapkv", "budget": 0.2} and not reply["here"]
    assert "no such item" in asked(page, "evidence_item", item="../../x")["error"]


@pytest.mark.parametrize("name", ["papers", "ruler", "documents"])
def test_an_item_of_a_stored_sweep_is_asked_as_the_sweep_asked_it(name):
    stored = open_sweep(asset("sweeps") / name)
    item = list(stored.items)[-1]
    page = Evidence(RunStore())
    key = page.sweeps.put("here", stored) or "here"
    reply = page.answer({"view": "evidence_item", "run": key, "sel": None, "args": {"item": item}})
    asked = form_request(settings({"KVVIZ_PUBLIC": "1"}), **reply["fields"])
    (study,) = [stored.manifest["settings"]]
    told = {**study["ask"], "methods": list(asked.methods), "expected": stored.items[item]["answers"][0],
            "max_new_tokens": stored.items[item].get("max_new_tokens") or study["ask"]["max_new_tokens"]}
    assert asked.plain.to_dict() == {**told, "lenses": True}
    assert asked.protocol == study["protocol"] and asked.framing.cue == stored.items[item].get("cue", "")
    assert asked.document == stored.items[item]["document"]


def test_the_cheapest_method_that_keeps_a_quality(page):
    easy = asked(page, "evidence_choose", quality=0.3)
    assert easy["chosen"]["budget"] == "5%" and "CriticalKV at 5%" in easy["sentence"]
    hard = asked(page, "evidence_choose", quality=0.99)
    assert hard["chosen"] is None and {row["keeps it"] for row in hard["rows"]} <= {"no", "too few to tell"}
    for odd in ("x", None, -1, 7, math.nan):
        assert asked(page, "evidence_choose", quality=odd)["quality"] == evidence.USUAL_QUALITY


def test_claims_are_of_the_chosen_part_only(page):
    reply = asked(page, "evidence_claims", {"protocol": "question-agnostic"})
    assert {c["protocol"] for c in reply["claims"]} == {"question-agnostic"} and "Holm" in reply["correction"]


def test_what_brute_force_found_is_read_beside_the_table(page, tmp_path):
    claim = "Single-token scores come within a constant of the best set (cone condition)"
    found = {"model": "tiny", "protocol": "question-aware", "heads": 9, "attention_ratio": 1.1, "cone": 0.5}
    rows = [{**found, "document": f"doc{n}", "ratio": 1.2 + n / 100} for n in range(8)]
    odd = [7, {}, {**rows[0], "ratio": "1"}, {**rows[0], "document": None}, {**rows[0], "cone": math.inf}]
    (tmp_path / "stored" / "made-up" / "best_sets.json").write_text(json.dumps(rows + odd))
    (mine,) = [c for c in asked(page, "evidence_claims")["claims"] if c["claim"] == claim]
    assert mine["n"] == 8 and math.isclose(mine["value"], 1.235) and mine["verdict"] == "holds"


def test_figures_give_rows_csv_and_json(page):
    reply = asked(page, "evidence_budget", give="rows")
    assert len(reply["rows"]) == reply["of"] == 9
    assert asked(page, "evidence_pairs", give="csv")["text"].count("\n") == 22
    assert len(json.loads(asked(page, "evidence_items", give="json")["text"])["rows"]) == 24


def test_a_long_table_comes_a_page_at_a_time(page, monkeypatch):
    every = asked(page, "evidence_budget", give="rows")["rows"]
    monkeypatch.setattr(figure_views, "MOST_ROWS", 4)
    monkeypatch.setattr(evidence, "MOST_ROWS", 4)
    reply = asked(page, "evidence_budget", give="rows")
    assert (reply["rows"], reply["of"], reply["from"], reply["page"]) == (every[:4], 9, 0, 4)
    for first in (4, 8):
        reply = asked(page, "evidence_budget", give="rows", **{"from": first})
        assert reply["rows"] == every[first : first + 4] and reply["from"] == first
    for nowhere in (9, -1, "x", None):
        assert asked(page, "evidence_budget", give="rows", **{"from": nowhere})["rows"] == every[:4]
    apart = asked(page, "evidence_apart")
    assert apart["of"] >= len(apart["rows"]) <= 4 and apart["from"] == 0


def test_an_uploaded_sweep_is_opened_and_another_path_is_not(page, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "uploads"))
    (tmp_path / "uploads").mkdir()
    sent = tmp_path / "uploads" / "mine.zip"
    sent.write_bytes(zipped(tmp_path / "stored" / "made-up"))
    key = asked(page, "evidence_open", path=str(sent))["id"]
    assert asked(page, "evidence", run=key)["title"] == "A made-up sweep"
    assert asked(page, "evidence_item", run=key, item="item-3")["run"]
    elsewhere = str(tmp_path / "run.zip"), "/etc/passwd", str(sent) + "/../../run.zip"
    for path in (*elsewhere, None, "a\0b", "x" * 5000):
        assert "did not arrive" in asked(page, "evidence_open", path=path)["error"]
    table = tmp_path / "uploads" / "table.csv"
    table.write_bytes((tmp_path / "stored" / "made-up" / "table.csv").read_bytes())
    alone = asked(page, "evidence_open", path=str(table))["id"]
    assert "open the whole folder" in asked(page, "evidence_item", run=alone, item="item-3")["error"]


def test_a_sweep_that_is_gone_says_so(page):
    for run in ("nothing", None, 7, "stored-../x"):
        assert asked(page, "evidence", run=run)["error"] == sweeps.GONE
    store = sweeps.SweepStore(most=1)
    old = store.add(page.sweeps.get("stored-made-up"))
    store.add(page.sweeps.get("stored-made-up"))
    with pytest.raises(sweeps.InputError, match="no longer kept"):
        store.get(old)


def test_opened_sweeps_are_bounded_by_what_they_take(page):
    one = page.sweeps.get("stored-made-up")
    assert one.nbytes > len(one.table) * 100
    small = sweeps.SweepStore(most_bytes=2 * one.nbytes)
    first, second, third = (small.add(one) for _ in range(3))
    assert small.get(second) is one and small.get(third) is one
    with pytest.raises(sweeps.InputError, match="no longer kept"):
        small.get(first)
    with pytest.raises(sweeps.InputError, match="fewer rows"):
        sweeps.SweepStore(most_bytes=one.nbytes - 1).add(one)
