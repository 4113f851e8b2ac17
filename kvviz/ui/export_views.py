"""Files made of a run: the whole run, masks, report, Python lines."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.results import manifest
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening
from kvviz.ui import assets
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run

NAMES = {"zip": "kvviz-run.zip", "npz": "kvviz-run.npz", "html": "kvviz-report.html",
         "page": "kvviz-page.html"}  # fmt: skip
KEEP_S = 900  # a file is fetched at once; later it is only in the way


class Exports:
    """A folder of files to fetch: made when it is needed, removed when the server ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()).resolve() / f"kvviz-exports-{secrets.token_urlsafe(12)}"
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)

    def view(self, run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
        """A text to save, or where a file can be fetched. Names are fixed, folders cannot be guessed."""
        kind = str(args.get("kind"))
        if kind == "py":
            from kvviz.exports import python_lines

            return {"name": "kvviz-run.py", "type": "text/x-python", "text": python_lines(run.comparison)}
        if kind not in NAMES:
            raise InputError("There is no such export.")
        try:
            target = self._fresh() / NAMES[kind]
            _write(with_steps(run.comparison, args), chosen, kind, target)
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


def with_steps(c: Comparison, args: dict[str, Any]) -> Comparison:
    """The run with the story that the page tells of it, where it tells one."""
    if args.get("steps") is None:
        return c
    try:
        steps = manifest.steps(args["steps"], c.model, len(c.prompt.input_ids))
    except (KeyError, TypeError, ValueError):
        raise InputError("A step of this story does not fit the run. Delete it, then save again.") from None
    return replace(c, story=replace(c.story, steps=steps))


def _write(c: Comparison, chosen: Chosen, kind: str, target: Path) -> None:
    if kind == "zip":
        c.save(target)
    elif kind == "npz":
        from kvviz.exports import masks_npz

        target.write_bytes(masks_npz(c))
    elif kind == "page":
        from kvviz.ui.saved_page import page_html

        view = Opening(chosen.a, chosen.b, c.share(chosen.budget), chosen.tok, chosen.layer, chosen.head,
                       chosen.grain)  # fmt: skip
        target.write_text(page_html(c, view), encoding="utf-8")
    else:
        from kvviz.exports import report_html

        plotly = assets.plotly_js()
        report = report_html(c, plotly, chosen.a, chosen.b, chosen.budget)
        target.write_text(report, encoding="utf-8")
