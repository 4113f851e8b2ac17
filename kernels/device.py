"""What the Triton files share: the device they run on, launch sizes, ahead-of-time builds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

LOG2E = math.log2(math.e)
CAPABILITIES = (75, 80, 86, 89, 90)  # Turing, Ampere, Ampere consumer, Ada, Hopper
SHARED_LIMIT = {  # bytes a block
    75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 120: 101_376,
}  # fmt: skip
WIDE_HEAD = 128  # head sizes above have tiles of their own
MOST_SPLITS = 64
FEWEST_TILES = 4  # a split walks at least this many key tiles


@dataclass(frozen=True)
class Device:
    """Compute capability (75 for 7.5), multiprocessors, and whether the Triton interpreter stands in."""

    capability: int
    multiprocessors: int
    interpreted: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> Device:
        if tensor.device.type != "cuda":
            return Device(90, 2, interpreted=True)
        return _cuda_device(tensor.device.index or 0)

    @property
    def tensor_cores(self) -> bool:
        """Triton drives tensor cores from 8.0 on; before that a dot is fused multiply-adds."""
        return self.capability >= 80

    @property
    def tiled_as(self) -> int:
        """The capability whose tiles it takes: an RTX Blackwell has the shared memory and the way to
        multiply of Ada, not those of Hopper."""
        return 89 if self.capability >= 120 else self.capability

    def dot(self, dtype: torch.dtype | str, head_dim: int) -> dict[str, Any]:
        """How `tl.dot` is to multiply: float32 in three TF32 products, which keep float32's digits.

        Wide float32 heads use fused multiply-adds instead: splitting their operands would spill
        registers. The interpreter rounds some bfloat16 products wrongly, so there operands are widened.
        """
        narrow = dtype in (torch.bfloat16, torch.float16, "bf16", "fp16")
        plain = not self.tensor_cores or self.interpreted or (not narrow and head_dim > WIDE_HEAD)
        return {"PRECISION": "ieee" if plain else "tf32x3", "UPCAST": self.interpreted and narrow}


@lru_cache
def _cuda_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    capability = properties.major * 10 + properties.minor
    return Device(capability, properties.multi_processor_count)


def score_fits(device: Device, kind: str, itemsize: int, head_dim: int) -> bool:
    """False where every tile size of the score pass would spill: wide heads without 16-bit products."""
    narrow = itemsize == 2 and device.tensor_cores
    return head_dim <= WIDE_HEAD or narrow or kind in ("mean", "square")


def pad(size: int) -> int:
    """The power of two that holds `size`, at least 16: the smallest side of a `tl.dot` tile."""
    return max(16, 1 << (size - 1).bit_length())


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself when its last dimension is contiguous, else a copy: kernels take other strides."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def splits_for(
    device: Device, keys: int, tile: int, programs: int, forced: int | None = None
) -> tuple[int, int]:
    """(splits, keys a split): enough programs to fill the device twice, each with some tiles to walk."""
    all_tiles = max(1, -(-keys // tile))
    wanted = forced or min(MOST_SPLITS, -(-2 * device.multiprocessors // programs), all_tiles // FEWEST_TILES)
    per_split = -(-all_tiles // max(1, wanted))
    return -(-all_tiles // per_split), per_split * tile


@dataclass(frozen=True)
class Build:
    """One kernel compiled ahead of time: the inputs of `triton.compile`."""

    name: str
    variant: str
    capability: int
    source: Any
    options: dict[str, int]


def build(
    name: str,
    function: Callable,
    device: Device,
    dtype: str,
    pointers: dict[str, str],
    constants: dict[str, Any],
    sizes: dict[str, int],
) -> Build:
    """Describe one build. Pointers default to float32, other arguments to 32-bit integers.

    Sizes and strides are assumed to be multiples of 16, as they nearly always are: that is the build
    with the widest loads and therefore the most registers.
    """
    from triton.compiler import ASTSource

    constants = constants | {k: v for k, v in sizes.items() if not k.startswith("num_")}
    dot = device.dot(dtype, constants["HEAD_DIM"])
    constants |= {k: v for k, v in dot.items() if k in function.arg_names and k not in constants}
    signature, aligned = {}, {}
    for index, argument in enumerate(function.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument.endswith("_ptr"):
            signature[argument] = "*" + pointers.get(argument, "fp32")
            aligned[(index,)] = [["tt.divisibility", 16]]
        elif argument in ("scale", "epsilon", "threshold"):
            signature[argument] = "fp32"
        else:
            signature[argument] = "i32"
            if argument.endswith("_stride"):
                aligned[(index,)] = [["tt.divisibility", 16]]
    given = ", ".join(f"{k}={v}" for k, v in constants.items() if k not in ("PRECISION", "UPCAST"))
    options = {k: v for k, v in sizes.items() if k.startswith("num_")}
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    return Build(name, f"{dtype}, {given}", device.capability, source, options)
