"""A model whose layers lie on two devices: helper tensors follow their layer, answers stay the same."""

import numpy as np
import pytest
from reference import METHOD_IDS, prompt_of
from tiny import make_model
from two_devices import Factories, split

from kvviz.engine.causes import causes
from kvviz.engine.run import compare
from kvviz.methods import get_method

METHODS = [m for m in METHOD_IDS if get_method(m).artefact is None]
FEW = ["snapkv", "h2o", "expected_attention", "kvzip"]  # all that is taken while reading


def compared(family, methods, budgets, suffix=5, **given):
    """(run on one device, the same run with the layers on two)."""
    prompt = prompt_of(make_model(family), 32, suffix)
    changes = {} if family == "gemma3" else {"num_hidden_layers": 2}
    alone = compare(make_model(family, **changes), prompt, methods, budgets, 4, **given)
    with Factories():
        spread = compare(split(make_model(family, **changes), 1), prompt, methods, budgets, 4, **given)
    assert spread.full.token_ids == alone.full.token_ids
    for a, b in zip(spread.variants, alone.variants):
        assert (a.method, a.token_ids) == (b.method, b.token_ids)
        np.testing.assert_allclose(a.kl, b.kl, atol=1e-5)
        np.testing.assert_allclose(a.output_error, b.output_error, atol=1e-5)
    return alone, spread


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_tensors_follow_their_layer(family):
    compared(family, FEW[:2], [0.5])


@pytest.mark.slow
def test_every_method_on_two_devices():
    compared("gemma3", METHODS, [0.5])
    alone, spread = compared("llama", FEW, [0.5], 0, lenses=True)
    for name, lens in alone.lenses.items():
        np.testing.assert_allclose(spread.lenses[name], lens, atol=1e-4)


@pytest.mark.slow
def test_eviction_while_writing_on_two_devices():
    compared("llama", ["streaming_llm", "h2o", "knorm"], [0.3], evict_every=2, temperature=0.7)


@pytest.mark.slow
def test_causes_on_two_devices():
    prompt = prompt_of(make_model(), 24)
    alone, spread = make_model(num_hidden_layers=2), split(make_model(num_hidden_layers=2), 1)
    alone = causes(alone, prompt, "snapkv", 0.3, max_new_tokens=2, rescue=True)
    with Factories():
        spread = causes(spread, prompt, "snapkv", 0.3, max_new_tokens=2, rescue=True)
    assert spread.gap == pytest.approx(alone.gap, abs=1e-4)


def test_two_devices_do_mix_nothing_here():
    import torch
    from two_devices import SECOND

    with Factories():
        here, there = torch.ones(3), torch.ones(3, device=SECOND)
        assert there.device == SECOND and (there + 1).tolist() == [2, 2, 2]
        assert (there.cpu() + here).tolist() == [2, 2, 2]
        with pytest.raises(RuntimeError, match="two devices"):
            here + there
