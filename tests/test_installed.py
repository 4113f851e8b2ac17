"""What `pip install .` gives, from an empty folder: all data, the command line, a stored run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


def run(installed: Path, empty: Path, *command: str) -> str:
    """Standard output of Python with the installed package on its path and nothing of the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, *command], cwd=empty, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def files(folder: Path, *but: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and path.relative_to(folder).parts[0] not in but
    }


def test_every_data_file_is_installed_and_no_script(installed):
    assets = {name for name in files(ROOT / "assets", "screenshots") if not name.startswith("make_")}
    assert files(installed / "kvviz" / "assets") == assets
    assert files(installed / "kvviz" / "kernels") == files(ROOT / "kernels")
    code = files(installed / "kvviz", "assets", "kernels")
    assert code == files(ROOT / "kvviz")
    assert {Path(name).suffix for name in code} >= {".js", ".css"}


def test_the_methods_are_listed(installed, tmp_path):
    assert "dropkv" in run(installed, tmp_path, "-m", "kvviz", "methods")


def test_examples_artefacts_texts_and_runs_are_found(installed, tmp_path):
    code = """
import kvviz
from kvviz.calibrate.texts import Texts
from kvviz.evaluate.examples import examples
from kvviz.evaluate.needles import _prose
from kvviz.methods import artefacts
from kvviz.resources import asset
c = kvviz.load_comparison(next(iter(sorted(asset("runs").glob("*.zip")))))
print(kvviz.__file__, len(c.variants), len(examples()), len(Texts().files), len(_prose(2)),
      len(list(artefacts.SHIPPED.rglob("*.safetensors"))))
"""
    place, *counts = run(installed, tmp_path, "-c", code).split()
    assert place.startswith(str(installed))
    assert [int(count) > 0 for count in counts] == [True] * 5


def test_the_stored_sweeps_open(installed, tmp_path):
    code = """
from kvviz.ui.sweeps import SweepStore, stored_sweeps
print(*(f"{key} {bool(SweepStore().get(key).nbytes)}" for key in sorted(stored_sweeps())))
"""
    opened = run(installed, tmp_path, "-c", code).split()
    assert "stored-papers" in opened[::2] and set(opened[1::2]) == {"True"}
    assert len(opened) == 2 * len([path for path in (ROOT / "assets" / "sweeps").iterdir() if path.is_dir()])


def test_a_stored_run_is_exported_as_a_page(installed, tmp_path):
    stored = sorted((installed / "kvviz" / "assets" / "runs").glob("*.zip"))[0]
    run(installed, tmp_path, "-m", "kvviz", "export", str(stored), "--html", "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "savedServer(" in page and "58213" in page


def test_benchmarks_ask_for_a_checkout(installed, tmp_path):
    command = [sys.executable, "-m", "kvviz", "bench", "growth"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "kvviz: The benchmarks are not installed with kvviz: run them from a checkout.\n"
