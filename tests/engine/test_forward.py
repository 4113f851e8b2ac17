"""The prefill's forward pass: the same numbers as the plain model, and a model left as it was found."""

from __future__ import annotations

import threading

import pytest
import torch
from reference import NEEDS, masked_logits, masked_model, prompt_of, trace_of
from tiny import FAMILIES, make_hf, make_model
from torch.utils._python_dispatch import TorchDispatchMode

import kvviz.engine.forward
from kvviz.engine import products
from kvviz.engine.forward import forward
from kvviz.engine.observers import QueryStats
from kvviz.engine.trace import prefill
from kvviz.errors import Cancelled

N = 70  # longer than every sliding window of the tiny models


def snapshot(hf) -> dict:
    """Everything a careless caller could leave behind on a model."""
    modules = dict(hf.named_modules())
    return {
        "implementation": hf.config._attn_implementation,
        "config": hf.config.to_dict(),
        "attributes": {name: sorted(vars(m)) for name, m in modules.items()},
        "hooks": {
            name: [len(getattr(m, kind)) for kind in vars(m) if "hook" in kind and vars(m)[kind] is not None]
            for name, m in modules.items()
        },
        "pointers": {name: p.data_ptr() for name, p in hf.state_dict().items()},
        "weights": {name: p.double().sum().item() for name, p in hf.state_dict().items()},
        "training": {name: m.training for name, m in modules.items()},
    }


def plain_attention(index, query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )


