"""Shared comparisons for the tests of tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that tests can `import synthetic`

from synthetic import synthetic_comparison  # noqa: E402

__all__ = ["synthetic_comparison"]


@pytest.fixture(scope="session")
def run():
    """A small comparison that no test changes."""
    return synthetic_comparison()
