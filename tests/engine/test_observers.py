"""What observers take while the prompt streams by, against definitions on the plain model."""

from __future__ import annotations

import pytest
import torch
from reference import NEEDS, attention_rows, prompt_of, trace_of, window_of
from tiny import make_hf

import kvviz.engine.attention
import kvviz.engine.observers
from kvviz.engine.observers import Repeat
from kvviz.engine.trace import prefill

N = 60


def family_of(model) -> str:
    return model.id.removeprefix("tiny-")


@torch.no_grad()
def captured(hf, ids: torch.Tensor, module_of) -> list[torch.Tensor]:
    """What module_of(layer) gives out for every layer, [N, ...]."""
    out = []
    handles = [
        module_of(layer).register_forward_hook(lambda m, args, result: out.append(result[0].clone()))
        for layer in hf.model.layers
    ]
    hf(input_ids=ids[None], use_cache=False)
    for handle in handles:
        handle.remove()
    return out


def test_column_sums(tiny_model):
    trace = trace_of(tiny_model, N)
    for index, (*_, weights) in enumerate(attention_rows(family_of(tiny_model), trace.prompt.input_ids)):
        torch.testing.assert_close(trace.extra("column_sums", index), weights.sum(1), atol=1e-4, rtol=1e-4)


def test_column_sums_in_blocks_of_rows(tiny_model, monkeypatch):
    monkeypatch.setattr(kvviz.engine.observers, "_BLOCK", 7)
    monkeypatch.setattr(kvviz.engine.attention, "_ROWS_AT_HAND", 7)
    blocks = trace_of(tiny_model, N)
    monkeypatch.undo()
    whole = trace_of(tiny_model, N)
    for need in ("column_sums", "repeat"):
        for a, b in zip(blocks.extras[need], whole.extras[need]):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_query_statistics_are_those_before_rope(tiny_model):
    """Mean and covariance of q_proj's output (after q_norm where there is one) at positions >= 4."""
    trace = trace_of(tiny_model, N)
    hf = make_hf(family_of(tiny_model))
    m = tiny_model

    def last_before_rope(layer):
        attention = layer.self_attn
        for name in ("q_norm", "q_proj", "qkv_proj"):
            if hasattr(attention, name):
                return getattr(attention, name)
        raise AssertionError("no query projection")

    for index, rows in enumerate(captured(hf, trace.prompt.input_ids, last_before_rope)):
        if rows.dim() == 2:  # [N, heads * d], phi3's with keys and values behind the queries
            rows = rows[:, : m.n_query_heads * m.head_dim].view(N, m.n_query_heads, m.head_dim)
        elif rows.shape[0] == m.n_query_heads:
            rows = rows.transpose(0, 1)
        rows = rows[4:].double()
        mean = rows.mean(0)
        centred = rows - mean
        cov = torch.einsum("nhi,nhj->hij", centred, centred) / len(rows)
        stats = trace.extra("query_stats", index)
        torch.testing.assert_close(stats["mean"].double(), mean, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(stats["cov"].double(), cov, atol=1e-3, rtol=1e-3)


def test_query_statistics_of_a_prompt_without_later_queries(tiny_llama):
    stats = trace_of(tiny_llama, 3).extra("query_stats", 0)
    assert not stats["mean"].any()
    assert not stats["cov"].any()


def test_hidden_states_are_what_enters_attention(tiny_model):
    trace = trace_of(tiny_model, N)
    hf = make_hf(family_of(tiny_model))
    for index, rows in enumerate(captured(hf, trace.prompt.input_ids, lambda layer: layer.input_layernorm)):
        torch.testing.assert_close(trace.extra("hidden", index), rows, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", ["16", "23", "59"])
def test_chunks_do_not_matter(tiny_model, chunk, monkeypatch):
    whole = trace_of(tiny_model, N)
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", chunk)
    parts = trace_of(tiny_model, N)
    for need in ("column_sums", "hidden", "repeat", "repeat_plus"):
        for a, b in zip(parts.extras[need], whole.extras[need]):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    for a, b in zip(parts.extras["query_stats"], whole.extras["query_stats"]):
        torch.testing.assert_close(a["mean"], b["mean"], atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(a["cov"], b["cov"], atol=1e-3, rtol=1e-3)


def repeat_by_definition(model, ids: torch.Tensor, chunk: int, plus: bool) -> list[torch.Tensor]:
    """Largest attention on each token while its chunk is repeated: sinks, chunk and repeat prompt only."""
    family, n = family_of(model), len(ids)
    best = [torch.zeros(model.n_query_heads, n) for _ in range(model.n_layers)]
    for start in range(0, n, chunk):
        end = min(n, start + chunk)
        text = "\n\nRepeat the previous context exactly."
        if start:
            tail = model.tokenizer.decode(ids[max(0, start - 8) : start])
            text = f"\n\nRepeat the part of the previous context exactly, starting with{tail}"
        asked = model.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        sequence = torch.cat([ids, torch.tensor(asked), ids[start:end]])
        hidden = captured(make_hf(family), sequence, lambda layer: layer.input_layernorm)
        for index, (q, k, *_) in enumerate(attention_rows(family, sequence)):
            scaling = model.layer(index).scaling
            sinks = list(range(min(4, start)))
            for t in range(n, len(sequence)):
                columns = sinks + list(range(start, end)) + list(range(n, t + 1))
                for h in range(model.n_query_heads):
                    logits = k[h // model.group, columns] @ q[h, t] * scaling
                    p = logits.softmax(0)[len(sinks) : len(sinks) + end - start]
                    if plus:
                        p = p / hidden[index][t].norm()
                    best[index][h, start:end] = torch.maximum(best[index][h, start:end], p)
    return best


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [2048, 13])
def test_the_repeat_pass(tiny_models, family, chunk, monkeypatch):
    monkeypatch.setattr(Repeat, "CHUNK", chunk)
    model, n = tiny_models[family], 26
    ids = prompt_of(model, n).input_ids
    trace = prefill(model, prompt_of(model, n), needs=["repeat"])
    for need, plus in (("repeat", False), ("repeat_plus", True)):
        for index, wanted in enumerate(repeat_by_definition(model, ids, chunk, plus)):
            torch.testing.assert_close(trace.extra(need, index), wanted, atol=1e-5, rtol=1e-3)


def test_the_repeat_pass_leaves_the_trace_as_it_was(tiny_model):
    prompt = prompt_of(tiny_model, N)
    plain, repeated = prefill(tiny_model, prompt), prefill(tiny_model, prompt, needs=["repeat"])
    for a, b in zip(plain.keys, repeated.keys):
        assert torch.equal(a, b)
    assert torch.equal(plain.last_logits, repeated.last_logits)


def test_column_sums_change_what_is_read_by_rounding_alone(tiny_model):
    """With them the prefill attends in another order of operations."""
    prompt = prompt_of(tiny_model, N)
    plain, summed = prefill(tiny_model, prompt), prefill(tiny_model, prompt, needs=["column_sums"])
    for side in ("keys", "values", "queries"):
        for a, b in zip(getattr(plain, side), getattr(summed, side)):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(plain.last_logits, summed.last_logits, atol=1e-4, rtol=1e-4)


def test_observers_do_not_change_what_is_read(tiny_model):
    alone = {need: prefill(tiny_model, prompt_of(tiny_model, N), needs=[need]) for need in NEEDS}
    together = trace_of(tiny_model, N)
    for need, trace in alone.items():
        for a, b in zip(trace.extras[need], together.extras[need]):
            if need == "query_stats":
                a, b = a["mean"], b["mean"]
            torch.testing.assert_close(a, b)


def test_sliding_layers_give_nothing_to_what_they_cannot_see(tiny_models):
    """A token's accumulated attention in a sliding layer comes from the next w queries alone."""
    model = tiny_models["gemma3"]
    trace = trace_of(model, N)
    window = window_of(model.hf.config, 0)
    sums = trace.extra("column_sums", 0)
    *_, weights = attention_rows("gemma3", trace.prompt.input_ids)[0]
    for j in range(N):
        wanted = weights[:, j : j + window, j].sum(1)
        torch.testing.assert_close(sums[:, j], wanted, atol=1e-5, rtol=1e-3)
