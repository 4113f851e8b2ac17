"""Where the files beside the code lie: examples, stored runs, calibrated files, prose.

In a checkout they are `assets/` beside `kvviz/`; `pip install` puts them into `kvviz/assets/`.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def asset(*parts: str) -> Path:
    """Path of a file or folder below `assets/`; it need not exist."""
    installed = _HERE / "assets"
    return (installed if installed.is_dir() else _HERE.parent / "assets").joinpath(*parts)
