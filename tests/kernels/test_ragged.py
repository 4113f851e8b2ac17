"""Ragged attention and merging, against dense attention over what each head kept."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import assert_close

from kvviz import kernels
from kvviz.kernels import ragged


def build(variants, kv_heads, n, head_dim, block, dtype, device, seed=0):
    """Blocks of several variants: the first keeps everything, others less, one head nothing at all."""
    generator = torch.Generator().manual_seed(seed + n)
    masks = []
    keys = torch.randn(kv_heads, n, head_dim, generator=generator).to(device, dtype)
    values = torch.randn(kv_heads, n, head_dim, generator=generator).to(device, dtype)
    for variant in range(variants):
        mask = torch.rand(kv_heads, n, generator=generator) < 0.6**variant
        if variant == 1:
            mask[0] = False
        masks.append(mask)
    return keys, values, masks, kernels.gather.gather_rows(keys, values, torch.cat(masks).to(device), block)


def dense(query, keys, values, masks, scaling, query_positions, sliding):
    """Out [V, Hq, T, d] and lse [V, Hq, T] in float64 by definition."""
    group = query.shape[1] // len(keys)
    keys, values = (t.double().cpu().repeat_interleave(group, 0) for t in (keys, values))
    visible = torch.stack(masks).repeat_interleave(group, 1)[:, :, None]  # [V, Hq, 1, n]
    visible = visible.expand(-1, -1, query.shape[2], -1)
    if sliding:
        position = torch.arange(keys.shape[1])
        visible = visible & (position > query_positions.cpu()[:, None, :, None] - sliding)
    logits = query.double().cpu() @ keys.transpose(1, 2) * scaling
    logits = logits.masked_fill(~visible, -torch.inf)
    p = logits.softmax(-1).nan_to_num(0.0)
    return p @ values, logits.logsumexp(-1)


CASES = [  # variants, Hkv, g, T, n, d, block, sliding, dtype
    (1, 1, 1, 1, 1, 64, 16, None, torch.float32),
    (3, 3, 3, 1, 100, 64, 16, None, torch.float32),
    (4, 1, 7, 1, 63, 80, 32, None, torch.float32),
    (2, 2, 16, 1, 130, 128, 64, None, torch.bfloat16),
    (3, 2, 4, 5, 100, 96, 16, None, torch.float16),
    (3, 2, 2, 3, 150, 64, 16, 40, torch.float32),
    (2, 1, 4, 20, 90, 64, 32, 30, torch.float32),
    (2, 1, 2, 1, 70, 256, 16, None, torch.float32),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)).replace("torch.", ""))
def test_ragged_attention(case, implementation, device):
    variants, kv_heads, group, steps, n, head_dim, block, sliding, dtype = case
    keys, values, masks, blocks = build(variants, kv_heads, n, head_dim, block, dtype, device)
    generator = torch.Generator().manual_seed(7)
    query = torch.randn(variants, kv_heads * group, steps, head_dim, generator=generator).to(device, dtype)
    at = torch.arange(n, n + steps, device=device) + 3 * torch.arange(variants, device=device)[:, None]
    out, lse = kernels.ragged_attention(query, *blocks, kv_heads, head_dim**-0.5, at, sliding)
    assert kernels.last_used()["ragged_attention"] == implementation
    assert out.dtype == lse.dtype == torch.float32
    expected = dense(query, keys, values, masks, head_dim**-0.5, at, sliding)
    if variants > 1:
        assert (expected[1] == -torch.inf).any(), "the case must hold a head without rows"
    assert_close(out, expected[0], "output")
    assert_close(lse, expected[1], "log-sum-exp")


@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
def test_chunks_may_straddle_owners(chunk, device):
    pytest.importorskip("triton")
    from kvviz.kernels import ragged_triton

    keys, values, masks, blocks = build(4, 2, 90, 64, 16, torch.float32, device)
    query = torch.randn(4, 4, 1, 64, generator=torch.Generator().manual_seed(3)).to(device)
    at = torch.full((4, 1), 90, device=device)
    got = ragged_triton.ragged_attention(query, *blocks, 2, 0.125, at, chunk=chunk)
    expected = dense(query, keys, values, masks, 0.125, at, None)
    assert_close(got[0], expected[0], "output")
    assert_close(got[1], expected[1], "log-sum-exp")


@pytest.mark.parametrize("sliding", [None, 35])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("large, chunk", [(1, 1 << 22), (10**9, 1 << 22), (10**9, 3000)])
def test_all_ways_of_the_twin_agree(large, chunk, left, sliding, monkeypatch):
    """One product an owner, one a block, and blocks in several chunks, in either order: the same sums."""
    monkeypatch.setattr(ragged, "queries_left", left)
    keys, values, masks, blocks = build(4, 2, 120, 64, 16, torch.float32, "cpu")
    query = torch.randn(4, 6, 2, 64, generator=torch.Generator().manual_seed(3))
    at = torch.arange(120, 122).expand(4, 2)
    monkeypatch.setattr(ragged, "LARGE_PRODUCT", large)
    monkeypatch.setattr(ragged, "CHUNK_ELEMENTS", chunk)
    got = ragged.ragged_attention(query, *blocks, 2, 0.125, at, sliding)
    expected = dense(query, keys, values, masks, 0.125, at, sliding)
    assert_close(got[0], expected[0], "output")
    assert_close(got[1], expected[1], "log-sum-exp")


def test_no_blocks_at_all(device):
    empty = torch.zeros(0, 16, 64, device=device)
    out, lse = kernels.ragged_attention(
        torch.ones(2, 4, 1, 64, device=device),
        empty,
        empty,
        torch.zeros(0, 16, dtype=torch.int32, device=device),
        torch.zeros(0, dtype=torch.int32, device=device),
        2,
        1.0,
        torch.zeros(2, 1, dtype=torch.int64, device=device),
    )
    assert not out.any() and (lse == -torch.inf).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.booleans(), st.integers(0, 9999))
def test_merging_parts_equals_the_whole(sizes, with_sinks, seed):
    generator = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    logits = 20 * torch.randn(3, 2, total, generator=generator, dtype=torch.float64)
    values = torch.randn(3, total, 8, generator=generator, dtype=torch.float64)
    sinks = torch.randn(3, generator=generator, dtype=torch.float64) if with_sinks else None
    parts, low = [], 0
    for size in sizes:
        part = logits[..., low : low + size]
        lse = part.logsumexp(-1) if size else torch.full((3, 2), -torch.inf, dtype=torch.float64)
        held = values[:, low : low + size]
        out = part.softmax(-1) @ held if size else torch.full((3, 2, 8), torch.nan, dtype=torch.float64)
        parts.append((out, lse))  # an empty part may hold anything
        low += size
    out, lse = kernels.merge_attention(parts, sinks)
    column = [] if sinks is None else [sinks[:, None, None].expand(3, 2, 1)]
    every = torch.cat([logits, *column], -1)
    if every.shape[-1] == 0:
        assert not out.any() and (lse == -torch.inf).all()
        return
    assert_close(lse, every.logsumexp(-1), "log-sum-exp", 1e-12)
    assert_close(out, every.softmax(-1)[..., :total] @ values, "output", 1e-12)
