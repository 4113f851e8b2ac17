"""Brute force over small windows: by hand, by definition, and on a tiny model."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from reference import prompt_of
from tiny import make_model

from kvviz.engine.trace import prefill
from kvviz.errors import InputError
from kvviz.evaluate.best_sets import of_documents, of_head, of_trace
from kvviz.evaluate.items import Item


def error(p: np.ndarray, values: np.ndarray, dropped) -> float:
    """By the definition: outputs without the dropped tokens, renormalised, minus outputs."""
    left = [j for j in range(len(values)) if j not in set(dropped)]
    kept = p[:, left] / p[:, left].sum(1, keepdims=True)
    return float(((kept @ values[left] - p @ values) ** 2).sum())


@pytest.mark.parametrize("seed", range(3))
def test_ratios_are_those_of_all_sets_tried_one_by_one(seed):
    rng = np.random.default_rng(seed)
    p, values = rng.dirichlet(np.full(9, 0.5), 4), rng.normal(size=(9, 3))
    among, k = range(2, 8), 3
    ratio, attention, cone = of_head(torch.tensor(p), torch.tensor(values), among, k)
    best = min(error(p, values, s) for s in itertools.combinations(among, k))
    single = sorted(among, key=lambda j: error(p, values, [j]))[:k]
    least = sorted(among, key=lambda j: p[:, j].sum())[:k]
    assert ratio == pytest.approx(error(p, values, single) / best)
    assert attention == pytest.approx(error(p, values, least) / best)
    moves = p[..., None] * ((p @ values)[:, None] - values)
    pairs = [m[i] @ m[j] > 0 for m in moves for i, j in itertools.combinations(single, 2)]
    assert cone == pytest.approx(np.mean(pairs)) and ratio >= 1 <= attention


def test_the_two_smallest_errors_may_make_a_bad_pair():
    p = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64)
    values = torch.tensor([[1, 0], [0, 1], [2, 0], [0, -2]], dtype=torch.float64)
    ratio, attention, _ = of_head(p, values, range(4), 2)
    single = sorted(range(4), key=lambda j: error(p.numpy(), values.numpy(), [j]))[:2]
    pairs = {s: error(p.numpy(), values.numpy(), s) for s in itertools.combinations(range(4), 2)}
    assert ratio == pytest.approx(pairs[tuple(sorted(single))] / min(pairs.values())) and ratio > 1
    assert attention == pytest.approx(pairs[2, 3] / min(pairs.values()))


def test_every_head_of_a_model_counts():
    model = make_model("llama")
    found = of_trace(prefill(model, prompt_of(model, 60)), random.Random(0))
    assert found["heads"] == model.hf.config.num_hidden_layers * model.hf.config.num_attention_heads
    assert found["ratio"] >= 1 and found["attention_ratio"] >= 1 and 0 <= found["cone"] <= 1
    with pytest.raises(InputError, match="Brute force needs 20 tokens"):
        of_trace(prefill(model, prompt_of(model, 15)), random.Random(0))


def test_a_document_counts_once():
    text = "The keeper of the lighthouse wrote the code in the ledger. "
    items = [Item(f"{d}{q}", "t", text * (1 + d), f"Which {q}?") for d in range(2) for q in range(2)]
    rows = of_documents(make_model("llama"), "tiny", items, "question-aware")
    assert len({row["document"] for row in rows}) == len(rows) == 2


def test_the_command_measures_once_and_keeps_what_it_found(tmp_path, capsys, monkeypatch):
    from kvviz.cli import main
    from kvviz.evaluate.items import lines_of
    from kvviz.results.study import table_files

    text = "The keeper of the lighthouse wrote the code in the ledger. "
    items = [Item(f"i{d}", "t", text * (1 + d), "Which?", ("58213",)) for d in range(7)]
    (tmp_path / "items.jsonl").write_text(lines_of(items))
    full = {"method": "full", "budget": 1.0, "budget_name": "100%", "share": 1.0, "verdict": "wrong"}
    head = {"model": "m", "protocol": "question-aware", "task": "t", **full}
    rows = [{**head, "item": item.id, "document": item.id} for item in items]
    for name, data in table_files(rows).items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr("kvviz.models.load_model", lambda name: make_model("llama"))
    assert main(["claims", str(tmp_path), "--best-sets", "--markdown"]) == 0
    first = capsys.readouterr().out
    (line,) = [line for line in first.splitlines() if "cone condition" in line]
    assert line.count(" | ") == 6 and "[" in line and " heads" in line
    monkeypatch.setattr("kvviz.models.load_model", None)
    assert main(["claims", str(tmp_path), "--markdown"]) == 0
    assert capsys.readouterr().out == first
