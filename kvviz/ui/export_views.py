"""Files made of a run: the whole run, masks, report, Python lines."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.ui import assets
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run

KEEP_S = 900  # a file is fetched at once; later it is only in the way


class Exports:
    """A folder of files to fetch: made when it is needed, removed when the server ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()).resolve() / f"kvviz-exports-{secrets.token_urlsafe(12)}"
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)

    def view(self, run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
        """A text to save, or where a file can be fetched. Names are fixed, folders cannot be guessed."""
        kind = args.get("kind")
        if kind == "py":
            from kvviz.exports import python_lines

            return {"name": "kvviz-run.py", "type": "text/x-python", "text": python_lines(run.comparison)}
        if kind not in ("zip", "npz", "html"):
            raise InputError("There is no such export.")
        try:
            target = self._fresh() / f"kvviz-{'report' if kind == 'html' else 'run'}.{kind}"
            _write(run, chosen, kind, target)
        except OSError as error:
            raise InputError("The file could not be written on the server. Try again later.") from error
        return {"name": target.name, "path": str(target)}

    def _fresh(self) -> Path:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for old in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another visitor's request has just removed it
                if time.time() - old.stat().st_mtime > KEEP_S:
                    shutil.rmtree(old, ignore_errors=True)
        fresh = self.folder / secrets.token_urlsafe(12)
        fresh.mkdir()
        return fresh


def _write(run: Run, chosen: Chosen, kind: str, target: Path) -> None:
    c = run.comparison
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
