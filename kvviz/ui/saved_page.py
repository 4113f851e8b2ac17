"""The page of one run as one file that needs neither server nor network: modules, plotly.js, and the replies
to what a story asks."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import orjson

from kvviz.errors import InputError, KvvizError
from kvviz.figures import FIGURES
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening, Step
from kvviz.ui import assets
from kvviz.ui import chosen as selection
from kvviz.ui.openings import opening
from kvviz.ui.runs import Run

COLUMNS = (260, 600)  # of a map: for a phone and for a wide screen
TABS = ("kept", "why", "cause", "effect", "sweep", "steps")  # what a finished run alone can show
MOST_PLAYED = 20_000  # tokens up to which the file holds every stop of the slider
_ANSWER = ("a", "b", "budget")
# What the page asks beside its figures, by tab ("" = always), and the fields that each one reads.
_READS: dict[str, dict[str, tuple[str, ...]]] = {
    "": {"cards": _ANSWER, "turns": _ANSWER, "finding": _ANSWER,
         "document": (*_ANSWER, "layer", "head", "grain")},
    "why": {"why_card": (*_ANSWER, "tok", "layer", "head")},
    "cause": {"cause": ("a", "budget")},
}
_FIELDS = (*_ANSWER, "tok", "layer", "head", "grain")
_SIDES = {row.id for row in FIGURES if row.sides}
_MAPS = {row.id for row in FIGURES if "range" in row.reads}


def page_html(c: Comparison, view: Opening | None = None) -> str:
    """The page of a run with its story. It opens on the first step, without a story on `view`, or where the
    run itself opens.

    What neither the story nor that view shows is not in the file, and the page leaves it out.
    """
    if not c.methods:
        raise InputError("This run has no answer besides the full cache's: there is nothing to show.")
    steps = c.story.steps
    first = steps[0].view if steps else view or c.story.opening or opening(c)
    c = replace(c, story=replace(c.story, opening=first))
    title = c.story.title or f"kvviz: {c.model.id}"
    run = Run("saved", c, "file", title)
    replies = list(_replies(run, first, steps))
    tabs = [tab for tab in TABS if any(one["view"] in _figures(tab) for one in replies)]
    boot = {"stored": [{"id": run.id, "title": title}], "methods": {}, "tabs": tabs}
    whole = any(assets.WHOLE_ONLY in one["reply"].get("figure", "") for one in replies)
    library = assets.plotly_js() if whole else assets.small_plotly_js()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{assets.style()}</style></head>\n"
        '<body class="kv-saved"><div class="gradio-container"><main><div id="kv-head" class="kv"></div>'
        '<div id="kv-app" class="kv" aria-busy="true"></div></main></div>\n'
        f'<script id="plotly">{{const module = {{exports: {{}}}};\n{_code(library)}\n'
        "window.kvPlotly = module.exports;}</script>\n"
        f'<script type="application/json" id="boot">{_inert(boot)}</script>\n'
        f'<script type="application/json" id="replies">{_inert(replies)}</script>\n'
        f'<script type="module">{_code(assets.page_js())}{_START}</script>\n</body></html>\n'
    )


_START = """
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.body.classList.toggle('dark', dark.matches);
follow();
dark.addEventListener('change', follow);
const text = id => document.getElementById(id).textContent;
start({element: document, props: {boot: text('boot')}, trigger: () => {}, offline: true,
  server: modules['lib/saved.js'].savedServer(JSON.parse(text('replies')))});
"""


def _code(source: str) -> str:
    """A script that may stand inside a <script>: the end tag occurs in it in texts only."""
    return source.replace("</script", "<\\/script")


def _inert(value: Any) -> str:
    """JSON that may stand inside a <script>, whatever the texts in it are."""
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _figures(tab: str) -> dict[str, tuple[str, ...]]:
    """{view: the fields it reads} of what a tab shows."""
    rows = [row for row in FIGURES if row.tab == tab and not row.folded]
    reads = {row.id: tuple(f for f in row.reads if f in _FIELDS) for row in rows}
    return {**reads, **_READS.get(tab, {})}


def _replies(run: Run, first: Opening, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """What the page will ask, each once, with its reply as the page reads it."""
    c = run.comparison
    seen: set[str] = set()

    def asked(sel: dict[str, Any], views: dict[str, tuple[str, ...]]) -> Iterator[dict[str, Any]]:
        for name, reads in views.items():
            for side in ("a", "b") if name in _SIDES else (None,):
                for columns in COLUMNS if name in _MAPS else (None,):
                    one = {"view": name, "side": side, "columns": columns, "sel": {f: sel[f] for f in reads}}
                    key = json.dumps(one)
                    if key in seen or (side == "b" and sel["b"] is None):
                        continue
                    seen.add(key)
                    reply = _reply(run, name, sel, side, columns)
                    if reply is not None:
                        yield {**one, "reply": reply}

    sel = _selection(c, first)
    yield from asked(sel, {"meta": (), "text": (), "story": ()})
    for tab in ("", *TABS):
        yield from asked(sel, _figures(tab) if tab else _READS[""])
    for step in steps:
        at = _selection(c, step.view)
        yield from asked(at, {**_READS[""], **_figures(step.shows)})
    played = [sel, *(_selection(c, step.view) for step in steps if step.shows == "budget")]
    for sel, budget in itertools.product(played, selection.steps(c) if c.n <= MOST_PLAYED else []):
        yield from asked({**sel, "budget": c.share(budget)}, {**_READS[""], "kept": (*_ANSWER, "grain")})


def _selection(c: Comparison, view: Opening) -> dict[str, Any]:
    """A view's selection as the page will send it: checked, its budget the nearest of the run's."""
    checked = selection.checked(asdict(view), c)
    return {"a": checked.a, "b": checked.b, "budget": c.share(checked.budget),
            "tok": None if checked.tok is None else list(checked.tok),
            "layer": checked.layer, "head": checked.head, "grain": checked.grain}  # fmt: skip


def _reply(
    run: Run, name: str, sel: dict[str, Any], side: str | None, columns: int | None
) -> dict[str, Any] | None:
    """A view's reply, None where this run has none."""
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
