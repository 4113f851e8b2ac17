"""What a model may run on here: the CPU, the GPUs of this machine, or a GPU that is lent by the call."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from kvviz import memory
from kvviz.settings import settings

_LENT_BYTES = 48 * 10**9  # of the half of a GPU that ZeroGPU lends, where the Space does not say


def lent() -> bool:
    """Whether a GPU is lent by the call, to a process of its own: the main process must not touch CUDA."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


@dataclass(frozen=True)
class Room:
    """Memory for a model and its caches.

    gpu     it is that of one or more GPUs.
    bytes   of all of them together, None where the system does not say.
    half    the GPU computes in bfloat16; those before Ampere do not.
    """

    gpu: bool
    bytes: int | None
    half: bool = True

    @property
    def dtype(self) -> str:
        """What "auto" may come to and takes most memory."""
        return "bfloat16" if self.gpu and self.half else "float32"


def gpu_has_bfloat16() -> bool:
    """Whether the GPU here computes in bfloat16 itself."""
    import torch

    return torch.cuda.is_bf16_supported(including_emulation=False)


def room() -> Room:
    """The memory of this machine that decides which models fit."""
    if lent():  # the weights wait in the main process's memory until a GPU is there
        slice_ = int(os.environ.get("ZEROGPU_CUDA_TOTAL_MEMORY") or _LENT_BYTES)
        return Room(True, min(slice_, memory.total() or slice_))
    import torch

    if not torch.cuda.is_available():
        return Room(False, memory.total())
    gpus = range(torch.cuda.device_count())
    most = sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
    return Room(True, most, gpu_has_bfloat16())


def cpu_threads() -> int:
    """CPU threads for torch: KVVIZ_THREADS, else its own choice, but no more than a container is given: of a
    machine with 64 cores torch takes 32 also where it may use two, and these wait for each other."""
    import torch

    if settings().threads:
        return settings().threads
    chosen, given = torch.get_num_threads(), _cores_given(Path("/sys/fs/cgroup"))
    return chosen if given is None else min(chosen, max(1, math.ceil(given)))


def keep_threads_from_spinning(environ: MutableMapping[str, str]) -> None:
    """Let torch's threads sleep soon where they wait for each other, unless the user says how they wait.

    GNU's OpenMP has them spin 300,000 rounds at the end of every product. Where another program uses a core
    as well, the thread that all wait for is kept from running by those that wait (docs/speed.md). Read when
    torch is imported, so it comes before.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", "10000")


def _cores_given(group: Path) -> float | None:
    """The cores that a container may use at once on average, None without a bound."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)  # "max" where there is no bound
    with contextlib.suppress(OSError, ValueError):  # the older form, -1 where there is none
        quota, period = (
            (group / "cpu" / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else None
    return None
