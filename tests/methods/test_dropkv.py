import numpy as np
import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st

from kvviz.errors import InputError
from kvviz.methods import get_method
from methods.fixtures import (
    F_P,
    F_V,
    T1_P,
    T1_V,
    Exact,
    given,
    merged,
    pooled,
    random_layer,
    score,
    values_of,
    without,
)


def reference(x, options):
    p, rows = x.p(options["window"]), []
    for kv in range(x.hkv):
        heads = []
        for h in x.heads(kv):
            row = np.zeros(x.n)
            for attention in p[h]:
                o = attention @ x.v[kv]
                for j in x.visible:
                    # 1 - p from the definition of the softmax: the mass that others and sinks hold
                    rest = attention.sum() - attention[j] if x.layer.sinks is None else 1 - attention[j]
                    weight = attention[j] / (rest + options["epsilon"])
                    row[j] += weight**2 * ((x.v[kv, j] - o) ** 2).sum()
            heads.append(row)
        row = merged(heads, options["group"])
        over = x.visible if options["pool_over"] == "all" else x.context
        rows.append(pooled(row[list(over)], options)[: len(x.context)])
    return rows


def layer_f(context=6):
    return given(F_P, F_V, context=context)


RAW_F = [0.027208, 0.072963, 0.313892, 0.246921, 0.113125, 0.041250]


def test_worked_example_one_query():
    # o = (.75, 0): (.5 / .5)^2 * .0625, (.25 / .75)^2 * 1.5625, (1 / 7)^2 * 1.5625, (1 / 7)^2 * 4.5625
    values = values_of("dropkv", given(T1_P, T1_V), epsilon=0.0, pool_kind="none")
    assert values == pytest.approx([0.0625, 0.173611, 0.031888, 0.093112], abs=1e-6)


def test_worked_example_two_heads():
    # sums over the rows, head 0 [.053923, .096049, .039259, .128148, ...], head 1 [.000494, .049876,
    # .588524, .365694, ...]; mean of the two
    assert values_of("dropkv", layer_f(), pool_kind="none") == pytest.approx(RAW_F, abs=1e-6)
    assert values_of("dropkv", layer_f(), pool=3) == pytest.approx(
        [0.072963, 0.313892, 0.313892, 0.313892, 0.246921, 0.113125], abs=1e-6
    )
    assert values_of("dropkv", layer_f(), pool=3, pool_kind="avg") == pytest.approx(
        [0.033390, 0.138021, 0.211258, 0.224646, 0.133765, 0.051458], abs=1e-6
    )


def test_pooling_over_all_lets_the_window_in():
    options = {"pool": 3, "pool_kind": "avg"}
    context = values_of("dropkv", layer_f(4), **options)
    everything = values_of("dropkv", layer_f(4), pool_over="all", **options)
    assert context[:3] == pytest.approx(everything[:3])
    # the last context entry: with and without .113125 of the first window entry
    assert everything[3] - context[3] == pytest.approx(0.113125 / 3, abs=1e-6)


def test_three_published_settings():
    method = get_method("dropkv")
    settings_of = {
        name: tuple(method.resolve({"preset": name})[k] for k in ("window", "pool_kind", "pool"))
        for name in method.presets
    }
    assert settings_of == {
        "paper": (8, "max", 11),
        "authors": (8, "avg", 11),
        "kvpress": (32, "avg", 7),
    }


@pytest.mark.parametrize("spread", [0.5, 1.5, 4.0])
@pytest.mark.parametrize("group", [1, 3, 4, 7, 8])
def test_equals_brute_force_removal(group, spread):
    layer = random_layer(group, seed=group, spread=spread)
    x = Exact(layer)
    p = x.p(5)
    wanted = [
        [
            np.mean(
                [
                    sum(
                        ((without(row, x.v[kv], [j]) - row @ x.v[kv]) ** 2).sum()
                        for row in p[h]
                    )
                    for h in x.heads(kv)
                ]
            )
            for j in x.context
        ]
        for kv in range(x.hkv)
    ]
    values = score("dropkv", layer, window=5, epsilon=0.0, pool_kind="none").values
    assert np.allclose(values, wanted, rtol=2e-4)


