"""Offsets beyond 32 bits and prompts of 131,071 tokens."""

from __future__ import annotations

import pytest
import torch
from plain import Inputs, assert_close, attention, scores

from kvviz import kernels

ROWS, STRIDE = 80, 1 << 25  # 80 rows, 64 MB apart: the last begin beyond 2^31 elements


@pytest.fixture
def far_apart(tmp_path, device):
    """Makes [1, 80, 64] float16 tensors whose rows lie far apart, in a file that is nearly all hole."""
    if device != "cpu":
        pytest.skip("the rows live in a mapped file, which a GPU cannot read")

    def make(name: str, generator: torch.Generator) -> torch.Tensor:
        size = ROWS * STRIDE
        store = torch.from_file(str(tmp_path / name), shared=True, size=size, dtype=torch.float16)
        rows = store.as_strided((1, ROWS, 64), (size, STRIDE, 1))
        rows.copy_(torch.randn(1, ROWS, 64, generator=generator))
        return rows

    return make


def test_rows_beyond_32_bit_offsets(far_apart, implementation):
    assert (ROWS - 1) * STRIDE > 2**31
    generator = torch.Generator().manual_seed(5)
    keys, values = far_apart("keys", generator), far_apart("values", generator)
    query = torch.randn(2, 3, 64, generator=generator).half()
    x = Inputs(query, keys, values, None, 0.125, ROWS - 3, None)
    lse, out = kernels.window_pass(query, keys, values, 0.125, x.start)
    _, expected, expected_lse = attention(x)
    assert_close(lse, expected_lse, "log-sum-exp")
    assert_close(out, expected, "output")
    got = kernels.score_pass(query, keys, values, lse, out, 0.125, x.start, "dropkv")
    assert_close(got, scores(x, "dropkv"), "scores")
    w_o = torch.randn(2, 64, 40, generator=generator).half()
    projected = values.double().repeat_interleave(2, 0) @ w_o.double()
    assert_close(kernels.value_norms(values, w_o), projected.abs().sum(-1), "norms")
    mask = torch.arange(ROWS)[None] % 3 == 1
    kept, _, _, _ = kernels.gather_rows(keys, values, mask, 128)
    assert torch.equal(kept[0, : int(mask.sum())], keys[0, mask[0]])
    ran = kernels.last_used()
    assert {ran[o] for o in ("window_pass", "score_pass", "value_norms", "gather_rows")} == {implementation}


@pytest.mark.slow
def test_longest_prompt(implementation, device):
    n = 131_071
    generator = torch.Generator().manual_seed(n)
    query, keys, values = (torch.randn(1, r, 64, generator=generator).to(device) for r in (1, n, n))
    keys[0, n // 2] = query[0, 0] * 3  # one key holds nearly everything
    logits = (keys[0].double() @ query[0, 0].double()).cpu() * 0.125
    p = logits.softmax(0)
    lse, out = kernels.window_pass(query, keys, values, 0.125, n - 1)
    assert_close(lse, logits.logsumexp(0)[None, None], "log-sum-exp")
    assert_close(out, (p @ values[0].double().cpu())[None, None], "output")
    mean = kernels.score_pass(query, keys, values, lse, out, 0.125, n - 1, "mean")
    assert kernels.last_used()["score_pass"] == implementation
    assert_close(mean, p[None], "mean attention")
