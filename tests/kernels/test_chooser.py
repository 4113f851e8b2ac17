"""Which implementation runs, and that neither Triton nor a package called `kernels` gets in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvviz import kernels
from kvviz.errors import KvvizError

ROOT = Path(__file__).resolve().parents[2]
USE = (
    "import torch; from kvviz import kernels; k = torch.ones(1, 4, 64); "
    "kernels.window_pass(k[:, :1], k, k, 0.1, 3); print(kernels.last_used()['window_pass']); "
)


def run(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "KVVIZ_KERNELS")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean | {"CUDA_VISIBLE_DEVICES": ""} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_cpu_takes_the_twin_and_imports_no_triton():
    assert run(USE + "import sys; print('triton' in sys.modules)").split() == ["torch", "False"]


def test_import_alone_brings_no_triton():
    code = "import sys, kvviz.kernels; print(any(m.partition('.')[0] == 'triton' for m in sys.modules))"
    assert run(code) == "False"


def test_absent_triton_is_no_error():
    assert run("import sys; sys.modules['triton'] = None; " + USE, KVVIZ_KERNELS="triton") == "torch"


def test_a_foreign_package_called_kernels_does_not_matter(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("FOREIGN = True\n")
    code = USE + "import kernels as theirs; print(theirs.FOREIGN, kernels.window.__name__)"
    found = run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", PYTHONSAFEPATH="1")
    assert found.split() == ["torch", "True", "kvviz.kernels.window"]
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_installed_layout_finds_the_folder_inside_the_package(tmp_path):
    """As pyproject maps it: kvviz/kernels.py beside kvviz/kernels/, which has no __init__.py."""
    package = tmp_path / "kvviz"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("kernels.py", "errors.py"):
        (package / name).write_text((ROOT / "kvviz" / name).read_text())
    (package / "kernels").mkdir()
    for file in (ROOT / "kernels").glob("*.py"):
        (package / "kernels" / file.name).write_text(file.read_text())
    code = USE + "print(kernels.window.__file__)"
    found = run(code, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH="1")
    assert found.split() == ["torch", str(package / "kernels" / "window.py")]


def test_a_wish_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("KVVIZ_KERNELS", "cuda")
    with pytest.raises(KvvizError, match="KVVIZ_KERNELS is 'cuda'; it can be 'auto', 'triton' or 'torch'"):
        kernels.value_norms(torch.ones(1, 2, 64), torch.ones(1, 64, 8))


@pytest.mark.parametrize(
    "change",
    [lambda t: t.double(), lambda t: torch.ones(1, 4, 320), lambda t: t[:, :0]],
    ids=["float64", "head size 320", "no keys"],
)
def test_what_the_kernels_do_not_take_goes_to_the_twin(change, monkeypatch):
    monkeypatch.setenv("KVVIZ_KERNELS", "triton")
    keys = change(torch.ones(1, 4, 64))
    kernels.gather_rows(keys, keys, torch.ones(keys.shape[:2], dtype=torch.bool))
    assert kernels.last_used()["gather_rows"] == "torch"


def test_a_kernel_that_does_not_build_is_replaced_once_and_said(monkeypatch):
    """On a GPU machine without a C compiler the app goes on in plain torch."""
    pytest.importorskip("triton")
    from kvviz.kernels import norms_triton

    def broken(*args):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(norms_triton, "value_norms", broken)
    monkeypatch.setattr(kernels, "choose", lambda operation, *_: "triton")
    monkeypatch.setattr(kernels, "_broken", set())
    monkeypatch.delenv("KVVIZ_KERNELS", raising=False)
    values, w_o = torch.ones(1, 2, 64), torch.ones(1, 64, 8)
    with pytest.warns(UserWarning, match="value_norms does not run here .*no C compiler"):
        assert (kernels.value_norms(values, w_o) == 512).all()
    assert kernels.last_used()["value_norms"] == "torch"
    monkeypatch.setenv("KVVIZ_KERNELS", "triton")
    monkeypatch.setattr(kernels, "_broken", set())
    with pytest.raises(RuntimeError, match="no C compiler"):
        kernels.value_norms(values, w_o)
