"""Replies to what the page asks, made beforehand: for a page saved as a file, and for a visit's first run."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from kvviz.errors import KvvizError
from kvviz.figures import FIGURES
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening
from kvviz.ui import chosen as selection
from kvviz.ui.openings import opening
from kvviz.ui.runs import Run, RunStore, stored_runs

Views = Mapping[str, tuple[str, ...]]  # {view: the fields of the selection that it reads}
ANSWER = ("a", "b", "budget")
OF_A_RUN: Views = {"meta": (), "text": (), "story": ()}
MOST_JOINED = 6  # tokens in a cell of a map, in a narrow window
# What the page asks beside its figures, by tab ("" = always), and the fields that each one reads.
_READS: dict[str, Views] = {
    "": {"cards": ANSWER, "turns": ANSWER, "finding": ANSWER,
         "document": (*ANSWER, "layer", "head", "grain")},
    "why": {"why_card": (*ANSWER, "tok", "layer", "head")},
    "cause": {"cause": ("a", "budget")},
}
_FIELDS = (*ANSWER, "tok", "layer", "head", "grain")
_SIDES = {row.id for row in FIGURES if row.sides}
_MAPS = {row.id for row in FIGURES if "range" in row.reads}


def figures(tab: str) -> Views:
    """{view: the fields it reads} of what a tab shows, "" for what stands on all of them."""
    rows = [row for row in FIGURES if row.tab == tab and not row.folded]
    reads = {row.id: tuple(f for f in row.reads if f in _FIELDS) for row in rows}
    return {**reads, **_READS.get(tab, {})}


def selected(c: Comparison, view: Opening) -> dict[str, Any]:
    """A view's selection as the page will send it: checked, its budget the nearest of the run's."""
    checked = selection.checked(asdict(view), c)
    return {"a": checked.a, "b": checked.b, "budget": c.share(checked.budget),
            "tok": None if checked.tok is None else list(checked.tok),
            "layer": checked.layer, "head": checked.head, "grain": checked.grain}  # fmt: skip


def replies(
    run: Run, sel: dict[str, Any], views: Views, columns: Sequence[int], seen: set[str]
) -> Iterator[dict[str, Any]]:
    """{view, side, columns, sel: the fields it reads, reply} of what is not yet in `seen`; maps in each of
    `columns`, in this order."""
    for name, reads in views.items():
        for side in ("a", "b") if name in _SIDES else (None,):
            for most in columns if name in _MAPS else (None,):
                one = {"view": name, "side": side, "columns": most, "sel": {f: sel[f] for f in reads}}
                key = json.dumps(one)
                if key in seen or (side == "b" and sel["b"] is None):
                    continue
                seen.add(key)
                reply = _reply(run, name, sel, side, most)
                if reply is not None:
                    yield {**one, "reply": reply}


def _reply(
    run: Run, name: str, sel: dict[str, Any], side: str | None, columns: int | None
) -> dict[str, Any] | None:
    """A view's reply as the page reads it, None where this run has none."""
    from kvviz.ui.views import VIEWS, map_range, register

    register()
    args: dict[str, Any] = {"by": "ab", "side": side, "columns": columns}
    shown = map_range(run.comparison)
    if columns and shown:
        args |= {"x0": shown[0], "x1": shown[1]}
    try:
        reply = VIEWS[name](run, selection.checked(sel, run.comparison), args)
    except KvvizError:
        return None
    return json.loads(orjson.dumps(reply, default=str, option=orjson.OPT_SERIALIZE_NUMPY))


_first: dict[Path, bytes] = {}  # one entry: the first stored run does not change while the page is served
_making = threading.Lock()


def first_replies(store: RunStore | None = None) -> bytes:
    """What the first stored run opens with, as JSON, its maps in all widths in which they differ.

    "[]" without such a run. A browser fetches it beside the scripts: the first picture waits for no question.
    """
    stored = stored_runs()
    if not stored:
        return b"[]"
    run_id, path = next(iter(stored.items()))
    with _making:
        if path not in _first:
            _first.clear()
            _first[path] = orjson.dumps(_of_first(store or RunStore(), run_id))
        return _first[path]


def _of_first(store: RunStore, run_id: str) -> list[dict[str, Any]]:
    try:
        run = store.get(run_id)
    except KvvizError:  # a broken file is named where it is opened
        return []
    c = run.comparison
    sel = selected(c, c.story.opening or opening(c))
    widths = sorted({math.ceil(c.n / joined) for joined in range(1, MOST_JOINED + 1)})
    views = {**OF_A_RUN, "story": ANSWER, **figures(""), **figures("kept")}  # its tour is about the selection
    return list(replies(run, sel, views, widths, set()))
