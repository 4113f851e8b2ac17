"""What observers take while the prompt streams by, against definitions on the plain model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import NEEDS, attention_rows, prompt_of, trace_of, window_of
from tiny import make_hf, make_model

import kvviz.engine.attention
import kvviz.engine.observers
from kvviz.engine.observers import Repeat, watch_inputs
from kvviz.engine.run import compare
from kvviz.engine.selection import select
from kvviz.engine.trace import prefill
from kvviz.types import QUESTION_AGNOSTIC, QUESTION_AWARE

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


def test_a_thread_that_comes_while_a_layer_is_being_watched_is_not_disturbed(tiny_llama):
    """torch puts a hook up first and then notes that it takes keywords: between the two it gets none."""
    seen = []
    with watch_inputs(tiny_llama, lambda index, hidden: seen.append(index)):
        hook = list(tiny_llama.layer(0).attention._forward_pre_hooks.values())[-1]
        assert hook(tiny_llama.layer(0).attention, ()) is None
    assert not seen


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


def repeat_by_definition(model, prompt, chunk: int, plus: bool) -> list[torch.Tensor]:
    """Largest attention on each token of the document while its chunk is repeated: a softmax over what the
    layer sees of the sinks, the chunk and the repeated tokens, and its learned sink logit."""
    family, ids, n = family_of(model), prompt.input_ids, prompt.n_compressible
    best = [torch.zeros(model.n_query_heads, n) for _ in range(model.n_layers)]
    suffix = ids[prompt.question_span[1] :].tolist()
    first, last = prompt.document_span
    for start in range(first, last, chunk):
        end = min(last, start + chunk)
        text, before = "\n\nRepeat the previous context exactly.", []
        if start > first:
            text = "\n\nRepeat the part of the previous context exactly, starting with"
            before = ids[max(first, start - 8) : start].tolist()
        asked = model.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        sequence = torch.cat([ids[:n], torch.tensor([*asked, *before, *suffix]), ids[start:end]])
        hidden = captured(make_hf(family), sequence, lambda layer: layer.input_layernorm)
        for index, (q, k, *_) in enumerate(attention_rows(family, sequence)):
            layer, window = model.layer(index), window_of(model.hf.config, index)
            for t in range(n, len(sequence)):
                columns = [*range(min(4, start)), *range(start, end), *range(n, t + 1)]
                columns = [j for j in columns if window is None or j > t - window]
                inside = [i for i, j in enumerate(columns) if start <= j < end]
                tokens = [columns[i] for i in inside]
                for h in range(model.n_query_heads):
                    logits = k[h // model.group, columns] @ q[h, t] * layer.scaling
                    if layer.sinks is not None:
                        logits = torch.cat([logits, layer.sinks[h, None]])
                    p = logits.softmax(0)[inside]
                    if plus:
                        p = p / hidden[index][t].norm()
                    best[index][h, tokens] = torch.maximum(best[index][h, tokens], p)
    return best


def with_question(model, n: int, aware: bool):
    """A prompt with a head of 5 tokens, a document of 17, a question of 2 and an end of 4."""
    prompt = prompt_of(model, 28)
    protocol = QUESTION_AWARE if aware else QUESTION_AGNOSTIC
    return replace(
        prompt, n_compressible=n, protocol=protocol, document_span=(5, 22), question_span=(22, 24)
    )


@pytest.mark.parametrize("aware", [True, False], ids=["aware", "agnostic"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("chunk", [2048, 9])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_the_repeat_pass(family, chunk, aware, fused, monkeypatch):
    """Only the document is repeated, after the prompt's own end, in both protocols; sliding windows and
    learned sinks hold there as well, with torch's fused attention and without."""
    if not fused:
        monkeypatch.setattr("kvviz.engine.attention._flash", None)
    monkeypatch.setattr(Repeat, "CHUNK", chunk)
    model = make_model(family)
    prompt = with_question(model, 28 if aware else 22, aware)
    trace = prefill(model, prompt, needs=["repeat"])
    for need, plus in (("repeat", False), ("repeat_plus", True)):
        for index, wanted in enumerate(repeat_by_definition(model, prompt, chunk, plus)):
            torch.testing.assert_close(trace.extra(need, index), wanted, atol=1e-5, rtol=1e-3)


def test_what_follows_the_document_is_kept_up_to_half_the_budget(tiny_llama):
    """It is never repeated, so its score says nothing; the rest of the budget belongs to the document."""
    trace = prefill(tiny_llama, with_question(tiny_llama, 28, True), methods=["kvzip"])
    for b, after in ((24, 6), (12, 6), (8, 4), (1, 0)):
        selection = select(trace, "kvzip", b)
        assert selection.protected[..., 28 - after :].all()
        assert not selection.protected[..., 4 : 28 - after].any()
        assert any("after the document" in note for note in selection.notes) == (after < 6)
    agnostic = prefill(tiny_llama, with_question(tiny_llama, 22, False), methods=["kvzip"])
    assert not select(agnostic, "kvzip", 12).protected[..., 4:].any()


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


# -- the model's limit --------------------------------------------------------------------------------


def longrope(long_factor):
    """A Phi-3 whose angles change for every position once one lies at 64 or beyond."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": long_factor}
    return make_model("phi3", rope_parameters=rope, original_max_position_embeddings=64)


@pytest.mark.parametrize("n", [24, 40, 60])
def test_no_pass_of_our_own_asks_for_angles_past_the_models_limit(n):
    """The keys are those of the short factors, so what scores them is, too."""
    other, plain = longrope([1 + 0.8 * i for i in range(8)]), longrope([1.0] * 8)
    for method in ("kvzip", "expected_attention"):
        a, b = (select(prefill(m, prompt_of(m, n), methods=[method]), method, 0.3) for m in (other, plain))
        for ours, theirs in zip(a.scores, b.scores):
            torch.testing.assert_close(ours, theirs, equal_nan=True, atol=1e-6, rtol=1e-5)
        assert torch.equal(torch.stack(a.mask), torch.stack(b.mask))
    moved = select(prefill(plain, prompt_of(plain, n), methods=["kvzip"]), "kvzip", 0.3)
    assert any("repeated at earlier positions" in note for note in moved.notes)
    trace = prefill(plain, prompt_of(plain, n), methods=["expected_attention"])
    for n_future, said in ((512, True), (4, False)):
        notes = select(trace, "expected_attention", 0.3, n_future=n_future).notes
        assert any("up to position 64 only" in note for note in notes) == said


def test_methods_leave_no_stretched_angles_behind():
    """Dynamic angles grow with the longest position asked for and stay so."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    found = []
    for methods in (["snapkv"], ["snapkv", "kvzip"], ["snapkv", "expected_attention"]):
        model = make_model("llama", rope_parameters=rope, max_position_embeddings=64)
        c = compare(model, prompt_of(model, 63), methods, [0.5], 1, measures=("output_error",))
        found.append(c.variants[0].output_error)
    for other in found[1:]:
        torch.testing.assert_close(torch.tensor(other), torch.tensor(found[0]))
