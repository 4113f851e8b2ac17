"""How many threads torch computes on, and how they wait for each other."""

import os
import subprocess
import sys

import pytest
import torch

from kvviz import hardware
from kvviz.hardware import cpu_threads, keep_threads_from_spinning


def group(folder, **files):
    for name, text in files.items():
        file = folder / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, None),
        ({"cpu_dot_max": "max 100000\n"}, None),
        ({"cpu_dot_max": "200000 100000\n"}, 2.0),
        ({"cpu_dot_max": "50000 100000\n"}, 0.5),
        ({"cpu__cpu_dot_cfs_quota_us": "150000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, 1.5),
        ({"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, None),
        ({"cpu_dot_max": "what\n"}, None),
    ],
)
def test_what_a_container_is_given_is_read(tmp_path, files, cores):
    assert hardware._cores_given(group(tmp_path, **files)) == cores


@pytest.mark.parametrize("given, threads", [(None, 8), (64.0, 8), (2.0, 2), (1.5, 2), (0.5, 1)])
def test_torch_takes_no_more_threads_than_a_container_is_given(monkeypatch, given, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(hardware, "_cores_given", lambda group: given)
    assert cpu_threads() == threads
    monkeypatch.setenv("KVVIZ_THREADS", "3")
    assert cpu_threads() == 3


@pytest.mark.slow
def test_a_model_computes_on_the_threads_that_are_asked_for(monkeypatch):
    import kvviz

    before = torch.get_num_threads()
    monkeypatch.setenv("KVVIZ_THREADS", str(before + 1))
    try:
        kvviz.load_model("smollm2-135m")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_threads_wait_as_the_user_says():
    keep_threads_from_spinning(unsaid := {})
    assert unsaid == {"GOMP_SPINCOUNT": "10000"}
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        keep_threads_from_spinning(environ := dict(said))
        assert environ == said


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU's OpenMP on Linux only")
def test_threads_of_a_server_sleep_soon():
    environ = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    served = "import kvviz.ui, kvviz.cli; kvviz.ui.launch = lambda **at: __import__('torch')"
    done = subprocess.run(
        [sys.executable, "-c", f"{served}; raise SystemExit(kvviz.cli.main(['serve']))"],
        env={**environ, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr
