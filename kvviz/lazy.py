"""Torch at first use, so that the methods' rows can be listed (page, `kvviz methods`) without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        import torch

        value = getattr(torch, name)
        setattr(self, name, value)
        return value


if TYPE_CHECKING:
    import torch
else:
    torch = _Torch()

__all__ = ["torch"]
