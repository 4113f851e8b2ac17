import numpy as np
import pytest
import torch
from tiny import make_model

import kvviz
from kvviz.errors import InputError
from kvviz.methods.artefacts import Artefact, lend
from kvviz.methods.compresskv import chosen_heads
from methods.fixtures import GROUPS, Exact, given, pooled, random_layer, score, values_of

TEXT = "The keeper wrote 58213 in the ledger. The door was blue, the sea was grey and the lamp lit. " * 3


def lent(heads, errors=None):
    heads = torch.tensor(heads, dtype=torch.float32)
    heads = heads if heads.dim() == 2 else heads[None]
    errors = torch.ones(len(heads)) / len(heads) if errors is None else torch.tensor(errors)
    return lend(Artefact("compresskv", {"heads": heads, "layer_errors": errors}, {}))


def reference(x, options):
    heads = x.view.artefact("compresskv")["heads"][x.view.index].tolist()
    best = sorted(range(len(heads)), key=lambda h: (-heads[h], h))[: options["heads"]]
    p = x.p(options["window"])
    rows = [pooled([p[h][:, j].sum() for j in x.context], options) for h in best]
    return [np.mean(rows, axis=0)] * x.hkv


def test_worked_example():
    # Head 1 has the higher retrieval score. Its rows [.1, .1, .4, .2 | ...] and [.1, .1, .3, .1 | ...] sum
    # to [.2, .2, .7, .3]; no pooling.
    p = [
        [[0.4, 0.2, 0.1, 0.1, 0.2, 0], [0.3, 0.1, 0.1, 0.1, 0.2, 0.2]],
        [[0.1, 0.1, 0.4, 0.2, 0.2, 0], [0.1, 0.1, 0.3, 0.1, 0.2, 0.2]],
    ]
    layer = given(p, [[1, 0]] * 6, context=4)
    with lent([0.5, 1.15]):
        values = values_of("compresskv", layer, window=2, heads=1, pool_kind="none")
        assert values == pytest.approx([0.2, 0.2, 0.7, 0.3])
        # both heads: the mean with [.7, .3, .2, .2]
        values = values_of("compresskv", layer, window=2, heads=2, pool_kind="none")
        assert values == pytest.approx([0.45, 0.25, 0.45, 0.25])
        # average of 5 with zeros outside, always divided by 5: (.2 + .2 + .7) / 5, 1.4 / 5 twice, 1.2 / 5
        values = values_of("compresskv", layer, window=2, heads=1, pool=5)
        assert values == pytest.approx([0.22, 0.28, 0.28, 0.24])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", ["avg", "max", "none"])
def test_agrees_with_its_definition(group, kind):
    layer = random_layer(group, seed=group)
    scores = torch.rand(2 * group, generator=torch.Generator().manual_seed(group)).tolist()
    options = {"window": 5, "heads": min(2, 2 * group), "pool": 3, "pool_kind": kind}
    with lent(scores):
        values = score("compresskv", layer, **options).values
        wanted = reference(Exact(layer), options)
    assert np.allclose(values, wanted, rtol=1e-4, atol=1e-7)
    assert torch.equal(values, values[:1].expand(2, -1))  # one ranking for all KV heads


def test_heads_are_chosen_in_order_and_within_the_model():
    assert chosen_heads(torch.tensor([0.1, 0.7, 0.7, 0.2]), 2) == [1, 2]
    with pytest.raises(InputError, match="at most 4"):
        chosen_heads(torch.zeros(4), 5)


def test_one_set_for_all_heads_and_budgets_of_their_own_for_layers():
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, document=TEXT, question="Which code?")
    trace = kvviz.prefill(model, prompt)
    with lent([[1.0, 2, 3, 4]] * 3, [0.6, 0.3, 0.1]):
        for budget in (1, 7, 31, 40, 0.3, 0.5, 1.0):
            selection = kvviz.select(trace, "compresskv", budget, heads=2)
            b = selection.entries
            assert int(selection.budgets.sum()) == 3 * 2 * b
            for mask, counts in zip(selection.mask, selection.budgets):
                assert torch.equal(mask[0], mask[1])
                assert min(32, b) <= int(counts[0]) <= min(trace.n, 3 * b)
        layers = kvviz.select(trace, "compresskv", 60, heads=2).budgets[:, 0].tolist()
        # 180 - 96 = 84 to share: 32 + 50, 32 + 25, 32 + 8 is 179, the one missing goes to layer 0
        assert layers == [83, 57, 40]
        uniform = kvviz.select(trace, "compresskv", 60, heads=2, allocation="uniform")
        assert (uniform.budgets == 60).all()


def test_without_its_file_it_says_how_to_make_one():
    model = make_model("llama")
    method = next(m for m in kvviz.list_methods() if m.id == "compresskv")
    reason = method.available(model)
    assert "python -m kvviz calibrate compresskv --model tiny-llama" in reason
    prompt = kvviz.build_prompt(model, document=TEXT, question="Which code?")
    with pytest.raises(kvviz.KvvizError, match="not calibrated for tiny-llama"):
        kvviz.select(kvviz.prefill(model, prompt), "compresskv", 0.5)
    with pytest.raises(kvviz.KvvizError, match="not calibrated for tiny-llama"):
        kvviz.compare(model, prompt, ["compresskv"], [0.5], max_new_tokens=2)
    with lent([[1.0, 2, 3, 4]] * 3):
        assert method.available(model) == ""
