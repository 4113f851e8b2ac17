"""The trace: what one prefill leaves behind, what it says when something is missing, how it stops."""

from __future__ import annotations

import threading

import pytest
import torch
from reference import NEEDS, attention_rows, prompt_of, trace_of, window_of

from kvviz.engine.trace import MAX_WINDOW, needs_of, prefill, prefill_steps
from kvviz.errors import Cancelled, KvvizError, NeedError
from kvviz.methods import list_methods

N = 70


def test_shapes(tiny_model):
    trace = trace_of(tiny_model, N)
    m = tiny_model
    for index in range(m.n_layers):
        assert trace.keys[index].shape == trace.values[index].shape == (m.n_kv_heads, N, m.head_dim)
        assert trace.queries[index].shape == (m.n_query_heads, N, m.head_dim)
        assert trace.keys[index].dtype == m.dtype
    assert trace.last_logits.shape == (320,)
    assert trace.last_logits.dtype == torch.float32
    assert trace.needs == set(NEEDS)
    assert all(seconds >= 0 for seconds in trace.seconds.values())
    assert set(trace.seconds) == {"prefill", *NEEDS}


def test_bytes_count_what_a_sliding_layer_still_holds(tiny_models):
    """Of 70 rows a window of 8 leaves 7 to the next token, one of 24 leaves 23: one and two blocks of 16."""
    a_row = 2 * 2 * 16 * 4  # K and V, KV heads, head size, float32
    gemma, mistral = (prefill(m, prompt_of(m, N)) for m in (tiny_models["gemma3"], tiny_models["mistral"]))
    assert gemma.bytes == (2 * 16 + 2 * 80) * a_row
    assert mistral.bytes == 3 * 32 * a_row


def test_the_agnostic_protocol_reads_the_document_alone(tiny_llama):
    alone, with_question = trace_of(tiny_llama, N), trace_of(tiny_llama, N, suffix=12)
    assert with_question.n == N
    assert torch.equal(alone.prompt.input_ids, with_question.prompt.input_ids[:N])
    for a, b in zip(alone.keys, with_question.keys):
        assert torch.equal(a, b)
    assert torch.equal(alone.last_logits, with_question.last_logits)


def test_bytes_are_the_storage_of_keys_and_values(tiny_model):
    trace = trace_of(tiny_model, N)
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*trace.keys, *trace.values)
    }
    padded = 80  # whole blocks of 16 rows
    m = tiny_model
    assert sum(storages.values()) == 2 * m.n_layers * m.n_kv_heads * padded * m.head_dim * 4
    if all(layer.window is None for layer in m.layers):
        assert trace.bytes == sum(storages.values())
    for side in trace.padded:
        assert all(not rows[:, N:].any() for rows in side)


def test_visible_rows_of_sliding_layers(tiny_model):
    """The next token, at position n, sees keys n - w < j: w - 1 rows of the prompt."""
    trace = trace_of(tiny_model, N)
    config = tiny_model.hf.config
    for index in range(tiny_model.n_layers):
        window = window_of(config, index)
        rows = N if window is None else window - 1
        assert trace.rows(index) == rows
        assert torch.equal(trace.visible(index, trace.keys[index]), trace.keys[index][:, N - rows :])
    short = trace_of(tiny_model, 5)
    assert all(short.rows(i) == 5 for i in range(tiny_model.n_layers))


