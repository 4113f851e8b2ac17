"""How much memory there is: the least of what machine, group and limit leave."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvviz import memory

ROOT = Path(__file__).resolve().parents[1]


def test_a_limit_on_the_address_space_counts():
    code = (
        "import resource\n"
        "from kvviz import memory\n"
        "before = memory.available()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "print(before > memory.available(), 0 < memory.available() < 2**30)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("Unable to allocate 640. MiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA out of memory."), True),
        (RuntimeError("shapes cannot be multiplied"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(error, said):
    assert memory.ran_out(error) is said
