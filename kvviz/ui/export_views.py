"""Files made of a run: the whole run, masks, report, Python lines."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.ui import assets
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run
from kvviz.ui.views import view

KEEP_S = 900  # a file is fetched at once; later it is only in the way


@view("export")
def export(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """A text to save, or the path of a file to fetch. Names are fixed, folders cannot be guessed."""
    c, kind = run.comparison, args.get("kind")
    if kind == "py":
        from kvviz.exports import python_lines

        return {"name": "kvviz-run.py", "type": "text/x-python", "text": python_lines(c)}
    if kind not in ("zip", "npz", "html"):
        raise InputError("There is no such export.")
    target = _fresh(args["files"]) / f"kvviz-{'report' if kind == 'html' else 'run'}.{kind}"
    if kind == "zip":
        c.save(target)
    elif kind == "npz":
        from kvviz.exports import masks_npz

        target.write_bytes(masks_npz(c))
    else:
        from kvviz.exports import report_html

        plotly = assets.plotly_js().read_text(encoding="utf-8")
        report = report_html(c, plotly, chosen.a, chosen.b, chosen.budget)
        target.write_text(report, encoding="utf-8")
    return {"name": target.name, "path": str(target)}


def _fresh(files: Path) -> Path:
    for old in files.iterdir():
        if time.time() - old.stat().st_mtime > KEEP_S:
            shutil.rmtree(old, ignore_errors=True)
    folder = files / secrets.token_urlsafe(12)
    folder.mkdir()
    return folder
