"""Fixtures of the page's handler tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def shipped():
    """The stored runs and sweeps of the package, also where a browser test of this process serves others."""
    from kvviz.resources import asset
    from kvviz.ui import runs, sweeps

    others = runs.STORED, sweeps.STORED
    runs.STORED, sweeps.STORED = asset("runs"), asset("sweeps")
    yield
    runs.STORED, sweeps.STORED = others


@pytest.fixture
def comparison():
    from synthetic import synthetic_comparison, with_findings

    return with_findings(synthetic_comparison(n=200, L=4))


@pytest.fixture
def store(tmp_path, monkeypatch, comparison):
    """A run store over a folder with one stored run, "stored-example"."""
    from kvviz.ui import runs

    comparison.save(tmp_path / "example.zip")
    monkeypatch.setattr(runs, "STORED", tmp_path)
    return runs.RunStore()
