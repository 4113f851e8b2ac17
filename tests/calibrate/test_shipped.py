"""What the shipped files are worth on held-out texts, where that is stable; one of them made again."""

import make_learned as measure
import pytest
import torch

from kvviz.calibrate import calibrate
from kvviz.methods import artefacts

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def texts(smollm):
    return measure.held_out(smollm, length=500, quick=True)[:1]


def test_remade_it_is_the_same(smollm, tmp_path):
    """The filters from a quarter of the texts already point where those of all do; from all, exactly."""
    shipped = artefacts.load(smollm, "qfilters").tensors["filters"]
    few = artefacts.read(calibrate("qfilters", smollm, steps=4, out=tmp_path)).tensors["filters"]
    assert (few * shipped).sum(-1).median() > 0.99
    made = artefacts.read(calibrate("qfilters", smollm, out=tmp_path)).tensors["filters"]
    assert torch.allclose(made, shipped, atol=1e-3)


def test_trained_indexer_fits_attention_better_and_finds_more_than_chance(smollm, texts):
    before, after = measure.indexer_kl(smollm, texts)
    assert after < 0.6 * before
    found = measure.recalls(smollm, texts)
    trained = found["IndexMem, indexer alone"]
    assert trained > 2.5 * found["Random"]
    assert trained > found["IndexMem, untrained indexer"] + 0.1


def test_what_calibration_is_worth(smollm, texts):
    names = ["Random", "Q-Filters", "Q-Filters, sign turned", "IndexMem, indexer alone", "Knorm"]
    for _, _, rows in measure.losses(smollm, texts, budgets=(0.2,), names=names):
        kl = {name: row[0] for name, row in rows.items()}
    assert kl["Q-Filters"] < kl["Knorm"]
    assert kl["Q-Filters"] < 0.5 * kl["Q-Filters, sign turned"]
    assert kl["IndexMem, indexer alone"] < 0.5 * kl["Random"]
