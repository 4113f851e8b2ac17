"""One data request of the page to one view: checked selection in, JSON-ready dict out.

Every view is cheap, works on a finished comparison and never waits for the model. An error a person
can understand comes back as {"error": sentence}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvviz.engine.ask import Ask
from kvviz.errors import KvvizError
from kvviz.identity import MethodRef
from kvviz.results.cause_words import known_answers
from kvviz.results.causes import FOUND
from kvviz.results.comparison import Comparison
from kvviz.results.story import Places
from kvviz.results.words import label, labels
from kvviz.ui import chosen as selection
from kvviz.ui import faults
from kvviz.ui.export_views import Exports
from kvviz.ui.openings import opening
from kvviz.ui.runs import Run, RunStore, stored_runs

FOUND_TITLE = "The smallest cache that a search found to give the full cache's answer"
View = Callable[[Run, selection.Chosen, dict[str, Any]], dict[str, Any]]
VIEWS: dict[str, View] = {}


def view(name: str) -> Callable[[View], View]:
    """Register a function as the view the page calls `name`."""

    def keep(fn: View) -> View:
        VIEWS[name] = fn
        return fn

    return keep


def register() -> None:
    """Bring in the modules whose functions are views."""
    from kvviz.ui import (  # noqa: F401
        beside_views,
        cause_views,
        figure_views,
        form,
        mix_views,
        story_views,
        talk_views,
    )


def answer(store: RunStore, exports: Exports, body: Any, visitor: str = "") -> dict[str, Any]:
    """Answer one request {view, run, sel, args} of a visitor; nothing in it is trusted."""
    register()
    body = body if isinstance(body, dict) else {}
    name = str(body.get("view"))
    fn = exports.view if name == "export" else VIEWS.get(name)
    if fn is None:
        return {"error": "There is no such view."}
    try:
        run = store.get(body.get("run"))
        args = body.get("args") if isinstance(body.get("args"), dict) else {}
        if "beside" in args:
            args = {**args, "beside": store.get(args["beside"])}
        chosen = selection.checked(body.get("sel"), run.comparison)
        run = dataclasses.replace(run, comparison=selection.marked(run.comparison, chosen.marks))
        if run.origin == "own" and run.owner != visitor:
            run = dataclasses.replace(run, origin="shared", title="Shared run")
        return fn(run, chosen, args)
    except KvvizError as error:
        return {"error": str(error)}
    except Exception as error:  # a fault of ours: the log has it, the visitor keeps the rest of the page
        faults.log(error)
        return {"error": "This view could not be drawn. The rest of the page is up to date."}


def boot(methods: dict[str, str] | None = None) -> dict[str, Any]:
    """What the page knows before its first request."""
    stored = [{"id": key, "title": _title(path)} for key, path in stored_runs().items()]
    return {"stored": stored, "methods": methods or {}}


def _title(path: Path) -> str:
    """The title inside a stored run, without loading its arrays."""
    import json
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("manifest.json"))["settings"]
        return str(settings.get("title") or path.stem.replace("-", " "))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return path.stem.replace("-", " ")


@view("meta")
def meta(run: Run, chosen: selection.Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """All that does not change with the selection."""
    from kvviz.results.words import budget_triple, memory_words

    c = run.comparison
    steps, names = selection.steps(c), labels(c)
    decoded = {m: [c.share(v.budget) for v in c.variants if v.method == m] for m in c.methods}
    return {
        "id": run.id,
        "origin": run.origin,
        "title": run.title,
        "model": {"id": c.model.id, "dtype": c.model.dtype, "layers": c.model.n_layers,
                  "kv_heads": c.model.n_kv_heads, "query_heads": c.model.n_query_heads},
        "n": c.n,
        "methods": [{"id": m, "label": names.get(m) or label(c, m), "made": bool(MethodRef.parse(m).made),
                     "title": FOUND_TITLE if m == FOUND else c.labels[m]} for m in c.choices],
        "steps": [c.share(step) for step in steps],
        "budget_words": {m: [budget_triple(c, m, step) for step in steps] for m in c.choices},
        "memory_words": {m: [memory_words(c, m, step) for step in steps] for m in c.choices},
        "decoded": decoded,
        "marks": [{"name": m.name, "start": m.start, "end": m.end, "text": m.text,
                   "reason": m.reason} for m in c.marks],
        "expected": c.expected,
        "question": c.prompt.question,
        "date": str(c.settings.get("date") or c.settings.get("created") or "")[:10],
        "opening": dataclasses.asdict(c.story.opening or opening(c)),
        "range": map_range(c),
        "places": c.story.places and _places(c.story.places),
        "experiment": c.story.experiment and dataclasses.asdict(c.story.experiment),
        "evictions": any(v.evictions for v in c.variants),
        "causes": {m: [c.share(b) for x, b in known_answers(c) if x == m] for m in c.methods},
        "fork": c.fork is not None,
        "looked": c.answer_attention is not None,
        "ablation": c.ablation is not None,
        "decoding": _decoding(c),
        "stored_note": c.story.label,
    }  # fmt: skip


def _places(places: Places) -> dict[str, Any]:
    """A browser's objects have texts as keys."""
    found = {m: {str(share): row for share, row in rows.items()} for m, rows in places.found.items()}
    return {**dataclasses.asdict(places), "found": found}


def _decoding(c: Comparison) -> str:
    """How the answers were written: "greedy", or the temperature they were sampled at."""
    ask = Ask.of_settings(c.settings)
    every = ask.evict_every
    return f"{ask.decoding} · evicted again every {every} new tokens" if every else ask.decoding


def map_range(c: Comparison) -> list[int] | None:
    """Tokens the maps open on where the text is too long to see whole, else None."""
    from kvviz.figures.kept import opening_range

    start, end = opening_range(c)
    return None if (start, end) == (0, c.n) else [start, end]


@view("text")
def text(run: Run, chosen: selection.Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """The document and where each token lies in it; asked once a run."""
    from kvviz.results.sections import section_starts
    from kvviz.ui.figure_views import packed

    c = run.comparison
    n, prompt = c.n, c.prompt
    start, end = prompt.document_span
    offsets = np.array(
        [o if o is not None else (-1, -1) for o in prompt.offsets[:n]], dtype=np.int64
    ).reshape(-1, 2)
    offsets = np.where(offsets >= 0, _utf16(prompt.document)[offsets], -1)
    inside = np.zeros(n, dtype=bool)
    inside[max(0, start) : min(n, end)] = True
    inside &= offsets[:, 0] >= 0
    starts = section_starts(prompt)
    parted = starts if len(starts) > 1 or any(part.label for _, part in starts) else []
    outside = {str(i): prompt.tokens[i] for i in np.flatnonzero(~inside)}
    return {
        "text": prompt.document,
        "first": int(start),
        "steps": packed(np.diff(offsets[inside, 0], prepend=0)),
        "lengths": packed(offsets[inside, 1] - offsets[inside, 0]),
        "index": np.flatnonzero(inside).tolist() if inside.sum() != end - start else None,
        "outside": outside,
        "sections": [[token, part.label, part.page] for token, part in parted],
    }


def _utf16(text: str) -> np.ndarray:
    """Place of every character in a browser's strings, where those beyond U+FFFF count as two."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return np.concatenate([[0], np.cumsum(1 + (points > 0xFFFF), dtype=np.int64)])
