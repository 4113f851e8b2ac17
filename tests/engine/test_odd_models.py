"""Models and settings that eviction code of other projects stumbled over: angles that switch, head counts,
scaled angles, ties, options at their ends. What they owe to people: docs/CASES.md."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from reference import attention_rows, masks_of, prompt_of, trace_of
from tiny import make_model

from kvviz.engine.run import compare
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill
from kvviz.errors import InputError, NeedError
from kvviz.figures import FIGURES
from kvviz.methods import list_methods
from kvviz.options import NUMBER, WHOLE
from kvviz.results.verdict import judge

LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8, "original_max_position_embeddings": 64}  # fmt: skip
SWITCHING = {
    "longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64,
                          "max_position_embeddings": 256}),
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
                          "max_position_embeddings": 64}),
}  # fmt: skip


def generated(model, prompt, new):
    ids = prompt.input_ids[None]
    made = model.hf.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
    return made[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("kind", SWITCHING)
def test_an_answer_never_crosses_the_length_at_which_angles_switch(kind):
    family, changes = SWITCHING[kind]
    model = make_model(family, **changes)
    for n, new in ((60, 20), (63, 2)):
        with pytest.raises(InputError, match="Ask for fewer new tokens or shorten"):
            compare(model, prompt_of(model, n), ["snapkv"], [0.3], new)
    for n, new in ((44, 20), (63, 1)):
        prompt = prompt_of(model, n)
        result = compare(model, prompt, ["snapkv", "streaming_llm"], [1.0, 0.3], new)
        assert result.full.token_ids == result.variants[0].token_ids == generated(model, prompt, new)


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(12, 12), (8, 2), (14, 2), (8, 1)])
def test_every_ratio_of_heads_is_the_plain_model(query_heads, kv_heads):
    model = make_model(
        num_attention_heads=query_heads, num_key_value_heads=kv_heads, head_dim=8, hidden_size=8 * query_heads
    )
    prompt = prompt_of(model, 40)
    result = compare(model, prompt, ["snapkv", "adakv", "criticalkv"], [1.0, 0.5], 6)
    assert result.full.token_ids == result.variants[0].token_ids == generated(model, prompt, 6)
    half = result.variants[1]
    assert half.selection.budgets.shape == (3, kv_heads)  # kept by KV head, never by query head
    assert half.output_error.shape == (3, query_heads)
    rows = 48  # 40 in blocks of 16
    assert result.bytes_full == 3 * 2 * kv_heads * rows * 8 * 4  # layers, keys and values, heads, floats


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "phi3"])
def test_attention_of_a_long_prompt_is_the_models_own_on_every_kind_of_layer(family):
    """What acts on some layers alone (scaled angles, learned sinks) hardly shows below 200 tokens."""
    changes = {}
    if family == "gemma3":
        full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
        changes = {
            "rope_parameters": {
                "full_attention": full,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        }
    model = make_model(family, **changes)
    if family == "gpt_oss":
        for layer in model.layers:
            layer.sinks.data.fill_(3.0)
    prompt = prompt_of(model, 1000)
    trace = prefill(model, prompt, ["snapkv"])
    eager, seen = model.hf, []
    was = eager.config._attn_implementation
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        out = eager(prompt.input_ids[None], output_attentions=True)
    eager.set_attn_implementation(was)
    for index in range(model.n_layers):
        weights = out.attentions[index][0, :, -8:]
        got = trace.window_attention(index, 8)
        torch.testing.assert_close(got, weights[..., : got.shape[-1]], atol=1e-5, rtol=1e-3)
        seen.append(float(got.sum(-1).min()))
    assert (min(seen) > 0.99) == (family != "gpt_oss")  # its sinks take their share of every row


def test_equal_scores_keep_equal_sets_of_the_exact_size(tiny_llama):
    prompt = prompt_of(tiny_llama, 200)
    same = dataclasses.replace(prompt, input_ids=torch.full_like(prompt.input_ids, 77))
    once, again = (prefill(tiny_llama, same, ["knorm", "h2o", "snapkv"]) for _ in range(2))
    for method in ("knorm", "h2o", "snapkv"):
        first, second = select(once, method, 0.1), select(again, method, 0.1)
        assert first.budgets.sum() == 3 * 2 * 20
        for one, other in zip(masks_of([first]), masks_of([second])):
            assert torch.equal(one, other)


def ends_of(spec):
    """The method's options one by one, each at either end of what it may be."""
    for row in spec.rows:
        ends = [row.low, row.high] if row.kind in (WHOLE, NUMBER) else list(row.choices)
        for end in ends:
            yield {row.name: int(end) if row.kind == WHOLE else end}


