"""Projected value norms against the definition."""

from __future__ import annotations

import pytest
import torch
from plain import assert_close

from kvviz import kernels
from kvviz.errors import KvvizError
from kvviz.kernels import norms, product

SHAPES = [
    (1, 1, 1, 64, 40),
    (3, 1, 63, 80, 100),
    (7, 1, 100, 96, 64),
    (4, 2, 130, 128, 77),
    (2, 2, 50, 256, 65),
]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_norms(shape, dtype, order, implementation, device):
    query_heads, kv_heads, n, head_dim, hidden = shape
    generator = torch.Generator().manual_seed(n)
    values = torch.randn(n, kv_heads, head_dim, generator=generator).to(device, dtype).transpose(0, 1)
    # As cut out of o_proj.weight [D, Hq * d]: strided, and small as weights are.
    weight = torch.randn(hidden, query_heads * head_dim, generator=generator).to(device, dtype) * 0.02
    w_o = weight.T.view(query_heads, head_dim, hidden)
    projected = values.double().cpu().repeat_interleave(query_heads // kv_heads, 0) @ w_o.double().cpu()
    got = kernels.value_norms(values, w_o, order)
    assert kernels.last_used()["value_norms"] == implementation
    assert got.dtype == torch.float32
    assert_close(got, projected.norm(order, dim=-1), f"order {order}", 1e-5)


def test_zero_values_have_zero_norm(implementation, device):
    values = torch.zeros(1, 5, 64, device=device)
    w_o = torch.randn(2, 64, 30, generator=torch.Generator().manual_seed(0)).to(device)
    for order in (1, 2):
        assert torch.equal(kernels.value_norms(values, w_o, order), torch.zeros(2, 5, device=device))


def test_blocks_of_tokens_join_without_a_gap(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    values, w_o = torch.randn(2, 37, 64, generator=generator), torch.randn(4, 64, 50, generator=generator)
    monkeypatch.setattr(norms, "PROJECTED", 8 * 50)
    expected = (values.repeat_interleave(2, 0).double() @ w_o.double()).abs().sum(-1)
    assert_close(norms.value_norms(values, w_o), expected, "blocked twin", 1e-6)


def test_without_the_fast_cpu_product(monkeypatch):
    generator = torch.Generator().manual_seed(2)
    values, w_o = torch.randn(1, 20, 64, generator=generator), torch.randn(3, 64, 50, generator=generator)
    expected = (values.double() @ w_o.double()).abs().sum(-1)
    monkeypatch.setattr(product, "_onednn", None)
    assert_close(norms.value_norms(values, w_o), expected, "plain product", 1e-6)


def test_other_orders_are_refused():
    with pytest.raises(KvvizError, match="order is 3; it can be 1 or 2"):
        kernels.value_norms(torch.ones(1, 2, 64), torch.ones(1, 64, 8), 3)
