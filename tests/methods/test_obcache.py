import numpy as np
import pytest
import torch

from kvviz.errors import InputError
from methods.fixtures import T1_V, Exact, given, pooled, random_layer, score, values_of

Z = [2, 1, 0.5, 0]
P = (np.exp(Z) / np.exp(Z).sum()).tolist()  # [.579259, .213097, .129250, .078394]


def reference(x, options):
    """||J delta||^2 of the output's first-order change, summed over rows and query heads."""
    p, variant = x.p(options["window"]), options["variant"]
    w = p.shape[1]
    rows = []
    for kv in range(x.hkv):
        total = np.zeros(x.n)
        for h in x.heads(kv):
            z = x.scaling * x.q[h][-w:] @ x.k[kv].T
            for i in range(w):
                o = p[h, i] @ x.v[kv]
                for j in x.context:
                    value = -p[h, i, j] * x.v[kv, j]  # v_j -> 0
                    key = -p[h, i, j] * z[i, j] * (x.v[kv, j] - o)  # z_j -> 0
                    change = {"value": value, "key": key, "joint": value + key}[variant]
                    total[j] += change @ change
        rows.append(pooled(total[list(x.context)], options))
    return rows


def example():
    """Keys whose logits with the query (sqrt 2, 0) are Z; d = 2, so the scale is 1 / sqrt 2."""
    layer = given(P, T1_V, keys=[[z, 0] for z in Z])
    layer.trace.queries[0] = torch.tensor([[[2**0.5, 0.0]]])
    return layer


@pytest.mark.parametrize(
    ("variant", "wanted"),
    [
        # p^2 ||v||^2: .579259^2 * 1, .213097^2 * 1, .129250^2 * 4, .078394^2 * 4
        ("value", [0.335540, 0.045410, 0.066822, 0.024583]),
        # (p z)^2 ||v - o||^2 with o = (.837759, .056309): (1.158518)^2 * (.162241^2 + .056309^2), ...
        ("key", [0.039584, 0.072311, 0.005655, 0]),
        # value + key + 2 p^2 z (||v||^2 - v.o): .335540 + .039584 + 2 * .335540 * 2 * .162241, ...
        ("joint", [0.592879, 0.203429, 0.111309, 0.024583]),
    ],
)
def test_worked_example(variant, wanted):
    values = values_of("obcache", example(), variant=variant, pool_kind="none")
    assert values == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize("variant", ["value", "key", "joint"])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_every_variant_agrees_with_its_definition(variant, group):
    layer = random_layer(group, seed=1)
    options = {"window": 5, "variant": variant, "pool": 7, "pool_kind": "max"}
    wanted = np.array(reference(Exact(layer), options))
    assert np.allclose(score("obcache", layer, **options).values, wanted, rtol=2e-4)


@pytest.mark.parametrize("variant", ["value", "key", "joint"])
def test_attention_sink(variant):
    # 1 - p of token 0 is about 1e-5: v - o is a small difference of nearly equal vectors there.
    layer = random_layer(1, seed=3, spread=1.0)
    layer.keys[:, 0] = 14 * torch.nn.functional.normalize(layer.queries(5).mean(1), dim=-1)
    layer.trace.queries[0][:] = layer.queries(1) + 0.01
    options = {"window": 5, "variant": variant, "pool": 7, "pool_kind": "none"}
    wanted = np.array(reference(Exact(layer), options))
    assert Exact(layer).p(5)[0, :, 0].min() > 0.999
    assert np.allclose(score("obcache", layer, **options).values, wanted, rtol=1e-3)


def test_key_score_vanishes_when_all_values_are_equal():
    layer = given(P, [[3, 4]] * 4, keys=[[z, 0] for z in Z])
    layer.trace.queries[0] = torch.tensor([[[2**0.5, 0.0]]])
    assert values_of("obcache", layer, pool_kind="none") == pytest.approx([0] * 4, abs=1e-9)


def test_first_order_change_is_the_derivative():
    # Move v_j and z_j a little along their pruning directions and watch the output.
    p, v, z, step = np.array(P), np.array(T1_V, float), np.array(Z, float), 1e-6
    o = p @ v
    joint = values_of("obcache", example(), variant="joint", pool_kind="none")
    for j in range(4):
        z2, v2 = z.copy(), v.copy()
        z2[j] -= step * z[j]
        v2[j] -= step * v[j]
        p2 = np.exp(z2) / np.exp(z2).sum()
        assert ((p2 @ v2 - o) / step) @ ((p2 @ v2 - o) / step) == pytest.approx(joint[j], rel=1e-4)


def test_mean_first_merges_the_group_before_scoring():
    layer = random_layer(3, hkv=1, seed=4)
    p, z = Exact(layer).p(5).mean(0), layer.trace.queries[0][:, -5:].double().mean(0).numpy()
    z = Exact(layer).scaling * z @ Exact(layer).k[0].T
    v = Exact(layer).v[0]
    wanted = [
        sum(((p[i, j] * z[i, j]) ** 2) * ((v[j] - p[i] @ v) ** 2).sum() for i in range(5))
        for j in range(layer.context)
    ]
    values = values_of("obcache", layer, window=5, pool_kind="none", mean_first=True)
    assert values == pytest.approx(wanted, rel=1e-4)


def test_unknown_variant():
    with pytest.raises(InputError, match="key, value, joint"):
        score("obcache", random_layer(), variant="both")
