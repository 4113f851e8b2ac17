"""What a model may run on here: the CPU, the GPUs of this machine, or a GPU that is lent by the call."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kvviz import memory

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
