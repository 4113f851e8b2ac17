"""How much memory the machine has, how much is left, and giving freed memory back."""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
from pathlib import Path
from typing import Any

TOO_LITTLE = "There is not enough memory for this. Fewer budgets, a shorter text or a smaller model may fit."


def total() -> int | None:
    """Bytes of memory this process may use in all, None where the system does not say."""
    return _least(_meminfo("MemTotal"), _number("/sys/fs/cgroup/memory.max"))


def available() -> int | None:
    """Bytes that can still be taken, None where the system does not say."""
    most, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    group = None if most is None or used is None else most - used
    return _least(_meminfo("MemAvailable"), group, _address_space())


def free_for(device: Any) -> int | None:
    """Bytes that can still be taken where a model on this torch device computes."""
    if device.type != "cuda":
        return available()
    import torch

    return sum(torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count()))


def ran_out(error: BaseException) -> bool:
    """Whether this is memory that could not be had: Python's, numpy's or torch's way to say it."""
    words = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in words or "allocate memory" in words


def give_back() -> None:
    """Return freed memory to the system: the C library keeps it otherwise, in pieces."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        ctypes.CDLL(ctypes.util.find_library("c")).malloc_trim(0)


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


def _meminfo(name: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _address_space() -> int | None:
    """Bytes left under `ulimit -v`, None without one."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit on Windows
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            return most - pages * resource.getpagesize()
    return None


def _number(path: str) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no bound
        return int(Path(path).read_text(encoding="ascii"))
    return None