@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss"])
def test_the_reference_attention_is_the_plain_model(family):
    ids = prompt_of(make_model(family), N).input_ids[None]
    hf = make_hf(family)
    hf.config._attn_implementation = "eager"
    with torch.no_grad():
        plain = hf(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(masked_logits(masked_model(family), ids, 0, None), plain, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_prefill_logits_keys_and_values_are_those_of_the_plain_forward(tiny_model):
    prompt = prompt_of(tiny_model, N)
    trace = prefill(tiny_model, prompt)
    plain = make_hf(tiny_model.id.removeprefix("tiny-"))(input_ids=prompt.input_ids[None], use_cache=True)
    torch.testing.assert_close(trace.last_logits, plain.logits[0, -1], atol=1e-4, rtol=1e-4)
    for index in range(tiny_model.n_layers):
        keys, values = (side[0] for side in (plain.past_key_values.layers[index].keys,
                                             plain.past_key_values.layers[index].values))  # fmt: skip
        rows = keys.shape[1]  # a sliding layer of the plain cache holds the last rows only
        torch.testing.assert_close(trace.keys[index][:, N - rows :], keys, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(trace.values[index][:, N - rows :], values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [16, 23, 69, 70])
def test_several_chunks_give_what_one_gives(tiny_model, chunk, monkeypatch):
    whole = trace_of(tiny_model, N)
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", str(chunk))
    parts = trace_of(tiny_model, N)
    torch.testing.assert_close(parts.last_logits, whole.last_logits, atol=1e-4, rtol=1e-4)
    for index in range(tiny_model.n_layers):
        for side in ("keys", "values", "queries"):
            a, b = getattr(parts, side)[index], getattr(whole, side)[index]
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_logits_to_keep_and_true_positions(tiny_llama):
    """Positions are handed on to the rotary angles: a shift of all of them changes no attention."""
    ids = prompt_of(tiny_llama, 20).input_ids[None]

    at = torch.arange(20)[None]
    whole = forward(tiny_llama, ids, at, plain_attention)
    assert whole.shape == (1, 20, 320)
    last = forward(tiny_llama, ids, at, plain_attention, logits_to_keep=2)
    torch.testing.assert_close(last, whole[:, -2:])
    shifted = forward(tiny_llama, ids, at + 500, plain_attention)
    torch.testing.assert_close(shifted, whole, atol=1e-3, rtol=1e-3)
    stretched = forward(tiny_llama, ids, at * 7, plain_attention)
    assert (stretched - whole).abs().max() > 0.01


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2"])  # without and with biases
def test_linear_layers_go_where_they_are_fastest(family, few, monkeypatch):
    """Those found faster by another product take it; the numbers are the model's own; gradients flow."""
    model = make_model(family)
    ids = prompt_of(model, 60).input_ids.repeat(1 if few else 3)
    seen = []

    def watched(rows, weight):
        seen.append((*weight.shape, rows.numel() <= products.FEW * rows.shape[-1]))
        return rows @ weight.T

    linear = next(m for m in model.hf.modules() if isinstance(m, torch.nn.Linear))
    chosen = products.Products(frozenset({(*linear.weight.shape, few)}))
    monkeypatch.setattr(kvviz.engine.forward, "project", watched)
    monkeypatch.setattr(kvviz.engine.forward, "can_use_onednn", lambda rows, weight: True)
    monkeypatch.setattr(kvviz.engine.forward, "products_of", lambda model: chosen)
    at = torch.arange(len(ids))[None]
    ours = forward(model, ids[None], at, plain_attention)
    assert set(seen) == chosen.onednn
    with torch.no_grad():
        plain = model.hf(input_ids=ids[None], use_cache=False).logits
    torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-4)
    seen.clear()
    assert not any("forward" in m.__dict__ for m in model.hf.modules())
    linear(torch.ones(2, linear.in_features))  # outside of a forward
    forward(model, ids[None], at, plain_attention, gradients=True)
    other = ids[None].repeat(1, 3) if few else ids[None, :60]
    at = torch.arange(other.shape[1])[None]
    forward(model, other, at, plain_attention)  # as many rows as were not tried
    assert seen == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_layer_is_not_multiplied_once_a_sequence(dtype):
    """The last rows of several sequences are one product: no copy of a large weight for each of them."""
    model = make_model()
    model.hf.to(dtype)
    ids = prompt_of(model, 60).input_ids
    batched = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.bmm.default:
                batched.append(tuple(args[1].shape))
            return func(*args, **(kwargs or {}))

    with Watch():
        logits = forward(model, ids.expand(3, -1), torch.arange(60).expand(3, -1), plain_attention, 1)
    assert logits.shape == (3, 1, model.hf.config.vocab_size)
    assert not [shape for shape in batched if shape[-1] == model.hf.config.vocab_size]


# Each on a model of its own: one that earlier tests have used may already have lost what is looked for.


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_left_as_found(family):
    model = make_model(family)
    before = snapshot(model.hf)
    assert before["implementation"] == "sdpa"
    prefill(model, prompt_of(model, N), needs=NEEDS)
    assert snapshot(model.hf) == before


def test_the_model_is_left_as_found_after_an_error(monkeypatch):
    model = make_model()
    before = snapshot(model.hf)

    def fails(self, index, query, keys, start):
        if index == 1:
            raise RuntimeError("no memory")

    monkeypatch.setattr(QueryStats, "see", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        prefill(model, prompt_of(model, N), needs=NEEDS)
    assert snapshot(model.hf) == before


def test_the_model_is_left_as_found_after_a_stop(monkeypatch):
    model = make_model()
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    before = snapshot(model.hf)
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        prompt = prompt_of(model, N)
        prefill(model, prompt, needs=NEEDS, progress=lambda *_: cancel.set(), cancel=cancel)
    assert snapshot(model.hf) == before


def test_two_threads_on_one_model_get_what_each_gets_alone(tiny_llama, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")  # so that their forward passes alternate
    prompts = [prompt_of(tiny_llama, N, seed=seed) for seed in (1, 2)]
    alone = [prefill(tiny_llama, prompt, needs=NEEDS) for prompt in prompts]
    together = [None, None]

    def work(i):
        for _ in range(3):
            together[i] = prefill(tiny_llama, prompts[i], needs=NEEDS)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(alone, together):
        torch.testing.assert_close(b.last_logits, a.last_logits)
        for need in ("column_sums", "hidden", "repeat"):
            for x, y in zip(a.extras[need], b.extras[need]):
                torch.testing.assert_close(y, x)


def test_the_plain_model_in_another_thread_is_not_disturbed(tiny_model):
    """While our attention is chosen, the model run by someone else still attends as itself: with its
    sliding windows, and without what its padding hides."""
    ids = prompt_of(tiny_model, 30).input_ids[None]
    padding = torch.ones_like(ids)
    padding[0, :6] = 0
    with torch.no_grad():
        wanted = [
            tiny_model.hf(input_ids=ids, attention_mask=m, use_cache=False).logits for m in (None, padding)
        ]
    inside, done = threading.Event(), threading.Event()

    def slow(index, query, key, value):
        inside.set()
        assert done.wait(20)
        return query

    thread = threading.Thread(
        target=forward, args=(tiny_model, ids[:, :4], torch.arange(4)[None], slow), daemon=True
    )
    thread.start()
    assert inside.wait(20)
    with torch.no_grad():
        got = [
            tiny_model.hf(input_ids=ids, attention_mask=m, use_cache=False).logits for m in (None, padding)
        ]
    done.set()
    thread.join()
    torch.testing.assert_close(got[0], wanted[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got[1][:, 6:], wanted[1][:, 6:], atol=1e-4, rtol=1e-4)
