"""How much memory there is: the least of what machine, group and limit leave."""

import platform
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives memory back by itself")
def test_memory_in_pieces_is_given_back():
    """Of 64 MB in pieces every tenth stays: freed pieces between them are kept by the C library."""
    code = (
        "from pathlib import Path\n"
        "from kvviz import memory\n"
        "def resident(): return int(Path('/proc/self/statm').read_text().split()[1]) * 4096\n"
        "pieces = [bytearray(b'x' * 64_000) for _ in range(1000)]\n"
        "pieces = pieces[::10]\n"
        "before = resident()\n"
        "memory.give_back()\n"
        "print(before - resident() > 30e6)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True\n", done.stderr
