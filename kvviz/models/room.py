"""Whether memory and disk hold a model, and what is said where they do not."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from kvviz import memory
from kvviz.errors import ModelError

NO_MEMORY = "There is not enough memory to load {id}; choose a smaller model."


def check_memory(id: str, needed: int, device: Any = None) -> None:
    """ModelError where loading takes more bytes of memory than there are where the model goes (None: the
    machine's memory; several GPUs count together)."""
    free = memory.available() if device is None else memory.free_for(device)
    if free is not None and needed > free:
        raise ModelError(
            f"{id} takes about {needed / 1e9:,.1f} GB of memory once its weights are unpacked, and "
            f"{max(0, free) / 1e9:,.1f} GB are free; choose a smaller model, or bfloat16."
        )


def disk_is_full(error: BaseException) -> bool:
    """Whether Python or the writer of safetensors says so."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in codes or any(f"os error {c}" in str(error) for c in codes)


def no_space(id: str, cache: Path) -> str:
    """The sentence where a cache folder is too small for the weights of a model."""
    return (
        f"There is not enough space in {cache} for the weights of {id}. Free some, or set "
        "KVVIZ_CACHE to another folder."
    )
