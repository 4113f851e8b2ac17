import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from methods.fixtures import F_P, F_V, given, merged, pooled, random_layer, score, values_of


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        heads = [pooled([p[h, :, j].mean() for j in x.context], options) for h in x.heads(kv)]
        rows.append(merged(heads, options["group"]))
    return rows


def layer_f():
    return given(F_P, F_V, context=4)


def test_worked_example():
    # head means [.35, .15, .1, .1] and [.1, .1, .35, .15], group mean [.225, .125, .225, .125]
    assert values_of("snapkv", layer_f(), pool_kind="none") == pytest.approx(
        [0.225, 0.125, 0.225, 0.125]
    )
    # average of 3 with zeros outside: (0 + .225 + .125) / 3, (.225 + .125 + .225) / 3, ...
    assert values_of("snapkv", layer_f(), pool=3) == pytest.approx(
        [0.116667, 0.191667, 0.158333, 0.116667], abs=1e-6
    )


def test_maximum_pooling_comes_before_the_group_mean():
    # head 0 pooled [.35, .35, .15, .1], head 1 pooled [.1, .35, .35, .35]; the mean of the two
    values = values_of("snapkv", layer_f(), pool=3, pool_kind="max")
    assert values == pytest.approx([0.225, 0.35, 0.25, 0.225])


def test_raw_is_the_score_before_pooling():
    raw = score("snapkv", layer_f(), pool=3).raw[0].tolist()
    assert raw == pytest.approx([0.225, 0.125, 0.225, 0.125])


@hypothesis_given(st.integers(0, 10_000), st.sampled_from([1, 3, 4]))
@settings(max_examples=20, deadline=None)
def test_one_query_and_all_heads_rank_as_tova(seed, group):
    layer = random_layer(group, seed, hkv=1, window=1)
    snap = score("snapkv", layer, window=1, pool_kind="none").values
    assert torch.equal(snap.argsort(-1), score("tova", layer).values.argsort(-1))


def test_window_longer_than_the_prompt_reads_every_query():
    layer = random_layer(n=9, window=9)
    layer.context = 4
    assert torch.equal(
        score("snapkv", layer, window=64).values, score("snapkv", layer, window=9).values
    )


def test_sum_over_rows_ranks_as_the_mean():
    layer = random_layer(3, seed=5)
    summed = layer.attention(5).sum(1).unflatten(0, (2, 3)).mean(1)[:, : layer.context]
    mean = score("snapkv", layer, window=5, pool_kind="none").values
    assert np.array_equal(summed.argsort(-1), mean.argsort(-1))
