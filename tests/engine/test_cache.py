"""Ragged storage: evicted rows are gone, lengths differ by head, bytes are what was allocated."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import METHOD_IDS, sparse_masks, trace_of

from kvviz.engine.cache import build_cache
from kvviz.engine.selection import select
from kvviz.engine.trace import block_rows

N = 90


@pytest.fixture(scope="module")
def traces(tiny_models):
    return {family: trace_of(model, N) for family, model in tiny_models.items()}


def stored(cache, index: int, variant: int, head: int, heads: int):
    """(keys, values, positions) of the filled slots of one head, in storage order."""
    for blocks in cache.layers[index]:
        if blocks.first <= variant < blocks.first + blocks.count:
            own = blocks.owner == (variant - blocks.first) * heads + head
            positions = blocks.positions[own].flatten()
            filled = positions >= 0
            keys, values = blocks.keys[own].flatten(0, 1), blocks.values[own].flatten(0, 1)
            assert not keys[~filled].any()
            assert not values[~filled].any()
            return keys[filled], values[filled], positions[filled]
    raise AssertionError("no blocks hold this variant")


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("method", METHOD_IDS)
def test_storage_holds_exactly_the_kept_rows(traces, method, family):
    trace = traces[family]
    selections = [select(trace, method, budget) for budget in (1, 0.3, 60)]
    cache = build_cache(trace, [None, *selections])
    for index in range(trace.model.n_layers):
        for variant, selection in enumerate(selections, 1):
            for head in range(trace.model.n_kv_heads):
                keys, values, positions = stored(cache, index, variant, head, trace.model.n_kv_heads)
                kept = selection.mask[index][head].nonzero()[:, 0]
                assert positions.tolist() == kept.tolist()
                assert torch.equal(keys, trace.keys[index][head, kept])
                assert torch.equal(values, trace.values[index][head, kept])


def test_lengths_really_differ_by_head(traces):
    selection = select(traces["llama"], "adakv", 20, safeguard=0.0)
    cache = build_cache(traces["llama"], [selection])
    lengths = {
        len(stored(cache, index, 0, head, 2)[2])
        for index in range(traces["llama"].model.n_layers)
        for head in range(2)
    }
    assert len(lengths) > 2


def test_bytes_are_the_storage_that_was_allocated(traces):
    trace = traces["llama"]
    selections = [select(trace, "adakv", 0.2), select(trace, "snapkv", 40), select(trace, "laprox", 0.5)]
    cache = build_cache(trace, selections)
    allocated = sum(
        side.untyped_storage().nbytes()
        for layer in cache.layers
        for b in layer
        for side in (b.keys, b.values, b.positions, b.owner)
    )
    assert sum(cache.bytes) == allocated
    block = block_rows(N)
    for selection, size in zip(selections, cache.bytes):
        blocks = sum(-(-int(k) // block) for k in selection.budgets.flatten())
        row = trace.model.head_dim * 4
        assert size == blocks * (block * (2 * row + 4) + 4)  # keys and values, positions, one owner a block


def test_each_variant_alone_takes_the_same_bytes(traces):
    trace = traces["qwen3"]
    selections = [select(trace, m, 0.3) for m in ("adakv", "snapkv")]
    together = build_cache(trace, [None, *selections]).bytes
    assert together == [trace.bytes, *(build_cache(trace, [s]).bytes[0] for s in selections)]


def test_everything_kept_is_as_large_as_the_whole_cache(tiny_models):
    """But for the indices of ragged storage; also where layers slide."""
    for family in ("llama", "gemma3"):
        trace = trace_of(tiny_models[family], N)
        whole, kept = build_cache(trace, [None, select(trace, "knorm", 1.0)]).bytes
        rows = sum(-(-trace.rows(i) // block_rows(N)) for i in range(trace.model.n_layers))
        indices = rows * trace.model.n_kv_heads * (block_rows(N) + 1) * 4  # positions, owners
        assert kept == whole + indices


def test_the_whole_cache_is_a_view_of_the_trace(traces):
    for trace in traces.values():
        cache = build_cache(trace, [None])
        assert cache.bytes == [trace.bytes]
        for index, (blocks,) in enumerate(cache.layers):
            for ours, theirs in ((blocks.keys, trace.keys), (blocks.values, trace.values)):
                assert ours.untyped_storage().data_ptr() == theirs[index].untyped_storage().data_ptr()
            for head in range(trace.model.n_kv_heads):
                keys, _, positions = stored(cache, index, 0, head, trace.model.n_kv_heads)
                assert positions.tolist() == list(range(N))
                assert torch.equal(keys, trace.keys[index][head])


def test_gathered_rows_share_nothing_with_the_trace(traces):
    trace = traces["llama"]
    cache = build_cache(trace, [None, select(trace, "snapkv", N)])
    ours = cache.layers[0][1].keys.untyped_storage().data_ptr()
    assert ours != trace.keys[0].untyped_storage().data_ptr()


def test_heads_and_layers_that_keep_nothing(traces):
    trace = traces["llama"]
    masks = sparse_masks(trace.model, N)
    selection = replace(select(trace, "random", 0.5), mask=masks)
    cache = build_cache(trace, [selection])
    assert len(stored(cache, 0, 0, 0, 2)[2]) == 0
    assert cache.layers[-1][0].keys.shape[0] == 0
    assert len(stored(cache, 1, 0, 1, 2)[2]) == int(masks[1][1].sum())


def test_the_whole_cache_comes_first(traces):
    with pytest.raises(AssertionError, match="first"):
        build_cache(traces["llama"], [select(traces["llama"], "snapkv", 5), None])


@pytest.mark.parametrize(("n", "rows"), [(1, 16), (1023, 16), (1024, 32), (4096, 64), (16384, 128)])
def test_short_prompts_get_small_blocks(n, rows):
    assert block_rows(n) == rows
