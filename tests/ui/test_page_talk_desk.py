"""The handler of "Ask more" and several questions of the form, on an engine without a model."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine
from synthetic import synthetic_comparison

from kvviz.settings import settings
from kvviz.ui import talk_desk, views
from kvviz.ui.asks import form_fields
from kvviz.ui.desk import Desk
from kvviz.ui.talk_desk import TalkDesk

WHO = SimpleNamespace(session_hash="one", cookies={})
OTHER = SimpleNamespace(session_hash="two", cookies={})
FORM = {"document": "text", "question": "q?", "methods": ["snapkv"], "budgets": ["50%"],
        "model": "smollm2-135m", "dtype": "auto", "protocol": "question-agnostic",
        "max_new_tokens": 8, "window": None, "seed": 0}  # fmt: skip


@pytest.fixture
def talk(store):
    return TalkDesk(Desk(FakeEngine(steps=2, pause=0.001), store, settings({})))


def _own(talk, n=160):
    return talk.desk.store.add(synthetic_comparison(n=n, L=4), "own", "Your run", "one")


def _ask(talk, of, who=WHO, **data):
    event = SimpleNamespace(_data={"run": of.id, "question": "Who?", **data})
    return [json.loads(status) for status in talk.ask(event, who)]


def _turns(talk, status):
    return talk.desk.store.get(status["run"]).comparison.turns


def test_a_question_joins_the_run_and_builds_on_the_turns_unless_it_is_asked_afresh(talk):
    run = _own(talk)
    last = _ask(talk, run, question="  Who? ", expected="the keeper")[-1]
    assert (last["state"], last["run"]) == ("done", run.id) and "result" not in last
    _ask(talk, run, question="Where?", fresh=True)
    assert [(t.question, t.expected, t.fresh) for t in _turns(talk, last)] == [
        ("Who?", "the keeper", False), ("Where?", None, True)]  # fmt: skip


def test_a_reader_of_a_shared_run_asks_a_copy(talk):
    run = _own(talk)
    last = _ask(talk, run, OTHER)[-1]
    assert last["run"] != run.id and not run.comparison.turns and len(_turns(talk, last)) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"question": " "}, "Ask a question"),
        ({"question": "why " * 5000}, "up to 10,000 are read"),
        ({"expected": "x" * 20_000}, "up to 10,000 are read"),
        ({"run": "nothing"}, "no longer kept"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_the_line(talk, data, words):
    run = _own(talk)
    talk.desk.line = None  # entering would fail
    (status,) = _ask(talk, run, **data)
    assert status["state"] == "failed" and words in status["message"]


def test_a_run_holds_only_so_many_questions(talk, monkeypatch):
    monkeypatch.setattr(talk_desk, "MOST_TURNS", 1)
    run = _own(talk)
    assert _ask(talk, run)[-1]["state"] == "done"
    assert "up to 1 further questions" in _ask(talk, run)[-1]["message"]


def test_a_stop_leaves_the_run_as_it_was(talk):
    talk.desk.engine.pause = 0.05
    run = _own(talk)
    asking = talk.ask(SimpleNamespace(_data={"run": run.id, "question": "slow?"}), WHO)
    next(asking)
    talk.desk.stop(WHO)
    *_, last = map(json.loads, asking)
    assert last["state"] == "stopped" and "not answered" in last["message"] and not run.comparison.turns


def test_beside_the_model_a_question_takes_less_than_half_a_second_at_8000_tokens(talk):
    talk.desk.engine.pause = 0
    run = _own(talk, n=8000)
    started = time.perf_counter()
    last = _ask(talk, run)[-1]
    sel = {"a": "snapkv", "b": "criticalkv", "budget": 0.2}
    reply = views.answer(talk.desk.store, None, {"view": "turns", "run": last["run"], "sel": sel}, "one")
    took = time.perf_counter() - started
    assert len(reply["turns"]) == 1 and took < 0.5, took


def _run(talk, **change):
    return [json.loads(s) for s in talk.desk.run(SimpleNamespace(_data={**FORM, **change}), WHO)]


def test_questions_of_the_form_reach_the_engine_and_fill_the_form_again(talk):
    questions = [["Who?", "the keeper"], ["Where?", None]]
    last = _run(talk, questions=questions)[-1]
    assert talk.desk.engine.asked[-1].questions == (("Who?", "the keeper"), ("Where?", None))
    recipe = talk.desk.store.get(last["run"]).recipe()
    assert form_fields(recipe)["questions"] == talk.desk.engine.asked[-1].questions


def test_a_run_that_is_opened_fills_the_form_with_the_questions_to_its_document_alone(talk):
    run = _own(talk)
    for question, fresh in (("Who?", True), ("Where?", True), ("And then?", False)):
        _ask(talk, run, question=question, fresh=fresh)
    run.ask = None
    assert [question for question, _ in form_fields(run.recipe())["questions"]] == ["Who?", "Where?"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"questions": ["Why?"] * 21}, "up to 20 are answered"),
        ({"questions": ["Why?", " "]}, "blank"),
        ({"questions": "Why?"}, "a list of texts"),
        ({"questions": [["a", "b", "c"]]}, "is one text"),
        ({"questions": ["x" * 20_000]}, "up to 10,000 are read"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused_in_words(talk, change, words):
    (status,) = _run(talk, **change)
    assert status["state"] == "failed" and words in status["message"]


def test_more_questions_are_told_to_take_longer(talk):
    c = synthetic_comparison()
    c.seconds = {"prefill": 2.0, "decode": 4.0}
    talk.desk.estimates.learn("smollm2-135m", c)
    fields = {**FORM, "document": "x" * 100}
    one = talk.desk.answer({"view": "estimate", "args": fields})["seconds"]
    fields["questions"] = [["a", None]] * 2
    three = talk.desk.answer({"view": "estimate", "args": fields})["seconds"]
    assert three > one


def test_a_table_tells_every_cache_on_every_question(talk):
    run = _own(talk)
    sel = {"a": "snapkv", "b": "criticalkv", "budget": 0.2}

    def table():
        body = {"view": "turns", "run": run.id, "sel": sel}
        return views.answer(talk.desk.store, None, body, "one")["table"]

    _ask(talk, run, question="Who?", expected="Full cache")
    assert table() is None  # its cards say as much
    _ask(talk, run, question="Where?", expected="Where", fresh=True)
    found, c = table(), run.comparison
    assert found["questions"] == [c.prompt.question, "Who?", "Where?"]
    assert [row["label"] for row in found["rows"]][0] == "Full cache"
    held = [c.variant(m, 0.2) for m in c.methods]
    assert len(found["rows"]) == 1 + sum(v is not None for v in held)
    full, first = found["rows"][0]["cells"], found["rows"][1]["cells"]
    assert [cell["verdict"] for cell in full[1:]] == ["right", "right"] and full[1]["kl"] == ""
    assert [cell["verdict"] for cell in first[1:]] == ["wrong", "right"] and float(first[1]["kl"]) > 0
    judged = [cell["verdict"] for cell in first if cell["verdict"]]
    assert found["rows"][1]["right"] == f"{judged.count('right')} of {len(judged)} right"
    turn = c.turns[0]  # as if the first cache had been made after that question
    turn.variants = [v for v in turn.variants if v.key != next(filter(None, held)).key]
    assert table()["rows"][1]["cells"][1] is None


def test_what_is_added_to_a_run_asks_its_further_questions_no_more(monkeypatch):
    import kvviz
    from kvviz.ui import asks, engine

    seen = []
    monkeypatch.setattr(engine, "model_of", lambda key: None)
    monkeypatch.setattr(engine, "_same", lambda model, c: c.prompt)
    monkeypatch.setattr(kvviz, "build_prompt", lambda *args, **more: None)

    def compare_stream(*args, questions, **more):
        seen.append(questions)
        return iter(())

    monkeypatch.setattr(kvviz, "compare_stream", compare_stream)
    ask = asks.form_request(None, **FORM, questions=["Who?"])
    for into in (None, synthetic_comparison()):
        list(engine._compare(("m", "auto"), threading.Event(), None, ask, into))
    assert seen == [(("Who?", None),), ()]
