"""Every method against its slow reference, on random layers and on tiny models of every family."""

import importlib

import numpy as np
import pytest
import torch
from tiny import make_model
from torch.utils._python_dispatch import TorchDispatchMode

import kvviz
from kvviz.errors import NeedError
from kvviz.methods import METHODS
from kvviz.methods import layer as base
from kvviz.methods.layer import LayerView
from methods.fixtures import GROUPS, Exact, random_layer

METHODS = [method for method in METHODS if method.artefact is None]
WINDOWS = {"window": 5}  # shorter than the random layers, so that something is left to compete
TEXT = "The keeper wrote 58213 in the ledger. The door was blue, the sea was grey and the lamp lit."

each = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.id)


def options_of(method, **changes):
    return method.resolve({k: v for k, v in {**WINDOWS, **changes}.items() if k in method.options})


def agree(scores, method, layer, options):
    """Compare what decides with the reference, to float32 precision."""
    module = importlib.import_module(f"methods.test_{method.id}")
    pairs = [(scores.values, module.reference)]
    if scores.second is not None:
        pairs.append((scores.second, module.reference_second))
    for values, reference in pairs:
        wanted = np.array(reference(Exact(layer), options))
        assert values.dtype == torch.float32
        assert values.shape == wanted.shape == (layer.n_kv_heads, layer.context)
        scale = np.abs(wanted).max() + 1e-30
        assert np.allclose(values, wanted, rtol=1e-3, atol=1e-6 * scale)
    if scores.weight is not None:
        wanted = module.reference_weight(Exact(layer), options)
        assert scores.weight == pytest.approx(wanted, rel=1e-3)


@each
@pytest.mark.parametrize("group", GROUPS)
def test_agrees_with_its_definition(method, group):
    layer = random_layer(group, seed=group)
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
@pytest.mark.parametrize("kind", ["max", "avg", "none"])
def test_agrees_under_every_pooling(method, kind):
    if "pool_kind" not in method.options and "pool" not in method.options:
        pytest.skip("does not pool")
    layer = random_layer(3, seed=11, n=19)
    options = options_of(method, pool=3, pool_kind=kind)
    agree(method.score(layer, options), method, layer, options)


@each
def test_agrees_where_attention_is_sharp(method):
    layer = random_layer(3, seed=5, spread=5.0)
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
@pytest.mark.parametrize("kind", [{}, {"sinks": True}, {"n": 23, "sliding": 12}, {"spread": 5.0}], ids=str)
def test_agrees_when_too_long_to_hold_the_window(method, kind, monkeypatch):
    monkeypatch.setattr(base, "HELD_WHOLE", 0)
    layer = random_layer(3, seed=8, **kind)
    monkeypatch.setattr(layer.trace, "window_attention", only_the_last_row(layer.trace.window_attention))
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


def only_the_last_row(window_attention):
    def guarded(index, window):
        assert window == 1, "asked for the attention of the whole window"
        return window_attention(index, window)

    return guarded


@each
def test_agrees_in_a_sliding_layer(method):
    layer = random_layer(3, seed=6, n=23, sliding=12)
    assert (layer.n, layer.first_position) == (11, 12)
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
def test_agrees_with_learned_sink_logits(method):
    layer = random_layer(3, seed=7, sinks=True)
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
@pytest.mark.parametrize("context", [1, 2])
def test_agrees_with_hardly_anything_to_choose_from(method, context):
    layer = random_layer(3, n=7)
    layer.context = context
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
def test_nothing_to_choose_from(method):
    layer = random_layer(3, n=5)
    layer.context = 0
    assert method.score(layer, options_of(method)).values.shape == (2, 0)


@each
def test_half_precision_caches_are_scored_in_float32(method):
    layer = random_layer(3, dtype=torch.bfloat16)
    options = options_of(method)
    agree(method.score(layer, options), method, layer, options)


@each
def test_scoring_changes_no_input(method):
    layer = random_layer(3)
    trace = layer.trace
    before = [t[0].clone() for t in (trace.keys, trace.values, trace.queries)]
    attention = layer.attention(5).clone()
    method.score(layer, options_of(method))
    after = [t[0] for t in (trace.keys, trace.values, trace.queries)]
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert torch.equal(layer.attention(5), attention)


