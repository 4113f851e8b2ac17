"""The page of one run as one file that needs neither server nor network: modules, plotly.js, and the replies
to what a story asks."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvviz.errors import InputError
from kvviz.results.comparison import Comparison
from kvviz.results.story import Opening, Step
from kvviz.ui import assets
from kvviz.ui import chosen as selection
from kvviz.ui.openings import opening
from kvviz.ui.replies import ANSWER, OF_A_RUN, Views, figures, replies, selected
from kvviz.ui.runs import Run

COLUMNS = (260, 600)  # of a map: for a phone and for a wide screen
TABS = ("kept", "why", "cause", "effect", "sweep", "steps")  # what a finished run alone can show
MOST_PLAYED = 20_000  # tokens up to which the file holds every stop of the slider


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
    told = list(_replies(run, first, steps))
    tabs = [tab for tab in TABS if any(one["view"] in figures(tab) for one in told)]
    boot = {"stored": [{"id": run.id, "title": title}], "methods": {}, "tabs": tabs}
    whole = any(assets.WHOLE_ONLY in one["reply"].get("figure", "") for one in told)
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
        f'<script type="application/json" id="replies">{_inert(told)}</script>\n'
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


def _replies(run: Run, first: Opening, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """What the page will ask, each once, with its reply."""
    c = run.comparison
    seen: set[str] = set()

    def asked(sel: dict[str, Any], views: Views) -> Iterator[dict[str, Any]]:
        yield from replies(run, sel, views, COLUMNS, seen)

    sel = selected(c, first)
    yield from asked(sel, OF_A_RUN)
    for tab in ("", *TABS):
        yield from asked(sel, figures(tab))
    for step in steps:
        yield from asked(selected(c, step.view), {**figures(""), **figures(step.shows)})
    played = [sel, *(selected(c, step.view) for step in steps if step.shows == "budget")]
    for sel, budget in itertools.product(played, selection.steps(c) if c.n <= MOST_PLAYED else []):
        yield from asked({**sel, "budget": c.share(budget)}, {**figures(""), "kept": (*ANSWER, "grain")})
