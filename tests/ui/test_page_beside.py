"""The view of two runs: what differs, what each keeps, and ids that are nobody's."""

import json

import pytest

from kvviz.ui.export_views import Exports
from kvviz.ui.views import answer

SEL = {"a": "snapkv", "b": "dropkv", "budget": 0.1}


@pytest.fixture
def ask(store, comparison):
    import dataclasses

    other = dataclasses.replace(comparison.prompt, question="Who?")
    run = store.add(dataclasses.replace(comparison, prompt=other), "file", "Another")

    def ask(**args):
        args = {"beside": run.id, "sel": SEL, **args}
        body = {"view": "beside", "run": "stored-example", "sel": SEL, "args": args}
        return answer(store, Exports(), body)

    return ask


def test_two_runs_beside_each_other(ask):
    reply = ask()
    assert "error" not in reply, reply
    assert reply["words"][0] == "Different question; same model, text, protocol, system prompt."
    assert len(reply["tokens"]["1"]) == len(reply["tokens"]["2"])
    meta = json.loads(reply["figure"])["layout"]["meta"]
    assert meta["rows"] == ["1 · SnapKV", "2 · SnapKV", "1 · DropKV", "2 · DropKV"]
    assert ask(give="rows")["rows"] and ask(give="csv")["text"]


def test_a_second_run_that_is_none_gets_a_sentence(ask):
    for odd in ({"beside": "gone"}, {"beside": 7}, {"beside": None}):
        assert "no longer kept here" in ask(**odd)["error"]
    assert "figure" in ask(sel="junk") and "figure" in ask(sel={"a": "nope", "budget": "x"})
