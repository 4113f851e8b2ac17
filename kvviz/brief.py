"""How a value shows itself where a person looks at it: a few lines, whatever it holds."""

from __future__ import annotations

import textwrap
from dataclasses import MISSING, Field, fields
from typing import Any

WIDTH = 100
_HELD = "\0"  # a space at which no line ends
MOST_TEXT = 60  # characters of a text or of a list


def brief(value: Any) -> str:
    """The repr of a dataclass: arrays by type and shape, lists by their length, texts by their beginning.

    Fields that hold their default are left out.
    """
    told = [f"{f.name}={_short(getattr(value, f.name))}" for f in fields(value) if f.repr and _says(value, f)]
    text = f"{type(value).__name__}({', '.join(one.replace(' ', _HELD) for one in told)})"
    lines = textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False,
                          break_on_hyphens=False)  # fmt: skip
    return "\n".join(lines).replace(_HELD, " ")


def _says(value: Any, f: Field) -> bool:
    held = getattr(value, f.name)
    if f.default is not MISSING:
        return held is not f.default and not (_plain(held) and held == f.default)
    return f.default_factory is MISSING or not _plain(held) or held != f.default_factory()


def _plain(held: Any) -> bool:
    """Whether comparing it with its default is cheap and says yes or no: arrays do not."""
    return held is None or isinstance(held, str | int | float) or (hasattr(held, "__len__") and not len(held))


def _short(held: Any) -> str:
    if hasattr(held, "shape") and hasattr(held, "dtype"):
        return f"{str(held.dtype).removeprefix('torch.')} {list(held.shape)}"
    if isinstance(held, str):
        return repr(held if len(held) <= MOST_TEXT else held[: MOST_TEXT - 1] + "…")
    if held is None or isinstance(held, int | float):
        return repr(held)
    if isinstance(held, dict):
        names = ", ".join(map(str, held))
        return f"{{{names}}}" if len(names) <= MOST_TEXT else f"{{{len(held)} items}}"
    if isinstance(held, list | tuple | set | frozenset):
        return _several(held)
    return type(held).__name__


def _several(held: Any) -> str:
    if not held:
        return "none"
    first = next(iter(held))
    if all(one is None or isinstance(one, int | float) for one in held):
        text = ", ".join(map(repr, held)) if len(held) <= MOST_TEXT // 2 else ""
        return f"[{text}]" if text and len(text) <= MOST_TEXT else f"[{len(held)} numbers]"
    kind = _short(first) if hasattr(first, "shape") else type(first).__name__
    return f"[{len(held)} x {kind}]"
