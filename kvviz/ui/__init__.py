"""The web page. `build_app()` makes it, `launch()` serves it; nothing here holds logic of its own."""

from importlib import import_module
from typing import Any

__all__ = ["build_app", "launch"]


def __getattr__(name: str) -> Any:
    """Imported at first use: a page that is saved as a file needs no server."""
    if name not in __all__:
        raise AttributeError(f"module 'kvviz.ui' has no attribute {name!r}")
    return getattr(import_module("kvviz.ui.app"), name)
