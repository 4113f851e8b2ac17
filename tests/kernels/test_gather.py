"""Compaction: every kept row is in a block once, at its place, and nothing else is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvviz.kernels.gather import block_layout

from kvviz import kernels


def check(keys, values, mask, block):
    """Compare with a plain walk over heads and kept positions."""
    kept_keys, kept_values, positions, owner = kernels.gather_rows(keys, values, mask, block)
    assert (positions.dtype, owner.dtype) == (torch.int32, torch.int32)
    index = 0
    for owned in range(len(mask)):
        kept, kv_head = mask[owned].nonzero()[:, 0].tolist(), owned % len(keys)
        for low in range(0, len(kept), block):
            rows = kept[low : low + block]
            assert owner[index] == owned
            assert positions[index].tolist() == rows + [-1] * (block - len(rows))
            for source, target in ((keys, kept_keys), (values, kept_values)):
                assert torch.equal(target[index, : len(rows)], source[kv_head, rows])
                assert not target[index, len(rows) :].any()
            index += 1
    assert len(kept_keys) == len(kept_values) == len(owner) == index


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n, head_dim, block", [(1, 64, 16), (63, 80, 16), (100, 128, 32), (300, 96, 128)])
def test_gather_rows(n, head_dim, block, dtype, implementation, device):
    generator = torch.Generator().manual_seed(n)
    keys = torch.randn(n, 3, head_dim, generator=generator).to(device, dtype).transpose(0, 1)
    values = torch.randn(3, n, head_dim, generator=generator).to(device, dtype)
    share = torch.tensor([0.7, 0.0, 1.0, 0.4, 0.9, 0.0])[:, None]  # two variants of three KV heads
    mask = (torch.rand(6, n, generator=generator) < share).to(device)
    check(keys, values, mask, block)
    assert kernels.last_used()["gather_rows"] == implementation


def test_nothing_kept_gives_no_blocks(implementation, device):
    keys = torch.randn(2, 10, 64, device=device)
    kept, _, positions, head = kernels.gather_rows(
        keys, keys, torch.zeros(2, 10, dtype=torch.bool, device=device)
    )
    assert kept.shape == (0, 128, 64) and positions.shape == (0, 128) and head.shape == (0,)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 20), st.floats(0, 1), st.integers(0, 9999))
def test_layout_holds_for_any_mask(heads, n, block, share, seed):
    mask = torch.rand(heads, n, generator=torch.Generator().manual_seed(seed)) < share
    positions, head = block_layout(mask, block)
    found = torch.zeros_like(mask)
    for index, row in zip(head.tolist(), positions.tolist()):
        held = [p for p in row if p >= 0]
        assert held and row[len(held) :] == [-1] * (block - len(held))
        assert not found[index, held].any()
        found[index, held] = True
    assert torch.equal(found, mask)
    assert head.tolist() == sorted(head.tolist())
