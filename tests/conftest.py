"""Fixtures shared by all tests. `tiny.py` builds the models; import from it for a variation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():  # kernels run in Triton's interpreter; it must know before its import
    os.environ["TRITON_INTERPRET"] = "1"

from synthetic import synthetic_comparison
from tiny import FAMILIES, make_model, make_tokenizer

from kvviz.errors import ModelError
from kvviz.models import Model, load_model

# A busy machine is no fault of an example.
hypothesis.settings.register_profile("kvviz", deadline=None)
hypothesis.settings.load_profile("kvviz")

# One thread each where tests run side by side (tests/run.sh says so): more would wait for each other.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))


@pytest.fixture(scope="session", params=FAMILIES)
def tiny_model(request) -> Model:
    """A tiny model of each family in turn."""
    return make_model(request.param)


@pytest.fixture(scope="session")
def tiny_models() -> dict[str, Model]:
    """One tiny model a family, by family."""
    return {family: make_model(family) for family in FAMILIES}


@pytest.fixture(scope="session")
def tiny_llama() -> Model:
    return make_model("llama")


@pytest.fixture(scope="session")
def plain_tokenizer():
    """A tokenizer without chat template that puts a begin-of-text token in front by itself."""
    return make_tokenizer(template=None, adds_bos=True)


@pytest.fixture(scope="session")
def smollm() -> Model:
    """SmolLM2-135M-Instruct in float32 on the CPU; tests that use it carry the marker `slow`."""
    try:
        return load_model("smollm2-135m", dtype="float32", device="cpu")
    except ModelError as error:
        if "no network" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(scope="session")
def run():
    """A small made-up comparison that no test changes."""
    return synthetic_comparison()


@pytest.fixture(scope="session")
def installed(tmp_path_factory) -> Path:
    """A folder that holds what `pip install .` puts there, without its dependencies."""
    root, made = Path(__file__).resolve().parents[1], tmp_path_factory.mktemp("installed")
    source = made / "source"  # setuptools writes beside what it builds
    leave = shutil.ignore_patterns(".git", ".venv", "tests", "build", "*.egg-info", "__pycache__")
    shutil.copytree(root, source, ignore=leave)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={made}", str(source)]
    install = ["install", "--no-deps", "--no-index", f"--find-links={made}", f"--target={made / 'site'}"]
    for command in (wheel, [*install, "kvviz"]):
        done = subprocess.run([*pip, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    return made / "site"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Kernels in the interpreter take a minute: slow, marked before `-m` chooses; a full run has them."""
    for item in items:
        if item.path.parent.name == "kernels":
            item.add_marker(pytest.mark.slow)
