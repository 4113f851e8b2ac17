"""The sweeps that come along as examples: whole, small, and of what they say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from kvviz.evaluate.items import read_items
from kvviz.resources import asset
from kvviz.results.plots import plots
from kvviz.results.study import BEST_SETS, read_table

STORED = sorted(path for path in asset("sweeps").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", STORED, ids=lambda path: path.name)
def test_a_stored_sweep_is_whole(folder):
    assert {path.name for path in folder.iterdir()} - {BEST_SETS} == {
        "items.jsonl", "manifest.json", "predictions.jsonl", "table.parquet",
    }  # fmt: skip
    assert all(path.stat().st_size < 360_000 for path in folder.iterdir())
    table, items = read_table(folder), read_items(folder / "items.jsonl")
    manifest = json.loads((folder / "manifest.json").read_text())
    ask = manifest["settings"]["ask"]
    assert len(table) == len(items) * (1 + len(ask["methods"]) * len(ask["budgets"]))
    assert set(table["item"]) == {item.id for item in items} and len(items) == manifest["items"]
    assert set(table.protocol) == {manifest["settings"]["protocol"]} and table.reason.eq("").all()
    answers = [json.loads(line)["answer"] for line in (folder / "predictions.jsonl").open()]
    assert answers == list(table.answer)
    (plot,) = plots(table, "kl-budget")
    assert len(plot.rows) == len(ask["methods"]) * len(ask["budgets"])


def test_the_documents_that_come_along_are_the_ones_that_were_measured():
    stored = read_items(asset("sweeps", "documents", "items.jsonl"))
    assert stored == read_items("task:documents", tokenizer=0)


def test_the_claims_in_the_documentation_are_those_of_the_stored_sweep():
    docs = Path(__file__).resolve().parents[2] / "docs"
    spec = importlib.util.spec_from_file_location("make_claims", docs / "make_claims.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.section(asset("sweeps", "papers")) in (docs / "results.md").read_text(encoding="utf-8")
