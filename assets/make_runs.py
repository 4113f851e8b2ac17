"""Remakes the stored example runs in assets/runs: `python assets/make_runs.py`. A test recomputes them."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kvviz.evaluate.stored import make  # noqa: E402
from kvviz.results.edits import report  # noqa: E402

if __name__ == "__main__":
    make(HERE / "runs", report)
