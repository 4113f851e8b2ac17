"""What the form, the endpoint, the command line, a stored run and Python ask for is the same."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fake_engine import FakeEngine
from tiny import make_model

import kvviz
from kvviz import cli, exports
from kvviz.engine.plan import plan_methods
from kvviz.errors import InputError
from kvviz.evaluate.examples import examples
from kvviz.methods import METHODS
from kvviz.settings import settings
from kvviz.ui import asks
from kvviz.ui import engine as engines
from kvviz.ui.api import compare_endpoint
from kvviz.ui.desk import Desk
from kvviz.ui.form import NAMES, variants
from kvviz.ui.form import form as offered
from kvviz.ui.runs import STORED, RunStore

TEXT = "The keeper of the lighthouse wrote the code 58213 in the ledger every evening. " * 6
UNTOUCHED = {"document": TEXT, "question": "What is the code?", "expected": "", "protocol": "question-aware",
             "methods": ["dropkv", "tova", "pyramidkv"], "budgets": ["30%"],
             "variants": ["snapkv:preset=paper", "obcache:window=4"], "model": "tiny", "dtype": "auto",
             "max_new_tokens": 4, "window": None, "system": "", "controlled": False, "evict_every": 0,
             "temperature": 0, "top_p": 1, "seed": 0, "cue": "", "template": True, "thinking": False,
             "turns": "", "raw": "", "questions": []}  # fmt: skip
ALL = [*UNTOUCHED["methods"], *UNTOUCHED["variants"]]
WHO = SimpleNamespace(session_hash="one", cookies={})


def endpoint(engine, **parts):
    """`/compare` as a client sees it: the last of what it yields."""
    desk = Desk(engine, RunStore(), settings({}))
    vars(desk).update(parts)
    return lambda *given, **named: list(compare_endpoint(desk)(*given, **named))[-1]



def form(**change):
    return asks.form_request(settings({}), **{**UNTOUCHED, **change})


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(engines.MODELS, ("tiny", "auto"), make_model("llama"))
    return engines.Engine()


def test_the_form_has_a_field_for_every_name():
    assert set(UNTOUCHED) == set(NAMES)


def test_untouched_fields_run_every_method_as_it_is_defined():
    ask = form(methods=[m.id for m in METHODS], variants=[])
    assert ask.options == {}
    for planned in plan_methods(ask):
        assert planned.used == planned.method.resolve(), planned.name


def test_a_window_goes_to_methods_that_have_one_and_name_neither_theirs_nor_a_preset():
    ask = form(methods=["snapkv", "dropkv", "knorm"], window=24.0)
    assert ask.options == {"snapkv": {"window": 24}, "dropkv": {"window": 24}}
    used = [p.used.get("window") for p in plan_methods(ask)]
    assert used == [24, 24, None, 16, 4]


def kept(variant) -> np.ndarray:
    return np.stack([np.asarray(m) for m in variant.selection.mask])


def masks(comparison) -> dict:
    return {v.key: (v.label, kept(v)) for v in comparison.variants}


def same(one, other):
    one, other = masks(one), masks(other)
    assert list(one) == list(other)
    for key, (label, mask) in one.items():
        assert other[key][0] == label, key
        np.testing.assert_array_equal(other[key][1], mask, err_msg=key)


@pytest.mark.parametrize("window", [None, 16])
def test_page_endpoint_command_line_stored_run_and_python_run_the_same_under_the_same_name(
    engine, monkeypatch, tmp_path, window
):
    model = engines.MODELS["tiny", "auto"]
    ask = form(window=window)
    *_, last = engine.stream(ask, threading.Event(), print)
    page = last.result
    windowed = [] if window is None else ["dropkv", "pyramidkv"]
    named = [f"{m}:window={window}" if m in windowed else m for m in ALL]
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?")

    python = kvviz.compare(model, prompt, ALL, [0.3], 4, options={m: {"window": window} for m in windowed})
    same(page, python)

    lines = exports.python_lines(page).replace("kvviz.load_model", "load").replace("kvviz.wrap_model", "load")
    made = {"load": lambda *args, **kwargs: model, "hf_model": None, "tokenizer": None}
    exec(lines, made)
    same(page, made["result"])

    page.save(tmp_path / "run.zip")
    stored = kvviz.load_comparison(tmp_path / "run.zip")
    desk = Desk(engine, RunStore(), settings({}))
    recipe = desk.store.add(stored, "file", "Opened file", "one").recipe()
    assert (recipe.methods, recipe.budgets, recipe.options) == (ask.methods, ask.budgets, ask.options)

    if window is None:
        call = endpoint(engine)
        answer = call(TEXT, "What is the code?", ALL, [0.3], model="tiny", max_new_tokens=4)
        path = tmp_path / "endpoint.json"
        path.write_text(json.dumps(answer["comparison"]))
        same(page, kvviz.load_comparison(path))

        monkeypatch.setattr("kvviz.models.load_model", lambda *args, **kwargs: model)
        document, out = tmp_path / "document.txt", tmp_path / "cli.json"
        document.write_text(TEXT)
        arguments = ["compare", "--document", document, "--question", "What is the code?", "--quiet",
                     "--methods", ",".join(ALL), "--budgets", "30%", "--max-new-tokens", 4,
                     "--json", out]  # fmt: skip
        assert cli.main(list(map(str, arguments))) == 0
        same(page, kvviz.load_comparison(out))
    else:  # the same kept sets where the window is written into the name
        by_name = kvviz.compare(model, prompt, named, [0.3], 4, measures=())
        for v, other in zip(page.variants, by_name.variants):
            assert v.label == other.label
            np.testing.assert_array_equal(kept(v), kept(other))


def test_what_is_added_to_a_run_keeps_the_options_of_all_its_methods(engine):
    desk = Desk(engine, RunStore(), settings({}))
    values = {**UNTOUCHED, "methods": ["dropkv"], "variants": [], "window": 16}
    run = desk.store.get([json.loads(s) for s in desk.run(SimpleNamespace(_data=values), WHO)][-1]["run"])
    count = 7 / run.comparison.n
    for more in ({"method": "snapkv"}, {"budget": count}):
        event = SimpleNamespace(_data={"run": run.id, **more})
        last = [json.loads(s) for s in desk.decode_more(event, WHO)][-1]
        assert last["state"] == "done", last
    c = run.comparison
    assert c.methods == ["dropkv", "snapkv"] and set(c.labels.values()) == {"DropKV (window=16)", "SnapKV"}
    assert {v.options["window"] for v in c.variants if v.method == "dropkv"} == {16}
    assert {v.entries for v in c.variants} == {int(0.3 * c.n), 7}
    assert c.settings["ask"]["options"] == {"dropkv": {"window": 16}}


def test_everything_asked_for_by_the_page_is_not_one_token(engine):
    desk = Desk(engine, RunStore(), settings({}))
    values = {**UNTOUCHED, "methods": ["dropkv"], "variants": []}
    run = desk.store.get([json.loads(s) for s in desk.run(SimpleNamespace(_data=values), WHO)][-1]["run"])
    event = SimpleNamespace(_data={"run": run.id, "budget": 1})  # a browser writes 1.0 like this
    assert [json.loads(s) for s in desk.decode_more(event, WHO)][-1]["state"] == "done"
    assert run.comparison.budgets == [1.0, 0.3]


def test_a_short_text_runs_with_windows_longer_than_it_and_says_so(engine):
    *_, last = engine.stream(form(document="58213", budgets=["50%"]), threading.Event(), print)
    n = last.result.n
    assert n < 64 and f"The observation window was cut from 64 to the {n} tokens there are." in [
        note for v in last.result.variants for note in v.notes if v.method == "pyramidkv"
    ]
    with pytest.raises(InputError, match="The window .64. is longer than the prompt"):
        list(engine.stream(form(document="58213", window=64), threading.Event(), print))


def test_the_form_offers_only_allocations_that_can_serve_a_method():
    class Real:
        methods = staticmethod(kvviz.list_methods)

    model = make_model("llama")
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?")
    offered = [name for _, name in variants(Real()) if kvviz.methods.parse_method(name)[0].artefact is None]
    result = kvviz.compare(model, prompt, offered, [0.3], 1, measures=())
    assert len(result.variants) == len(offered) > 50


def test_an_example_fills_the_fields():
    shown = offered(FakeEngine(), settings({}))["examples"]
    assert [one["title"] for one in shown] == [example.title for example in examples()]
    for one, example in zip(shown, examples()):
        form(**{name: one[name] for name in ("document", "question", "expected", "protocol")})
        assert one["expected"] and one["question"] == example.questions[0].question


def test_every_method_of_the_form_stands_in_a_group():
    class Real:
        methods = staticmethod(kvviz.list_methods)

    shown = offered(Real(), settings({}))
    groups = {group["name"]: [m["id"] for m in group["methods"]] for group in shown["groups"]}
    assert list(groups) == ["position", "keys", "attention", "attention and values", "learned", "controls"]
    assert sorted(m for ids in groups.values() for m in ids) == sorted(m.id for m in METHODS)
    assert groups["position"] == ["streaming_llm"] and groups["controls"] == ["random"]
    five = [m["id"] for group in shown["groups"] for m in group["methods"] if m["five"]]
    assert sorted(five) == ["compresskv", "criticalkv", "dropkv", "indexmem", "laprox"]
    cheap = {one["name"]: one["methods"] for one in shown["sets"]}["Everything cheap"]
    assert "snapkv" in cheap and not {"kvzip", "h2o", "indexmem"} & set(cheap)
    rows = {m["id"]: m for group in shown["groups"] for m in group["methods"]}
    window = next(o for o in rows["snapkv"]["options"] if o["name"] == "window")
    assert (window["default"], window["help"]) == (32, "The last queries of the prompt that score.")
    assert rows["laprox"]["allocation"] == "global" and rows["duoattention"]["options"][0]["allowed"]


def test_an_allocation_that_only_some_methods_claim_for_is_offered_with_those():
    class Real:
        methods = staticmethod(kvviz.list_methods)

    offered = [name for _, name in variants(Real())]
    calibrated = [m for m in offered if m.endswith("=calibrated")]
    assert calibrated == ["lava:allocation=calibrated", "cake:allocation=calibrated"]
    assert not [m for m in offered if m.endswith("=whole_heads")]


def test_a_run_with_budgets_in_tokens_is_asked_again_as_it_was(engine):
    desk = Desk(engine, RunStore(), settings({}))
    fields = {**UNTOUCHED, "methods": ["dropkv"], "variants": [], "budgets": ["1t", "5t"]}
    values = fields
    run = desk.store.get([json.loads(s) for s in desk.run(SimpleNamespace(_data=values), WHO)][-1]["run"])
    event = SimpleNamespace(_data={"run": run.id, "method": "knorm"})
    assert [json.loads(s) for s in desk.decode_more(event, WHO)][-1]["state"] == "done"
    assert [(v.method, v.budget) for v in run.comparison.variants] == [
        ("dropkv", 5), ("dropkv", 1), ("knorm", 5), ("knorm", 1)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": -5}, "The seed is a whole number from 0 to"),
        ({"seed": 2.0**64}, "The seed is a whole number from 0 to"),
        ({"window": -1}, "The observation window is a whole number from 1 up, not -1."),
        ({"window": 2.5}, "The observation window is a whole number from 1 up, not 2.5."),
        ({"evict_every": -2}, "after which is evicted again is a whole number from 1 up, not -2."),
        ({"max_new_tokens": None, "temperature": "x"}, "The temperature is a number from 0 up"),
        ({"variants": ["snapkv:pool"]}, "Write options as name=value"),
        ({"variants": ["snapkw"]}, "Did you mean snapkv?"),
        ({"variants": "snapkv"}, "The variants are a list of names, not 'snapkv'."),
        ({"methods": True}, "The methods are a list of names, not True."),
        ({"methods": 7.5}, "The methods are a list of names, not 7.5."),
        ({"model": "  /etc/passwd "}, None),
    ],
)
def test_a_field_that_cannot_be_used_is_one_sentence(change, sentence):
    if sentence is None:
        assert form(**change).model == "/etc/passwd"
        return
    with pytest.raises(InputError) as error:
        form(**change)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"max_new_tokens": 0}, "The longest answer in new tokens is a whole number from 1 up, not 0."),
        ({"max_new_tokens": []}, "The longest answer in new tokens is a whole number from 1 up, not []."),
        ({"max_new_tokens": -1}, "a whole number from 1 up, not -1."),
        ({"max_new_tokens": 1.5}, "a whole number from 1 up, not 1.5."),
        ({"max_new_tokens": float("inf")}, "a whole number from 1 up, not inf."),
        ({"max_new_tokens": 5000}, "An answer may have up to 1,024 new tokens here, not 5,000."),
        ({"seed": 1.7}, "The seed is a whole number from 0 to"),
        ({"budgets": ["0,5x"]}, "not '0,5x'."),
        ({"budgets": None}, "Choose at least one budget."),
        ({"budgets": []}, "Choose at least one budget."),
        ({"budgets": [None]}, "not None."),
        ({"budgets": [[0.5]]}, "not [0.5]."),
        ({"methods": "snap"}, "There is no method 'snap'. Did you mean snapkv?"),
        ({"methods": [], "budgets": [0.5]}, "Choose at least one method."),
        ({"methods": None}, "Choose at least one method."),
        ({"methods": ["snapkv:pool=x"]}, "pool"),
        ({"methods": ["snapkv"], "budgets": [i / 1000 for i in range(1, 1000)]},
         "1 method at 999 budgets are 999 answers; at most 256 are decoded in one run here."),
        ({"document": 5}, "The document is one text, not 5."),
        ({"document": ["a"]}, "The document is one text, not ['a']."),
        ({"expected": ["a"]}, "The expected answer is one text"),
        ({"protocol": "x"}, "There is no protocol 'x'. Choose from: question-aware, question-agnostic."),
    ],
)  # fmt: skip
def test_the_endpoint_refuses_in_a_sentence_and_without_a_place_in_the_line(change, sentence):
    engine = FakeEngine()
    call = endpoint(engine, line=None)  # entering would fail
    given = {"document": "text", "question": "q?", "methods": ["snapkv"], "budgets": [0.5], **change}
    assert sentence in call(**given)["error"] and engine.asked == []


def test_the_endpoint_reads_budgets_as_everywhere_else():
    engine = FakeEngine()
    call = endpoint(engine)
    assert "error" not in call("text", "q?", "SnapKV", [1, 1.0, "20%", "0.3", "7"])
    assert engine.asked[0].budgets == (1, 1.0, 0.2, 0.3, 7)
    assert engine.asked[0].methods == ("snapkv",) and engine.asked[0].max_new_tokens == 64


@pytest.mark.slow
def test_the_stored_example_run_again_with_untouched_fields_says_what_it_says(smollm, monkeypatch):
    stored = kvviz.load_comparison(next(iter(sorted(STORED.glob("1-*.zip")))))
    monkeypatch.setitem(engines.MODELS, ("smollm2-135m", "float32"), smollm)
    ask = form(document=stored.prompt.document, question=stored.prompt.question, expected=stored.expected,
               methods=["snapkv", "dropkv"], variants=[], budgets=["10%"], model="smollm2-135m",
               dtype="float32", max_new_tokens=24)  # fmt: skip
    *_, last = engines.Engine().stream(ask, threading.Event(), print)
    again = {v.method: v.text for v in last.result.variants}
    assert "58213" in again["dropkv"]
    for method, text in again.items():
        assert text == stored.variant(method, 0.1).text


def test_the_form_offers_the_models_that_the_server_is_told_to():
    shown = offered(FakeEngine(), settings({"KVVIZ_MODELS": "qwen3-0.6b"}))
    assert [m["id"] for m in shown["models"]] == ["qwen3-0.6b"] and shown["first"]["model"] == "qwen3-0.6b"


def test_what_stands_around_the_question_is_the_same_everywhere(engine, monkeypatch, tmp_path):
    model = engines.MODELS["tiny", "auto"]
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    ask = form(methods=["snapkv"], variants=[], cue="The code is", turns=json.dumps(turns))
    *_, last = engine.stream(ask, threading.Event(), print)
    page = last.result
    ids = page.prompt.input_ids.tolist()
    assert "".join(page.prompt.tokens).endswith("assistant\nThe code is")

    made = {"load": lambda *args, **kwargs: model, "hf_model": None, "tokenizer": None}
    lines = exports.python_lines(page).replace("kvviz.load_model", "load").replace("kvviz.wrap_model", "load")
    exec(lines, made)
    assert made["prompt"].input_ids.tolist() == ids

    page.save(tmp_path / "run.zip")
    stored = RunStore().add(kvviz.load_comparison(tmp_path / "run.zip"), "file", "Opened file", "one")
    assert stored.recipe().framing == ask.framing
    again = form(**{**asks.form_fields(stored.recipe()), "model": "tiny", "dtype": "auto"})
    assert again.framing == ask.framing

    answer = endpoint(engine)(TEXT, "What is the code?", ["snapkv"], [0.3], model="tiny", max_new_tokens=4,
                              cue="The code is", turns=turns)  # fmt: skip
    path = tmp_path / "endpoint.json"
    path.write_text(json.dumps(answer["comparison"]))
    assert kvviz.load_comparison(path).prompt.input_ids.tolist() == ids

    monkeypatch.setattr("kvviz.models.load_model", lambda *args, **kwargs: model)
    document, said, out = tmp_path / "document.txt", tmp_path / "turns.json", tmp_path / "cli.json"
    document.write_text(TEXT)
    said.write_text(json.dumps(turns))
    arguments = ["compare", "--document", document, "--question", "What is the code?", "--quiet",
                 "--methods", "snapkv", "--budgets", "30%", "--max-new-tokens", 4, "--json", out,
                 "--cue", "The code is", "--turns", said]  # fmt: skip
    assert cli.main(list(map(str, arguments))) == 0
    assert kvviz.load_comparison(out).prompt.input_ids.tolist() == ids


def test_the_form_starts_with_the_largest_model_that_fits_a_gpu(monkeypatch):
    from kvviz.hardware import Room

    for on, first in ((Room(True, 24 * 10**9), "qwen3-8b"), (Room(False, 24 * 10**9), "smollm2-135m")):
        monkeypatch.setattr("kvviz.models.catalog.room", lambda on=on: on)
        assert offered(FakeEngine(), settings({"KVVIZ_PUBLIC": "1"}))["first"]["model"] == first
