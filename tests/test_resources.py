"""How torch's threads wait for each other."""

import os
import subprocess
import sys

import pytest

from kvviz.resources import keep_threads_from_spinning


def test_threads_wait_as_the_user_says():
    keep_threads_from_spinning(unsaid := {})
    assert unsaid == {"GOMP_SPINCOUNT": "1000"}
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        keep_threads_from_spinning(environ := dict(said))
        assert environ == said


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU's OpenMP on Linux only")
def test_torch_reads_it_whatever_of_kvviz_is_imported_first():
    environ = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", "import kvviz.errors, torch"],
        env={**environ, "OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
