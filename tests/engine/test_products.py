"""The fastest exact way of multiplying on this processor: tried once, remembered, never another result."""

from __future__ import annotations

import json

import pytest
import torch
from reference import prompt_of
from tiny import make_model

from kvviz.engine import products
from kvviz.engine.products import PLAIN, Products, products_of
from kvviz.engine.trace import prefill
from kvviz.kernels import ragged


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path))
    monkeypatch.setattr(products, "_SMALL", 1)  # the tiny models' weights are worth a trial
    monkeypatch.setattr(ragged, "queries_left", False)
    return tmp_path / "products.json"


def test_the_faster_way_is_chosen_and_remembered(cache, monkeypatch):
    asked = []

    def faster(plain, other):
        torch.testing.assert_close(plain(), other(), atol=1e-4, rtol=1e-4)  # all ways compute the same
        asked.append(1)
        return len(asked) % 2 == 1

    monkeypatch.setattr(products, "_is_faster", faster)
    model = make_model()
    chosen = products_of(model)
    assert len(asked) > 3 and chosen.onednn
    stored = json.loads(cache.read_text())
    won = len(chosen.onednn) + chosen.by_rows + chosen.queries_left
    assert len(stored) == len(asked) and sum(stored.values()) == won
    assert products_of(model) is chosen
    before = len(asked)
    assert products_of(make_model()) == chosen  # another model of these shapes, as after a restart
    assert len(asked) == before


@pytest.mark.parametrize("broken", ["", "[1]", '{"a": 3}', "\x00"])
def test_a_broken_memory_is_written_anew(cache, broken, monkeypatch):
    monkeypatch.setattr(products, "_is_faster", lambda plain, other: True)
    cache.write_text(broken)
    assert products_of(make_model()).by_rows
    assert all(json.loads(cache.read_text()).values())


def test_a_folder_that_cannot_be_written_does_no_harm(cache, monkeypatch):
    monkeypatch.setattr(products, "_is_faster", lambda plain, other: True)
    cache.mkdir()  # a folder where the file would stand
    assert products_of(make_model()).by_rows


def test_plain_tries_nothing(cache, monkeypatch):
    monkeypatch.setenv("KVVIZ_CPU_PRODUCTS", "plain")
    assert products_of(make_model()) == PLAIN
    assert not cache.exists()


def test_other_numbers_than_float32_are_left_alone(cache):
    model = make_model()
    model.hf.to(torch.bfloat16)
    assert products_of(model) == PLAIN
    assert not cache.exists()


def test_small_weights_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path))
    assert products_of(make_model()) == PLAIN
    assert list(tmp_path.iterdir()) == []


def test_the_slower_way_is_never_chosen():
    calls = []

    def way(name, seconds):
        def run():
            calls.append(name)
            end = products.time.perf_counter() + seconds
            while products.time.perf_counter() < end:
                pass

        return run

    slow, quick = way("slow", 0.004), way("quick", 0.001)
    assert products._is_faster(slow, quick)
    assert not products._is_faster(quick, slow)
    assert calls[:4] == ["slow", "quick", "slow", "quick"]  # in turn, so that what else runs hits both


def test_a_reading_by_rows_reads_the_same(monkeypatch, tiny_model):
    prompt = prompt_of(tiny_model, 70)
    plain = prefill(tiny_model, prompt)
    monkeypatch.setattr("kvviz.engine.trace.products_of", lambda model: Products(by_rows=True))
    ours = prefill(tiny_model, prompt)
    torch.testing.assert_close(ours.last_logits, plain.last_logits, atol=1e-4, rtol=1e-4)
    for a, b in zip(ours.keys + ours.values, plain.keys + plain.values, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
