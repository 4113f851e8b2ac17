"""What each cache was about to say, against the plain model with the same rows hidden."""

import json

import numpy as np
import pytest
import torch
from reference import masked_logits, masked_model, trace_of
from tiny import make_model

from kvviz.engine.forks import branch, fork
from kvviz.engine.selection import select
from kvviz.engine.trials import Trials
from kvviz.errors import InputError
from kvviz.results.stored import read_fork


def kept_of(trace, method, budget):
    return np.stack([m.numpy() for m in select(trace, method, budget).mask])


def probabilities(trace, mask, tokens):
    ids = torch.cat([trace.prompt.input_ids, torch.tensor(tokens)])
    keep = [torch.from_numpy(np.ascontiguousarray(layer))[None] for layer in mask]
    logits = masked_logits(masked_model("llama"), ids[None], trace.n, keep)[0]
    at = len(trace.prompt.input_ids) - 1
    return logits[at : at + len(tokens)].double().softmax(-1)


@pytest.mark.parametrize("suffix", [0, 5])
def test_likeliest_tokens_and_ranks(suffix):
    model = make_model("llama")
    trace = trace_of(model, 40, suffix)
    caches = {"a": kept_of(trace, "knorm", 0.1), "b": kept_of(trace, "snapkv", 0.3)}
    found = fork(trace, caches, 5)
    whole = np.ones(caches["a"].shape, bool)
    masks = {"full": whole, **caches}
    answers = {n: a.token_ids for n, a in zip(masks, Trials(trace).write(masks.values(), 5))}
    for name, mask in masks.items():
        path, own = found.paths[name], probabilities(trace, mask, answers[name])
        assert len(path.steps) == len(answers[name])
        for step, p in zip(path.steps, own):
            assert [x for _, x in step.likeliest] == pytest.approx(p.topk(10).values.tolist(), abs=1e-5)
            assert step.token == step.likeliest[0][0]  # greedy
        forced = probabilities(trace, mask, answers["full"])
        for (share, rank), p, token in zip(path.expected, forced, answers["full"]):
            assert share == pytest.approx(float(p[token]), abs=1e-5)
            assert rank == 1 + int((p > p[token] + 1e-9).sum())
    assert all(rank == 1 for _, rank in found.paths["full"].expected)
    assert found.parts["full"] is None
    assert read_fork(json.loads(json.dumps(found.to_dict()))) == found


def test_a_branch_is_what_the_plain_model_would_write():
    model = make_model("llama")
    trace = trace_of(model, 40)
    mask = kept_of(trace, "snapkv", 0.3)
    tokens, text = branch(trace, mask, [17, 42], 4)
    assert tokens[:2] == [17, 42]
    for at in range(2, len(tokens)):
        assert int(probabilities(trace, mask, tokens)[at].argmax()) == tokens[at]
    assert text == model.tokenizer.decode(tokens, skip_special_tokens=True)
    with pytest.raises(InputError, match="Choose the token"):
        branch(trace, mask, [])
