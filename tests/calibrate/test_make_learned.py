"""The measurements of docs/learned.md, on a tiny model with calibrated files made for the purpose."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from tiny import make_model

from kvviz.methods import list_methods
from kvviz.methods.artefacts import Artefact, lend, spec_of

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "make_learned.py"
spec = importlib.util.spec_from_file_location("make_learned", SCRIPT)
measure = sys.modules["make_learned"] = importlib.util.module_from_spec(spec)  # its dataclass looks itself up
spec.loader.exec_module(measure)

NAMES = ("compresskv", "indexmem", "duoattention", "qfilters")


@pytest.fixture(scope="module")
def tiny():
    return make_model("llama")


@pytest.fixture
def calibrated(tiny):
    draw = torch.Generator().manual_seed(0)
    made = [
        Artefact(n, {k: torch.rand(s, generator=draw) for k, s in spec_of(n).shapes(tiny.info).items()}, {})
        for n in NAMES
    ]
    with lend(made[0]), lend(made[1]), lend(made[2]), lend(made[3]):
        yield tiny


def text(tiny):
    return measure.held_out(tiny, length=260, quick=True)[:1]


def test_every_variant_names_a_method(tiny):
    known = {method.id for method in list_methods()}
    assert {spec.partition(":")[0] for spec, _ in measure.VARIANTS.values()} <= known


def test_losses_of_all_variants(calibrated):
    (held, budget, rows), *rest = measure.losses(calibrated, text(calibrated), budgets=(0.3,))
    assert not rest
    assert budget == 0.3
    assert set(rows) == set(measure.VARIANTS)
    for kl, error, share, size in rows.values():
        assert kl >= 0
        assert error > 0
        assert 0 < share <= 1
        assert size > 0
    assert rows["IndexMem with memory"][3] > rows["IndexMem, indexer alone"][3]
    assert rows["IndexMem, memory charged"][2] < 1
    assert rows["Q-Filters"][0] != rows["Q-Filters, sign turned"][0]


def test_a_stand_in_leaves_the_calibrated_scores_alone(calibrated):
    order = ("Q-Filters", "Q-Filters, sign turned")
    there = next(measure.losses(calibrated, text(calibrated), (0.3,), order))[2]
    back = next(measure.losses(calibrated, text(calibrated), (0.3,), order[::-1]))[2]
    for name in order:
        assert there[name] == pytest.approx(back[name], rel=1e-5)


def test_recalls_are_shares(calibrated):
    found = measure.recalls(calibrated, text(calibrated))
    assert all(0 <= value <= 1 for value in found.values())


def test_needles_counts_right_answers(calibrated):
    tally = measure.needles(calibrated, length=1500, depths=(0.5,), budgets=(0.5,))
    assert tally["Full cache"] == {0.5: (0, 3)}  # a random model knows nothing
