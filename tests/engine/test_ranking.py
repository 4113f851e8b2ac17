"""The order of entries, against a plain stable sort."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvviz.engine.ranking import rank

VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 1e-45, -1e-45, 1e-38]),
    st.floats(width=32, allow_nan=False),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(VALUES, st.booleans()), max_size=40))
def test_score_descending_then_earlier_position(entries):
    """Python's sort is stable, and compares 0.0 and -0.0 as equal."""
    scores = torch.tensor([[score for score, _ in entries]], dtype=torch.float32)
    held = scores[0].tolist()  # as float32 holds them
    order = sorted(range(len(entries)), key=lambda i: -held[i])
    assert [order.index(i) for i in range(len(entries))] == rank(scores)[0].tolist()
    first = torch.tensor([[mark for _, mark in entries]], dtype=torch.bool)
    order = sorted(range(len(entries)), key=lambda i: (not entries[i][1], -held[i]))
    assert [order.index(i) for i in range(len(entries))] == rank(scores, first)[0].tolist()


@pytest.mark.parametrize("shape", [(2, 0), (3, 1), (8, 4097)])
def test_heads_are_ranked_apart(shape):
    scores = torch.randn(shape, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.empty_like(order).scatter_(-1, order, torch.arange(shape[1]).expand_as(order))
    kept = scores.clone()
    assert torch.equal(rank(scores), places)
    assert torch.equal(scores, kept)