@pytest.mark.parametrize("rest", [1e-2, 1e-4, 1e-6])
def test_attention_sink_is_exact(rest):
    # p = 1 - rest on token 0. The expanded form |v|^2 - 2 v.o + |o|^2 in float32 loses all digits here.
    draw = np.random.default_rng(0)
    others = draw.random(15)
    p = np.concatenate([[1 - rest], rest * others / others.sum()])
    p32 = p.astype(np.float32).astype(float)
    p32[0] = 1 - p32[1:].sum()
    v = draw.normal(size=(16, 8)).astype(np.float32).astype(float)
    o = p32 @ v
    wanted = (p32[0] / (p32[1:].sum() + 1e-6)) ** 2 * ((v[0] - o) ** 2).sum()
    value = values_of("dropkv", given(p.tolist(), v.tolist()), pool_kind="none")[0]
    assert value == pytest.approx(wanted, rel=1e-4)


def test_match_dtype_rounds_the_attention_first():
    """As the authors' code does: in bfloat16 a p of .999 is 1, and its weight (1 / epsilon)^2."""
    p, v = [[0.999, 0.0006, 0.0004]] * 2, [[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]
    layer = given(p, v)
    layer.keys = layer.keys.to(torch.bfloat16)
    o = np.asarray(p[0]) @ np.asarray(v)
    rounded = torch.tensor(p[0]).to(torch.bfloat16).double().numpy()
    assert rounded[0] == 1.0
    wanted = 2 * (rounded / (1 - rounded + 1e-6)) ** 2 * ((np.asarray(v) - o) ** 2).sum(-1)
    values = values_of("dropkv", layer, pool_kind="none", match_dtype=True)
    assert values[1:] == pytest.approx(wanted[1:], rel=1e-4)
    assert values[0] == pytest.approx(wanted[0], rel=0.05)  # 1e12 times a small difference of float32
    assert values[0] > 1e5 * values_of("dropkv", layer, pool_kind="none")[0]


@pytest.mark.parametrize("sliding, sinks", [(None, False), (9, False), (None, True)])
def test_match_dtype_changes_nothing_in_float32(sliding, sinks):
    layer = random_layer(3, seed=5, sliding=sliding, sinks=sinks)
    plain = score("dropkv", layer, window=5, pool_kind="none").values
    rounded = score("dropkv", layer, window=5, pool_kind="none", match_dtype=True).values
    assert torch.allclose(rounded, plain, rtol=1e-3)


@hypothesis_given(st.integers(0, 10_000), st.sampled_from([1, 3]))
@settings(max_examples=25, deadline=None)
def test_shift_rotation_and_scale_of_the_values(seed, group):
    def values(change):
        layer = random_layer(group, seed)
        layer.trace.values[0] = change(layer.trace.values[0])
        layer.values = layer.trace.values[0]
        return score("dropkv", layer, window=5, pool_kind="none").values

    draw = torch.Generator().manual_seed(seed)
    shift, turn = torch.randn(4, generator=draw), torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    plain = values(lambda v: v)
    assert torch.allclose(values(lambda v: v + 10 * shift), plain, rtol=1e-3, atol=1e-6)
    assert torch.allclose(values(lambda v: v @ turn), plain, rtol=1e-3, atol=1e-6)
    assert torch.allclose(values(lambda v: 3 * v), 9 * plain, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["vatp", "criticalkv", "laprox", "obcache"])
def test_others_are_not_shift_invariant(name):
    def deciding(shift):
        layer = random_layer(1, seed=1)
        layer.trace.values[0] = layer.trace.values[0] + shift
        layer.values = layer.trace.values[0]
        options = {"variant": "value"} if name == "obcache" else {}
        scores = score(name, layer, window=5, pool_kind="none", **options)
        return scores.values if scores.second is None else scores.second

    assert not torch.allclose(deciding(0.0), deciding(3.0), rtol=1e-2)


def test_unknown_reach_of_pooling():
    with pytest.raises(InputError, match="context, all"):
        score("dropkv", random_layer(), pool_over="window")
