"""What a run is asked for: options, what it refuses before it computes, what it notes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import (
    prompt_of,
)
from test_run import NEW, N

import kvviz.engine.cache
import kvviz.engine.run
from kvviz.engine.ask import Ask
from kvviz.engine.run import compare
from kvviz.engine.trace import prefill
from kvviz.errors import InputError, KvvizError, NeedError
from kvviz.methods import get_method
from kvviz.settings import settings


@pytest.mark.parametrize("change", ["tokens", "length", "model"])
def test_a_trace_of_something_else_is_refused(tiny_models, change):
    llama = tiny_models["llama"]
    trace = prefill(llama, prompt_of(llama, N))
    model, prompt = llama, prompt_of(llama, N)
    if change == "tokens":
        prompt = prompt_of(llama, N, seed=1)
    elif change == "length":
        prompt = prompt_of(llama, N - 1)
    else:
        model = tiny_models["qwen2"]
    with pytest.raises(InputError, match="This trace was made (from other tokens|with another model)"):
        compare(model, prompt, ["snapkv"], [0.5], NEW, trace=trace)


def test_a_trace_without_what_a_method_needs_is_refused(tiny_llama):
    trace = prefill(tiny_llama, prompt_of(tiny_llama, N))
    with pytest.raises(NeedError, match="without the accumulated attention of all queries"):
        compare(tiny_llama, prompt_of(tiny_llama, N), ["h2o"], [0.5], NEW, trace=trace)


def test_a_controlled_run_gives_windowed_methods_one_window(tiny_llama):
    methods = ["snapkv", "dropkv", "knorm"]
    result = compare(tiny_llama, prompt_of(tiny_llama, N), methods, [0.3], 2, controlled=True, measures=())
    stated = result.settings["methods"]
    assert Ask.of_settings(result.settings).controlled
    assert (stated["dropkv"]["own"]["window"], stated["dropkv"]["own"]["pool_kind"]) == (8, "max")
    for name in methods[:2]:
        used = stated[name]["used"]
        assert [used[k] for k in ("window", "pool", "pool_kind", "group")] == [32, 7, "avg", "mean"]
    assert "window" not in stated["knorm"]["used"]


def test_controlled_settings_leave_what_was_given_by_name_and_the_label_says_so(tiny_llama):
    methods = ["snapkv", "snapkv:window=8", "dropkv:preset=authors"]
    asked = {"controlled": True, "measures": (), "options": {"dropkv:preset=authors": {"pool": 5}}}
    result = compare(tiny_llama, prompt_of(tiny_llama, N), methods, [0.3], 2, **asked)
    used = [result.settings["methods"][name]["used"] for name in methods]
    assert [u["window"] for u in used] == [32, 8, get_method("dropkv").presets["authors"].get("window", 8)]
    assert [u["pool"] for u in used] == [7, 7, 5]
    assert list(result.labels.values()) == ["SnapKV", "SnapKV (window=8)", "DropKV (pool=5, preset=authors)"]


def test_options_by_name_and_within_a_name(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    a = compare(tiny_llama, prompt, ["snapkv"], [0.2], 2, measures=(), options={"snapkv": {"window": 4}})
    b = compare(tiny_llama, prompt, ["snapkv:window=4"], [0.2], 2, measures=())
    assert torch.equal(torch.stack(a.variants[0].selection.mask), torch.stack(b.variants[0].selection.mask))
    with pytest.raises(InputError, match="There is no method 'snapvk'"):
        compare(tiny_llama, prompt, ["snapkv"], [0.2], 2, options={"snapvk": {"window": 4}})


def test_accumulated_attention_is_read_where_options_ask_for_it(tiny_llama):
    result = compare(tiny_llama, prompt_of(tiny_llama, N), ["vatp:base=h2o"], [0.3], 2, measures=())
    assert result.variants[0].token_ids


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": []}, "Choose at least one method."),
        ({"budgets": []}, "Choose at least one budget."),
        (
            {"methods": ["snapkv", "snapkv"]},
            "snapkv is chosen twice. Choose each method once, or give them different options.",
        ),
        ({"budgets": [0.5, 0.5]}, "The budget 50% is chosen twice. Choose each budget once."),
        ({"methods": ["snap"]}, "There is no method 'snap'. Did you mean snapkv?"),
        ({"methods": ["snapkv:windows=4"]}, "SnapKV has no option 'windows'. Options: allocation, "),
        ({"methods": ["snapkv:allocation=best"]}, "SnapKV: allocation is one of uniform, "),
        ({"budgets": [0]}, "A budget is a share above 0 and up to 1 "),
        ({"budgets": [1.5]}, "A budget is a share above 0 and up to 1 "),
        ({"budgets": [float("nan")]}, "A budget is a share above 0 and up to 1 "),
        ({"budgets": ["all"]}, "A budget is a share above 0 and up to 1 "),
        (
            {"methods": ["snapkv:window=64"]},
            "The window (64) is longer than the prompt (50). Choose a smaller window.",
        ),
        (
            {"options": {"snapkv": {"window": 64}}},
            "The window (64) is longer than the prompt (50). Choose a smaller window.",
        ),
        (
            {"budgets": [i / 1000 for i in range(1, 300)]},
            "1 method at 299 budgets are 299 answers; at most 256 are decoded in one run here. "
            "Choose fewer methods or budgets.",
        ),
        ({"max_new_tokens": 0}, "The longest answer in new tokens is a whole number from 1 up, not 0."),
        ({"max_new_tokens": 1.5}, "The longest answer in new tokens is a whole number from 1 up, not 1.5."),
        ({"max_new_tokens": 5000}, "An answer may have up to 1,024 new tokens here, not 5,000."),
        ({"seed": -5}, "The seed is a whole number from 0 to 9,223,372,036,854,775,807, not -5."),
        ({"seed": 2**70}, "The seed is a whole number from 0 to 9,223,372,036,854,775,807, not 1180591"),
        ({"expected": ["58213"]}, "The expected answer is one text, not ['58213']."),
        ({"methods": [object()]}, 'A method is named by its id, such as "snapkv" or '),
        ({"options": {"tova": {"sinks": 1}}}, "There are options for tova, which is not among the methods."),
        ({"evict_every": 0}, "The number of new tokens after which is evicted again is a whole "),
        ({"measures": ("kl", "speed")}, "There is no measure 'speed'. Choose from: kl, output_error."),
        ({"temperature": -1.0}, "The temperature is a number from 0 up, not -1.0."),
        ({"temperature": float("nan")}, "The temperature is a number from 0 up, not nan."),
        ({"top_p": 0.0}, "top_p is above 0 and at most 1, not 0.0."),
        ({"top_p": 1.5}, "top_p is above 0 and at most 1, not 1.5."),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_computed(tiny_llama, monkeypatch, change, sentence):
    monkeypatch.setattr(kvviz.engine.run, "prefill_events", None)
    asked = {"methods": ["snapkv"], "budgets": [0.5], "max_new_tokens": NEW, **change}
    with pytest.raises(KvvizError) as error:
        compare(tiny_llama, prompt_of(tiny_llama, N), limits=settings({}), **asked)
    assert str(error.value).startswith(sentence)


def test_a_text_whose_cache_does_not_fit_memory_is_refused_before_it_is_read(tiny_llama, monkeypatch):
    cache = N * 3 * 2 * 2 * 16 * 4  # tokens, layers, keys and values, heads, values, bytes
    monkeypatch.setattr("kvviz.memory.available", lambda: cache)
    assert compare(tiny_llama, prompt_of(tiny_llama, N), ["snapkv"], [0.5], 2, measures=()).full.token_ids
    for free, method in ((cache - 1, "snapkv"), (cache, "h2o")):
        monkeypatch.setattr("kvviz.memory.available", lambda free=free: free)
        with pytest.raises(InputError, match="GB of memory once tiny-llama has read it, and 0.0 GB are free"):
            compare(tiny_llama, prompt_of(tiny_llama, N), [method], [0.5], 2, measures=())


def test_an_answer_that_would_outgrow_the_model_is_refused(tiny_llama):
    model = replace(tiny_llama, info=replace(tiny_llama.info, max_tokens=N + 5))
    assert compare(model, prompt_of(tiny_llama, N), ["snapkv"], [0.5], 5, measures=()).full.token_ids
    with pytest.raises(InputError, match="50 tokens and 6 new ones may follow; tiny-llama reads 55 tokens"):
        compare(model, prompt_of(tiny_llama, N), ["snapkv"], [0.5], 6, measures=())


def test_budgets_that_keep_the_same_are_noted(tiny_llama):
    result = compare(tiny_llama, prompt_of(tiny_llama, N), ["snapkv"], [0.1, 5], 2, measures=())
    assert "Some budgets keep the same number of tokens of this prompt." in result.notes


def test_methods_that_would_read_alike_show_their_options(tiny_llama):
    names = ["dropkv", "dropkv:preset=authors", "dropkv:pool=3,window=4", "snapkv:allocation=global"]
    result = kvviz.compare(tiny_llama, prompt_of(tiny_llama, 60), names, [0.5], max_new_tokens=1)
    assert list(result.labels.values()) == [
        "DropKV",
        "DropKV (preset=authors)",
        "DropKV (pool=3, window=4)",
        "SnapKV with global",
    ]
