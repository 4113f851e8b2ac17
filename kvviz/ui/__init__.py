"""The web page. `build_app()` makes it, `launch()` serves it; nothing here holds logic of its own."""

from kvviz.ui.app import build_app, launch

__all__ = ["build_app", "launch"]
