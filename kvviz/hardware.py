"""What a model may run on here: the CPU, the GPUs of this machine, or a GPU that is lent by the call."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kvviz import memory

# Of the slice of a GPU that ZeroGPU lends, where the Space does not say another size.
_LENT_BYTES = 74_625_056_768


def lent() -> bool:
    """Whether a GPU is lent by the call, to a process of its own: the main process must not touch CUDA."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


@dataclass(frozen=True)
class Room:
    """Memory for a model and its caches.

    gpu     it is that of one or more GPUs.
    bytes   of all of them together, None where the system does not say.
    """

    gpu: bool
    bytes: int | None

    @property
    def dtype(self) -> str:
        """What "auto" may come to and takes most memory: GPUs compute in 16 bits."""
        return "bfloat16" if self.gpu else "float32"


def room() -> Room:
    """The memory of this machine that decides which models fit."""
    if lent():  # the weights wait in the main process's memory until a GPU is there
        slice_ = int(os.environ.get("ZEROGPU_CUDA_TOTAL_MEMORY") or _LENT_BYTES)
        return Room(True, min(slice_, memory.total() or slice_))
    import torch

    if not torch.cuda.is_available():
        return Room(False, memory.total())
    gpus = range(torch.cuda.device_count())
    return Room(True, sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus))
