"""A stored run or sweep is looked at without torch: every view answers, nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvviz.ui.runs import stored_runs

CODE = """
import sys
from kvviz.ui.export_views import Exports
from kvviz.ui.runs import RunStore
from kvviz.ui.views import VIEWS, answer
import kvviz.ui.figure_views, kvviz.ui.story_views
store = RunStore()
sel = {"a": "snapkv", "b": "dropkv", "budget": 0.1, "tok": [124, 129], "layer": 3, "head": 1}
for view in [*VIEWS, "export"]:
    args = {"kind": "npz"} if view == "export" else {}
    reply = answer(store, Exports(), {"view": view, "run": sys.argv[1], "sel": sel, "args": args})
    assert "could not be drawn" not in str(reply.get("error")), (view, reply)
print(len(VIEWS), sorted({"torch", "transformers", "triton"} & set(sys.modules)))
"""


SWEEP = """
import sys
from kvviz.ui.evidence import Evidence
from kvviz.ui.runs import RunStore
from kvviz.ui.sweeps import listed
page = Evidence(RunStore())
for sweep in listed():
    ask = {"run": sweep["id"], "sel": {}}
    item = next(iter(page.sweeps.get(sweep["id"]).items))
    for view in page._views:
        reply = page.answer({"view": view, **ask, "args": {"item": item}})
        assert "could not be drawn" not in str(reply.get("error")), (view, reply)
print(len(page._views), sorted({"torch", "transformers", "triton"} & set(sys.modules)))
"""


def test_every_view_of_a_stored_run_comes_without_torch():
    assert views_without_torch(CODE, next(iter(stored_runs()))) > 10


def test_every_view_of_the_stored_sweeps_comes_without_torch():
    assert views_without_torch(SWEEP) > 8


def views_without_torch(code: str, *given: str) -> int:
    """How many views answered in a process of their own."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    views, heavy = done.stdout.split(" ", 1)
    assert heavy.strip() == "[]"
    return int(views)