def test_a_whole_budget_keeps_everything_whatever_the_options(tiny_llama):
    methods = [spec for spec in list_methods() if not spec.artefact]
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 24), [spec.id for spec in methods])
    tried = 0
    for spec in methods:
        for given in ends_of(spec):
            try:
                whole, few = (select(trace, spec.id, budget, **given) for budget in (1.0, 6))
            except (InputError, NeedError) as error:
                assert str(error).endswith("."), given
                continue
            tried += 1
            assert whole.budgets.tolist() == [[24, 24]] * 3, (spec.id, given)
            assert 0 < few.budgets.sum() <= 3 * 2 * 6, (spec.id, given)
    assert tried > 60


def test_no_sinks_keeps_none(tiny_llama):
    trace = trace_of(tiny_llama, 50)
    (without, *_), (with_four, *_) = (
        masks_of([select(trace, f"streaming_llm:sinks={sinks}", 10)]) for sinks in (0, 4)
    )
    assert not without[..., :40].any() and without[..., 40:].all()
    assert with_four[..., :4].all() and not with_four[..., 4:44].any()


def test_an_adaptive_method_differs_from_its_base(tiny_llama):
    trace = prefill(
        tiny_llama, prompt_of(tiny_llama, 120), ["snapkv", "adakv", "criticalkv", "critical_adakv"]
    )
    for base, adaptive in (("snapkv", "adakv"), ("criticalkv", "critical_adakv")):
        for budget in (0.5, 0.2, 0.1):
            one, other = select(trace, base, budget), select(trace, adaptive, budget)
            assert one.budgets.sum() == other.budgets.sum()
            assert not all(torch.equal(a, b) for a, b in zip(masks_of([one]), masks_of([other])))
            assert other.budgets.min() > 0


def test_an_answer_that_ends_at_once_is_said_and_divides_by_nothing(tiny_llama):
    prompt = prompt_of(tiny_llama, 40)
    first = compare(tiny_llama, prompt, ["snapkv"], [0.5], 1).full.token_ids[0]
    stops = dataclasses.replace(tiny_llama, stop_ids=frozenset({first}))
    result = compare(stops, prompt, ["snapkv"], [0.5, 1], 8, expected="58213", lenses=True)
    assert result.full.finished == "stop token" and result.full.token_ids == [first]
    assert judge(result.full, "58213") == "wrong"
    assert all(np.isfinite(value) for value in result.seconds.values())
    json.loads(result.to_json(), parse_constant=lambda name: pytest.fail(f"{name} in the file"))


def test_a_half_precision_run_is_drawn_and_exported(tiny_llama):
    from kvviz import exports

    half = make_model()
    half.hf.to(torch.bfloat16)
    half = dataclasses.replace(half, info=dataclasses.replace(half.info, dtype="bfloat16"))
    result = compare(half, prompt_of(half, 60), ["snapkv", "criticalkv"], [0.5, 0.2], 6, lenses=True)
    assert FIGURES and result.to_json()
    assert exports.masks_npz(result) and exports.report_html(result, "")


def test_attention_asked_of_a_model_is_recomputed(tiny_model):
    """Fused attention returns no weights: they are computed from queries and keys, and equal eager's."""
    trace = trace_of(tiny_model, 30)
    family = tiny_model.id.removeprefix("tiny-")
    for index, (_, _, _, weights) in enumerate(attention_rows(family, trace.prompt.input_ids)):
        got = trace.window_attention(index, 4)
        torch.testing.assert_close(got, weights[:, -4:], atol=1e-5, rtol=1e-3)
