"""Window pass: twin and kernel against the definition in float64."""

from __future__ import annotations

import importlib

import pytest
import torch
from plain import Case, assert_close, attention, make

from kvviz import kernels

CASES = [
    Case(1, 1, 1, 1, 64),
    Case(3, 1, 5, 63, 80),
    Case(4, 1, 32, 100, 64, strong=12),
    Case(7, 1, 1, 1000, 96),
    Case(16, 1, 2, 70, 128, sinks=True),
    Case(4, 2, 20, 130, 64, sliding=40, sinks=True),
    Case(2, 1, 3, 90, 256),
    Case(2, 2, 64, 64, 64),
    Case(4, 2, 8, 100, 64, dtype=torch.float16, strided=True),
    Case(4, 2, 8, 100, 128, dtype=torch.bfloat16, strong=8),
    Case(2, 1, 4, 300, 64, sliding=20),  # whole tiles have left the sliding window
    Case(2, 1, 4, 200, 64, start=10),  # whole tiles lie in the future
    Case(3, 3, 6, 40, 80, start=45, sliding=8),  # the last rows see nothing
    Case(3, 3, 6, 40, 80, start=45, sliding=8, sinks=True),  # ... but the sink
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_window_pass(case, implementation, device):
    x = make(case, device)
    _, out, lse = attention(x)
    got = kernels.window_pass(x.query, x.keys, x.values, x.scaling, x.start, x.sliding, x.sinks)
    assert kernels.last_used()["window_pass"] == implementation
    assert all(t.dtype == torch.float32 for t in got)
    assert_close(got[0], lse, "log-sum-exp")
    assert_close(got[1], out, "output")


@pytest.mark.parametrize("splits", [1, 2, 5, 16])
def test_any_number_of_splits(splits, device):
    pytest.importorskip("triton")
    kernel = importlib.import_module("kvviz.kernels.window_triton")
    x = make(Case(4, 2, 3, 600, 64, sinks=True), device)
    _, out, lse = attention(x)
    got = kernel.window_pass(x.query, x.keys, x.values, x.scaling, x.start, None, x.sinks, splits=splits)
    assert_close(got[0], lse, "log-sum-exp")
    assert_close(got[1], out, "output")


@pytest.mark.parametrize("name", ["window", "window_triton"])
def test_excluded_keys_are_left_out(name, device):
    """A row that leaves out a key equals the same row over the other keys; -1 leaves out nothing."""
    if name == "window_triton":
        pytest.importorskip("triton")
    module = importlib.import_module(f"kvviz.kernels.{name}")
    x = make(Case(2, 1, 2, 90, 64), device)
    exclude = torch.full((2, 2), -1, dtype=torch.int32, device=device)
    exclude[1, 1] = 17
    lse, out = module.window_pass(x.query, x.keys, x.values, x.scaling, x.start, exclude=exclude)
    p, _, whole = attention(x)
    p[1, 1, 17] = 0
    rest = p[1, 1].sum()
    assert_close(lse[1, 1], whole[1, 1] + rest.log(), "log-sum-exp without the key")
    assert_close(out[1, 1], p[1, 1] / rest @ x.values[0].double().cpu(), "output without the key")
    if name == "window":
        assert_close(lse[0], whole[0], "rows that leave out nothing")


def test_blocks_of_keys_do_not_change_the_twin(monkeypatch, device):
    from kvviz.kernels import window

    x = make(Case(4, 2, 9, 500, 64, strong=6), device)
    whole = window.window_pass(x.query, x.keys, x.values, x.scaling, x.start)
    monkeypatch.setattr(window, "BLOCK_ELEMENTS", 1)
    assert len(window.key_blocks(500, 36, 0)) > 3
    for got, expected in zip(window.window_pass(x.query, x.keys, x.values, x.scaling, x.start), whole):
        assert_close(got, expected, "blocked twin", 1e-6)
