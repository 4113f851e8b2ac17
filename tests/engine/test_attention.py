"""Attention of many queries on a prompt's rows, against softmax over the visible keys in float64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import kvviz.engine.attention
from kvviz.engine.attention import (
    attention_by_rows,
    causal_attention,
    partial,
    rows_attention,
    visible,
)
from kvviz.kernels import merge_attention

CASES = [  # query heads, KV heads, queries, keys before them, sliding window, learned sinks
    (4, 2, 33, 0, None, False),
    (3, 1, 20, 17, None, False),
    (6, 2, 30, 11, 9, False),
    (4, 4, 1, 40, None, True),
    (6, 2, 25, 6, 8, True),
]


def drawn(heads, kv_heads, t, offset, window, sinks, dtype=torch.float32):
    draw = torch.Generator().manual_seed(heads * 100 + t)
    query = torch.randn(heads, t, 16, generator=draw).to(dtype)
    keys, values = (torch.randn(kv_heads, offset + t, 16, generator=draw).to(dtype) for _ in range(2))
    logits = torch.randn(heads, generator=draw) if sinks else None
    return query, keys, values, SimpleNamespace(scaling=0.4, window=window, sinks=logits)


def defined(query, keys, values, layer, offset):
    """Weights [Hq, T, n] and outputs [Hq, T, d], one query after another."""
    group = len(query) // len(keys)
    weights = torch.zeros(len(query), query.shape[1], keys.shape[1], dtype=torch.float64)
    for head, rows in enumerate(query.double()):
        for i, row in enumerate(rows):
            last = offset + i + 1
            first = 0 if layer.window is None else max(0, last - layer.window)
            logits = keys[head // group, first:last].double() @ row * layer.scaling
            total = logits.exp().sum() + (0 if layer.sinks is None else layer.sinks[head].double().exp())
            weights[head, i, first:last] = logits.exp() / total
    return weights, weights @ values.double().repeat_interleave(group, 0)


@pytest.mark.parametrize("rows", [1, 7, 128])
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_sums_by_blocks_of_rows(case, rows, monkeypatch):
    monkeypatch.setattr(kvviz.engine.attention, "_ROWS_AT_HAND", rows)
    offset = case[3]
    query, keys, values, layer = drawn(*case)
    weights, out = defined(query, keys, values, layer, offset)
    sums = torch.ones(len(query), keys.shape[1])
    found = attention_by_rows(query, keys, values, layer, offset, sums)
    torch.testing.assert_close(found.double(), out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(sums.double(), 1 + weights.sum(1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        causal_attention(query, keys, values, layer, offset).double(), out, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        rows_attention(query, keys, layer, offset).double(), weights, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("cut", [0, 5, 40])
@pytest.mark.parametrize("case", CASES)
def test_parts_over_some_of_the_keys_make_the_whole(case, cut):
    """Also where a query sees nothing of a part."""
    t, offset = case[2:4]
    query, keys, values, layer = drawn(*case)
    hidden = ~visible(offset, offset + t, 0, offset + t, layer.window, query.device)
    parts = [
        partial(query, keys[:, side], values[:, side], layer, hidden[:, side])
        for side in (slice(0, cut), slice(cut, None))
    ]
    out, _ = merge_attention(parts, layer.sinks)
    torch.testing.assert_close(
        out.double(), defined(query, keys, values, layer, offset)[1], atol=1e-5, rtol=1e-4
    )


def test_few_weights_are_held_at_a_time(monkeypatch):
    """A long prompt is read in smaller blocks of queries, down to eight."""
    monkeypatch.setattr(kvviz.engine.attention, "_WEIGHTS_AT_HAND", 1000)
    held = []
    hide = kvviz.engine.attention.hide
    counted = lambda p, *rest: held.append(p.numel()) or hide(p, *rest)  # noqa: E731
    monkeypatch.setattr(kvviz.engine.attention, "hide", counted)
    query, keys, values, layer = drawn(2, 1, 300, 0, None, False)
    out = attention_by_rows(query, keys, values, layer, 0)
    assert max(held) <= 8 * 2 * 300
    torch.testing.assert_close(
        out.double(), defined(query, keys, values, layer, 0)[1], atol=1e-5, rtol=1e-4
    )


def test_sixteen_bit_rows_stay_sixteen_bit():
    query, keys, values, layer = drawn(4, 2, 20, 5, None, False, torch.bfloat16)
    out = attention_by_rows(query, keys, values, layer, 5)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.double(), defined(query, keys, values, layer, 5)[1], atol=0.02, rtol=0.02
    )
