import numpy as np
import pytest
import torch

from kvviz.errors import InputError
from methods.fixtures import F_P, F_V, T1_P, T1_V, given, merged, pooled, random_layer, score, values_of


def reference(x, options):
    p = x.p(options["window"])
    rows = []
    for kv in range(x.hkv):
        attention = merged([p[h].mean(0) for h in x.heads(kv)], options["group"])
        rows.append(pooled([attention[j] * np.abs(x.v[kv, j]).sum() for j in x.context], options))
    return rows


def test_worked_examples():
    # L1 norms 1, 1, 2, 2 times [.5, .25, .125, .125]
    assert values_of("vatp", given(T1_P, T1_V)) == pytest.approx([0.5, 0.25, 0.25, 0.25])
    # [.225, .125, .225, .125] times 1, 1, 2, 2
    layer = given(F_P, F_V, context=4)
    assert values_of("vatp", layer) == pytest.approx([0.225, 0.125, 0.45, 0.25])


def test_accumulated_attention_as_base():
    layer = random_layer(3)
    values = score("vatp", layer, base="h2o").values
    sizes = layer.values.norm(1, dim=-1)[:, : layer.context]
    assert torch.allclose(values, score("h2o", layer).values * sizes)


def test_a_common_shift_of_the_values_changes_it():
    shifted = [[a + 5, b] for a, b in T1_V]
    before, after = (values_of("vatp", given(T1_P, v)) for v in (T1_V, shifted))
    assert before != pytest.approx(after)


def test_unknown_base():
    with pytest.raises(InputError, match="window, h2o"):
        score("vatp", random_layer(), base="snapkv")
