"""What is asked for: checked when it is made, the same after it was stored."""

import inspect
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from reference import prompt_of

import kvviz
from kvviz.engine.ask import Ask, check_limits
from kvviz.engine.plan import labels, named, plan_methods
from kvviz.errors import InputError
from kvviz.settings import settings


def test_one_set_of_defaults():
    for call in (kvviz.compare, kvviz.compare_stream):
        given = inspect.signature(call).parameters
        assert all(p.kind is not p.VAR_KEYWORD for p in given.values())
        for name, value in Ask().to_dict().items():
            default = given[name].default
            if name == "options":
                assert default is None
            else:
                assert (list(default) if isinstance(value, list) else default) == value


def test_what_is_stored_is_what_was_asked():
    ask = Ask(["snapkv:window=16", "tova"], [1.0, 1, np.float32(0.2), "5%"], 8, "kl",
              {"tova": {"protect": 3}}, True, " 58213 ", 0.7, 0.9, 3, True, 4)  # fmt: skip
    assert ask.budgets == (1.0, 1, 0.2, 0.05) and ask.expected == "58213" and ask.measures == ("kl",)
    again = Ask.from_dict(json.loads(json.dumps(ask.to_dict())))
    assert again == ask and [type(b) for b in again.budgets] == [float, int, float, float]


def test_runs_of_older_versions_say_what_was_asked():
    old = {"methods": {"snapkv": {"own": {"window": 16}, "used": {"window": 16}}}, "budgets": [0.5, 7],
           "max_new_tokens": 24, "measures": ["kl"], "temperature": 0.5, "top_p": 1.0, "seed": 2,
           "controlled": False, "evict_every": None, "date": "2026"}  # fmt: skip
    ask = Ask(["snapkv"], [0.5, 7], 24, ["kl"], {"snapkv": {"window": 16}}, temperature=0.5, seed=2)
    assert Ask.of_settings(old) == ask
    assert Ask.of_settings({"ask": ask.to_dict(), "methods": old["methods"]}) == ask


@pytest.mark.parametrize("stored", [None, 3, [], {"budgets": ["x"]}, {"seed": "__import__('os')"}])
def test_a_stored_ask_that_cannot_be_read_is_a_sentence(stored):
    with pytest.raises(InputError):
        Ask.of_settings({"ask": stored})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"budgets": None}, "A budget is a share above 0 and up to 1"),
        ({"budgets": [[0.5]]}, "A budget is a share above 0 and up to 1"),
        ({"budgets": [0.5, "50%"]}, "The budget 50% is chosen twice"),
        ({"methods": 5}, "A method is named by its id"),
        ({"methods": ["tova", "tova:"]}, "tova: is chosen twice"),
        ({"methods": ["snapkv:window=1,pool=3", "snapkv:pool=3,window=1"]}, "is chosen twice"),
        ({"methods": ["snapkv+edit1"]}, "was changed by hand; ask for snapkv instead"),
        ({"max_new_tokens": math.inf}, "The longest answer in new tokens is a whole number"),
        ({"max_new_tokens": None}, "The longest answer in new tokens is a whole number"),
        ({"max_new_tokens": True}, "The longest answer in new tokens is a whole number"),
        ({"seed": 1.7}, "The seed is a whole number from 0 to"),
        ({"seed": "7"}, "The seed is a whole number from 0 to"),
        ({"temperature": "hot"}, "The temperature is a number from 0 up"),
        ({"top_p": math.nan}, "top_p is above 0 and at most 1"),
        ({"measures": 3}, "There is no measure 3"),
        ({"options": ["window"]}, "Options are given by method"),
        ({"options": {"snapkv": 16}}, "Options are given by method"),
        ({"expected": 58213}, "The expected answer is one text"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(asked, sentence):
    with pytest.raises(InputError, match=sentence):
        Ask(**asked)


def test_budgets_and_methods_may_be_one():
    assert Ask("snapkv:window=4,pool=3,tova", 0.5) == Ask(["snapkv:window=4,pool=3", "tova"], [0.5])
    assert Ask(budgets=np.int64(5)).budgets == (5,)
    assert Ask(max_new_tokens=8.0, seed=np.int64(3)) == Ask(max_new_tokens=8, seed=3)


def test_other_methods_leave_the_options_of_those_that_go():
    ask = Ask(["snapkv", "tova"], [0.5], options={"snapkv": {"window": 4}, "tova": {"protect": 2}})
    assert ask.of(["tova"]).options == {"tova": {"protect": 2}}
    assert ask.of(budgets=[0.1]).options == ask.options


def test_a_label_is_enough_to_name_a_method():
    assert named(Ask(["SnapKV:window=4", "TOVA"], [0.5])).methods == ("snapkv:window=4", "tova")


def test_labels_say_what_was_chosen_and_nothing_else():
    options = {"dropkv": {"window": 32}, "tova": plan_methods(Ask(["tova"]))[0].own}
    methods = ["snapkv", "snapkv:window=32", "snapkv:allocation=global,pool=5", "dropkv", "tova"]
    shown = labels(plan_methods(Ask(methods, options=options)))
    assert list(shown.values()) == [
        "SnapKV", "SnapKV (window=32)", "SnapKV with global (pool=5)", "DropKV (window=32)", "TOVA"
    ]  # fmt: skip


def test_two_names_of_one_method_are_noted(tiny_llama):
    result = kvviz.compare(tiny_llama, prompt_of(tiny_llama, 60), ["snapkv", "snapkv:window=32"], [0.5], 1,
                           measures=())  # fmt: skip
    assert "SnapKV and SnapKV (window=32) are one method with the same settings." in result.notes


def test_one_token_and_everything_stand_beside_each_other(tiny_llama):
    result = kvviz.compare(tiny_llama, prompt_of(tiny_llama, 50), ["snapkv"], [1, 1.0], 2, measures=())
    assert [v.entries for v in result.variants] == [1, 50] and result.budgets == [1.0, 1]


def test_a_stream_says_what_is_wrong_when_it_is_asked_for(tiny_llama):
    with pytest.raises(InputError, match="Choose at least one budget."):
        kvviz.compare_stream(tiny_llama, prompt_of(tiny_llama, 50), ["snapkv"], [])


def test_limits_hold_where_they_are_passed(tiny_llama, monkeypatch):
    monkeypatch.setenv("KVVIZ_MAX_VARIANTS", "1")
    monkeypatch.setenv("KVVIZ_MAX_NEW_TOKENS", "1")
    prompt = prompt_of(tiny_llama, 50)
    assert len(kvviz.compare(tiny_llama, prompt, ["snapkv"], [0.5, 0.2], 2, measures=()).variants) == 2
    with pytest.raises(InputError, match="1 method at 2 budgets are 2 answers; at most 1 are decoded"):
        kvviz.compare(tiny_llama, prompt, ["snapkv"], [0.5, 0.2], 1, limits=settings())
    with pytest.raises(InputError, match="may have up to 1 new tokens here, not 2"):
        check_limits(Ask(["snapkv"], [0.5], 2), settings())


def test_the_words_for_decoding():
    assert Ask(seed=3).decoding == "greedy"
    assert Ask(temperature=1, seed=3).decoding == "sampled at temperature 1 (top-p 1, seed 3)"


def test_asking_needs_no_torch():
    code = "import sys, kvviz.engine.ask; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
