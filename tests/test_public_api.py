"""The names that people and outside checks call, with the arguments they call them with."""

from __future__ import annotations

import inspect
import threading
from dataclasses import fields

import numpy as np
import pytest
import torch

import kvviz
from kvviz.types import Event

TEXT = "The keeper of the lighthouse wrote the code 58213 in the ledger. The weather was fair. " * 3


@pytest.fixture(scope="module")
def run(tiny_llama):
    """The sequence of calls of the README."""
    prompt = kvviz.build_prompt(tiny_llama, document=TEXT, question="What is the code?")
    trace = kvviz.prefill(tiny_llama, prompt, methods=["snapkv", "criticalkv"])
    selection = kvviz.select(trace, "criticalkv", budget=0.2)
    result = kvviz.compare(tiny_llama, prompt, methods=["snapkv", "criticalkv"], budgets=[0.5, 0.2],
                           max_new_tokens=4, measures=("kl", "output_error"))  # fmt: skip
    return tiny_llama, prompt, trace, selection, result


def test_the_names():
    public = {
        "load_model", "wrap_model", "build_prompt", "prefill", "select", "compare", "compare_stream",
        "list_methods", "load_comparison", "Comparison", "KvvizError",
    }  # fmt: skip
    assert public <= set(kvviz.__all__)
    for name in kvviz.__all__:
        assert getattr(kvviz, name) is not None
    assert kvviz.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kvviz.nothing  # noqa: B018
    assert issubclass(kvviz.KvvizError, ValueError)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("load_model", "name dtype device"),
        ("build_prompt", "model document question system protocol"),
        ("prefill", "model prompt methods"),
        ("select", "trace method budget"),
        ("compare", "model prompt methods budgets max_new_tokens measures events cancel"),
    ],
)
def test_the_arguments(name, arguments):
    given = list(inspect.signature(getattr(kvviz, name)).parameters)
    assert [a for a in given if a in arguments.split()] == arguments.split()


def test_the_model(run):
    model = run[0]
    assert isinstance(model.hf, torch.nn.Module)
    assert (model.n_layers, model.n_query_heads, model.n_kv_heads, model.head_dim) == (3, 4, 2, 16)
    assert model.id == "tiny-llama"
    assert model.tokenizer.decode(model.tokenizer("code").input_ids) == "code"


def test_the_prompt(run):
    _, prompt, *_ = run
    count = len(prompt.input_ids)
    assert prompt.input_ids.dtype == torch.long
    assert prompt.input_ids.dim() == 1
    assert prompt.n_compressible == count
    assert len(prompt.tokens) == len(prompt.offsets) == count
    assert {type(o) for o in prompt.offsets} == {tuple, type(None)}
    agnostic = kvviz.build_prompt(run[0], TEXT, "What is the code?", protocol="question-agnostic")
    assert 0 < agnostic.n_compressible < len(agnostic.input_ids)


def test_the_trace(run):
    model, prompt, trace, *_ = run
    assert trace.n == prompt.n_compressible
    for index in range(model.n_layers):
        assert trace.keys[index].shape == trace.values[index].shape == (2, trace.n, 16)


def test_the_selection(run):
    model, _, trace, s, _ = run
    assert len(s.mask) == len(s.scores) == len(s.scores_raw) == model.n_layers
    for index in range(model.n_layers):
        assert s.mask[index].dtype == torch.bool
        assert s.mask[index].shape == s.scores[index].shape == s.scores_raw[index].shape == (2, trace.n)
        assert s.scores[index].dtype == torch.float32
    assert s.budgets.dtype == torch.int64
    assert s.budgets.shape == s.cutoff.shape == (3, 2)
    assert s.protected.shape == s.stage.shape == (3, 2, trace.n)
    assert s.stage.dtype == torch.int8
    assert s.scope in ("head", "layer", "all")
    assert all(isinstance(note, str) for note in s.notes)
    assert torch.isnan(s.scores[0][s.protected[0]]).all()


def test_the_result(run):
    *_, r = run
    assert [(v.method, v.budget) for v in r.variants] == [
        (m, b) for m in ("snapkv", "criticalkv") for b in (0.5, 0.2)
    ]
    for v in (r.full, *r.variants):
        assert isinstance(v.text, str)
        assert all(isinstance(token, int) for token in v.token_ids)
        assert v.kl.shape == (len(r.full.token_ids),)
        assert v.bytes > 0
        assert v.tokens_kept > 0
        assert isinstance(v.seconds, dict)
    for v in r.variants:
        assert v.selection.method == v.method
        assert v.output_error.shape == (3, 4)
        assert v.output_error.dtype == np.float32
    assert r.bytes_full == r.full.bytes
    assert isinstance(r.to_json(), str)
    assert list(r.to_frame()["method"]) == ["full", *(v.method for v in r.variants)]


def test_the_methods():
    methods = kvviz.list_methods()
    ids = [m.id for m in methods]
    assert len(set(ids)) == len(ids)
    assert {
        "random", "streaming_llm", "knorm", "keydiff", "snapkv", "tova", "h2o", "pyramidkv", "adakv",
        "expected_attention", "kvzip", "vatp", "lava", "cake", "obcache", "caote", "defensivekv",
        "layer_defensivekv", "criticalkv", "critical_adakv", "laprox", "dropkv",
    } <= set(ids)  # fmt: skip
    for m in methods:
        assert m.label
        assert m.paper
        assert m.idea.endswith(".")
        assert isinstance(m.needs, frozenset)
        assert m.allocation
        assert m.resolve() == {**m.resolve(), **m.options}
        assert m.compare_with is None or m.compare_with in ids
        assert inspect.getmodule(m.score).__name__.startswith("kvviz.methods.")


def test_events_and_cancel_are_taken(tiny_llama):
    prompt = kvviz.build_prompt(tiny_llama, TEXT, "What is the code?")
    seen: list[Event] = []
    cancel = threading.Event()

    def listen(event):
        seen.append(event)
        if event.stage == "decode":
            cancel.set()

    result = kvviz.compare(tiny_llama, prompt, ["snapkv"], [0.5], 30, events=listen, cancel=cancel)
    assert seen[-1].result is result
    assert {f.name for f in fields(Event)} >= {"stage", "message", "done", "total", "seconds_left", "answers"}


def test_errors_are_caught_by_one_name(tiny_llama):
    for call in (
        lambda: kvviz.build_prompt(tiny_llama, "", "What?"),
        lambda: kvviz.load_model("no-such-model"),
        lambda: kvviz.load_comparison("no-such-file.zip"),
    ):
        with pytest.raises(kvviz.KvvizError) as error:
            call()
        assert str(error.value).endswith((".", ")"))
