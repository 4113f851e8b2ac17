"""What the full cache looked at, against the plain model's own attention weights."""

import numpy as np
import pytest
import torch
from reference import attention_rows, trace_of
from tiny import make_model

import kvviz
from kvviz.engine.answer_attention import attention_of_answer
from kvviz.engine.selection import select
from kvviz.results import attention as stored
from kvviz.results.kept import KeptSet
from kvviz.results.points import Point


@pytest.mark.parametrize("suffix", [0, 6])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_equals_the_plain_models_weights(family, suffix, monkeypatch):
    model = make_model(family)
    trace = trace_of(model, 40, suffix)
    answer = [5, 9, 11, 7]
    kept = {f"snapkv@{b}": Point.pack(select(trace, "snapkv", b)).kept for b in (0.2, 0.6)}
    empty = np.zeros((model.n_layers, model.n_kv_heads, 40), bool)
    kept["nothing"] = KeptSet.pack(empty, empty, 0)
    found = attention_of_answer(trace, answer, kept)
    rows = attention_rows(family, torch.cat([trace.prompt.input_ids, torch.tensor(answer)]))
    at = len(trace.prompt.input_ids) - 1  # the query that predicts the first token
    first, last = trace.prompt.document_span
    for layer, (*_, weights) in enumerate(rows):
        p = weights[:, at : at + 4, :40].unflatten(0, (model.n_kv_heads, -1)).mean(1).numpy()
        for head in range(model.n_kv_heads):
            for step in range(4):
                own = p[head, step]
                assert found.weights(step, layer, head) == pytest.approx(own, abs=0.005)
                assert found.document[step, layer, head] == pytest.approx(own[first:last].sum(), abs=1e-3)
                for key, sets in kept.items():
                    gone = ~sets.mask()[layer, head]
                    assert found.gone(key, layer, head)[step] == pytest.approx(own[gone].sum(), abs=1e-3)
                    inside = own[first:last][gone[first:last]].sum() / max(own[first:last].sum(), 1e-9)
                    assert found.gone_document(key, layer, head)[step] == pytest.approx(inside, abs=5e-3)
    monkeypatch.setattr("kvviz.engine.answer_attention.CODES_BYTES", 0)
    monkeypatch.setattr("kvviz.engine.answer_attention.STEPS", 2)
    small = attention_of_answer(trace, answer, kept)
    assert not small.by_head and small.steps == 2
    assert small.weights(1, 0) == pytest.approx(found.weights(1, 0), abs=0.005)
    assert (small.lost["nothing"] == found.lost["nothing"][:2]).all()


def test_a_run_carries_it_for_all_answers_and_stops():
    model = make_model("llama")
    trace = trace_of(model, 60)
    c = kvviz.compare(model, trace.prompt, ["snapkv", "knorm"], [0.3], 4, lenses=True, trace=trace)
    seen = c.answer_attention
    assert seen.steps == len(c.full.token_ids)
    assert {v.key for v in c.variants} | {f"{p.method}@{p.budget}" for p in c.at_stops} == set(seen.keys)
    assert seen.gone("knorm@1.0") == pytest.approx(0)
    assert (seen.gone("knorm@0.3") > 0).all()
    other = kvviz.compare(model, trace.prompt, ["tova"], [0.3], 4, lenses=True, trace=trace)
    assert c.merged(other).answer_attention.keys == [*other.answer_attention.keys, *seen.keys]


def test_an_answer_of_one_token():
    model = make_model("llama")
    found = attention_of_answer(trace_of(model, 20), [3], {})
    assert found.steps == 1 and found.weights(0).sum() == pytest.approx(1, abs=0.05)
    assert stored.encode(np.float32([1.0])).item() == 255