@pytest.mark.parametrize("window", [1, 5, 64, 500])
def test_window_attention_is_the_plain_models(tiny_model, window):
    trace = trace_of(tiny_model, N)
    rows = min(window, N)
    family = tiny_model.id.removeprefix("tiny-")
    for index, (query, _, _, weights) in enumerate(attention_rows(family, trace.prompt.input_ids)):
        torch.testing.assert_close(trace.window(index, window), query[:, -rows:], atol=1e-5, rtol=1e-4)
        got = trace.window_attention(index, window)
        assert got.shape == (tiny_model.n_query_heads, rows, N)
        torch.testing.assert_close(got, weights[:, -rows:], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("chunk", ["16", "100", "128", "150", "2048"])
def test_a_long_prompt_keeps_its_last_128_queries(tiny_llama, chunk, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", chunk)
    n = 150
    trace = prefill(tiny_llama, prompt_of(tiny_llama, n))
    for index, (query, *_) in enumerate(attention_rows("llama", trace.prompt.input_ids)):
        assert trace.queries[index].shape[1] == MAX_WINDOW
        torch.testing.assert_close(trace.queries[index], query[:, -MAX_WINDOW:], atol=1e-5, rtol=1e-4)
    with pytest.raises(NeedError) as error:
        trace.window(0, 129)
    assert str(error.value) == (
        "An observation window of 129 needs more queries than this trace holds (128). "
        "The longest window is 128."
    )


def test_queries_of_a_chunk_do_not_hold_on_to_its_storage(tiny_llama):
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 150))
    assert all(q.untyped_storage().nbytes() == q.numel() * 4 for q in trace.queries)


def test_a_missing_need_is_named(tiny_llama):
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 20))
    with pytest.raises(NeedError) as error:
        trace.extra("column_sums", 0)
    assert str(error.value) == (
        "This trace was made without the accumulated attention of all queries. "
        "Prefill again and name the method in `methods`."
    )


def test_needs_are_the_union_of_the_methods(tiny_llama):
    for method in list_methods():
        assert needs_of([method.id]) == method.needs_with({})
    assert needs_of(["h2o", "kvzip:plus=true", "snapkv"]) == {"column_sums", "repeat"}
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 20), methods=["h2o", "expected_attention"])
    assert trace.needs == {"column_sums", "query_stats"}
    assert set(trace.extras) == {"column_sums", "query_stats"}


def test_options_within_a_name_decide_what_is_needed(tiny_llama):
    """VATP and CAOTE on accumulated attention need it, by their options."""
    for name in ("vatp:base=h2o", "caote:base=h2o"):
        assert "column_sums" in needs_of([name])
    assert "column_sums" in needs_of(["vatp"], {"vatp": {"base": "h2o"}})


def test_an_unknown_method_is_a_sentence(tiny_llama):
    with pytest.raises(KvvizError, match="There is no method 'snap'"):
        prefill(tiny_llama, prompt_of(tiny_llama, 20), methods=["snap"])


def test_progress_counts_tokens(tiny_llama, monkeypatch):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    seen = []
    prefill(tiny_llama, prompt_of(tiny_llama, N), progress=lambda *step: seen.append(step))
    assert seen == [(16, N), (32, N), (48, N), (64, N), (70, N)]


@pytest.mark.parametrize("after", range(4))
def test_a_stop_ends_the_reading_before_the_next_chunk(tiny_llama, monkeypatch, after):
    monkeypatch.setenv("KVVIZ_PREFILL_CHUNK", "16")
    cancel = threading.Event()
    steps = prefill_steps(tiny_llama, prompt_of(tiny_llama, N), frozenset(NEEDS), cancel)
    for _ in range(after):
        next(steps)
    cancel.set()
    with pytest.raises(Cancelled):
        next(steps)


def test_a_stop_within_the_repeat_pass(tiny_llama):
    cancel = threading.Event()
    with pytest.raises(Cancelled):
        prefill(tiny_llama, prompt_of(tiny_llama, N), needs=["repeat"], progress=lambda *_: cancel.set(),
                cancel=cancel)  # fmt: skip


def test_the_prompts_own_tokens_are_not_changed(tiny_llama):
    prompt = prompt_of(tiny_llama, N)
    before = prompt.input_ids.clone()
    prefill(tiny_llama, prompt, needs=NEEDS)
    assert torch.equal(prompt.input_ids, before)


def test_one_token_is_a_prompt(tiny_model):
    trace = trace_of(tiny_model, 1)
    assert trace.keys[0].shape[1] == 1
    assert trace.window_attention(0, 32).shape == (tiny_model.n_query_heads, 1, 1)
