"""What the page needs besides Python: its scripts and styles, and plotly.js of the plotly package."""

from __future__ import annotations

from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
# One scope, in this order: each file uses names of the files above it.
SCRIPTS = (
    "core.js", "state.js", "plot.js", "plot_keys.js", "panel.js", "bar.js", "answers.js",
    "document.js", "kept.js", "why.js", "effect.js", "sweep.js", "tryit.js", "run.js",
    "exports.js", "tour.js", "main.js",
)  # fmt: skip


@cache
def script() -> str:
    """The page's own JavaScript, as one function body for `js_on_load`."""
    parts = [(STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(parts)


@cache
def style() -> str:
    """The page's style sheet, colours of the figures included."""
    from kvviz.figures.palette import css

    return css() + "\n" + (STATIC / "kvviz.css").read_text(encoding="utf-8")


def plotly_js() -> Path:
    """plotly.js as shipped with the installed plotly package: nothing is fetched from elsewhere."""
    import importlib.util

    spec = importlib.util.find_spec("plotly")
    return Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