@each
def test_order_of_heads(method):
    """Query heads of a group may change places; KV heads take their scores with them."""
    if method.id == "random":
        pytest.skip("its pattern belongs to the place, not to the head")

    def scored(order):
        layer = random_layer(3, hkv=2, seed=9)
        trace = layer.trace
        kv = [h // 3 for h in order[::3]]
        trace.queries[0] = trace.queries[0][order]
        trace.model.layer(0).w_o = layer.w_o[order]
        trace.keys[0], trace.values[0] = trace.keys[0][kv], trace.values[0][kv]
        for name in ("column_sums", "repeat", "repeat_plus"):
            trace._extras[name] = trace._extras[name][order]
        stats = trace._extras["query_stats"]
        trace._extras["query_stats"] = {key: value[order] for key, value in stats.items()}
        view = LayerView(trace, 0, layer.context, {})
        return method.score(view, options_of(method)).values

    plain = scored([0, 1, 2, 3, 4, 5])
    assert torch.allclose(scored([2, 0, 1, 3, 5, 4]), plain, rtol=1e-4, atol=1e-6)
    assert torch.allclose(scored([3, 4, 5, 0, 1, 2]), plain[[1, 0]], rtol=1e-4, atol=1e-6)


class Largest(TorchDispatchMode):
    """The most numbers that any newly allocated tensor holds."""

    def __init__(self, known):
        super().__init__()
        self.known, self.numbers = {t.untyped_storage().data_ptr() for t in known}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            new = torch.is_tensor(tensor) and tensor.untyped_storage().data_ptr() not in self.known
            if new:
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // 4)
        return out


@each
def test_no_second_tensor_of_the_size_of_the_window_attention(method):
    layer = random_layer(3, hkv=2, n=200, d=4, window=40)
    options = options_of(method, window=40)
    attention = layer._attention_on_all(40)
    known = [attention, layer._attention_on_all(1), *layer.trace.keys, *layer.trace.values]
    known += layer.trace.queries
    with Largest(known) as largest:
        method.score(layer, options)
    # One head's share at a time at most, of [Hq, W, n] with 6 * 40 * 200 numbers.
    assert largest.numbers <= attention.numel() // 6


@pytest.fixture(scope="module")
def traces():
    """One trace a family, with all that any method needs."""
    made = {}

    def get(family):
        if family not in made:
            model = make_model(family)
            prompt = kvviz.build_prompt(model, document=TEXT, question="Which code?")
            ids = [method.id for method in METHODS]
            made[family] = kvviz.prefill(model, prompt, methods=ids)
            assert made[family].n <= 128  # so that every query is at hand for the references
        return made[family]

    return get


@each
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "gpt_oss"])
def test_agrees_on_tiny_models(method, family, traces):
    trace = traces(family)
    options = options_of(method)
    for index in range(trace.model.n_layers):
        rows = trace.rows(index)
        layer = LayerView(trace, index, rows - 5, {})
        agree(method.score(layer, options), method, layer, options)


@each
def test_whole_budget_keeps_everything(method, traces):
    trace = traces("llama")
    assert all(mask.all() for mask in kvviz.select(trace, method.id, budget=1.0).mask)


@each
@pytest.mark.parametrize("budget", [1, 2, 7, 0.1, 0.5])
def test_counts_are_exact(method, budget, traces):
    trace = traces("qwen2")
    selection = kvviz.select(trace, method.id, budget=budget)
    kept = sum(int(mask.sum()) for mask in selection.mask)
    assert kept == trace.model.n_layers * trace.model.n_kv_heads * selection.entries


def test_stage_one_alone_is_the_base(traces):
    for method, plain_method in (("criticalkv", "snapkv"), ("critical_adakv", "adakv")):
        first = kvviz.select(traces("llama"), method, budget=0.3, stage1=1.0)
        plain = kvviz.select(traces("llama"), plain_method, budget=0.3)
        assert all(torch.equal(a, b) for a, b in zip(first.mask, plain.mask))


@each
def test_missing_need_is_an_error(method):
    if not method.needs:
        pytest.skip("needs nothing but keys, values and the last queries")
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, document=TEXT, question="Which code?")
    with pytest.raises(NeedError, match="Prefill again"):
        kvviz.select(kvviz.prefill(model, prompt), method.id, budget=0.5)
