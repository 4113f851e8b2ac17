"""What the form "Use my own text" offers, and what fills it: methods in groups, models, examples, a run."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from kvviz.engine.ask import Ask
from kvviz.identity import Budget
from kvviz.methods.own import source_of
from kvviz.methods.spec import GROUPS
from kvviz.settings import Settings
from kvviz.types import DTYPES
from kvviz.ui.asks import MOST_QUESTIONS, Request
from kvviz.ui.chosen import Chosen
from kvviz.ui.runs import Run
from kvviz.ui.views import view

NAMES = (
    "document", "question", "expected", "questions", "protocol", "methods", "budgets", "variants", "model",
    "dtype", "max_new_tokens", "window", "system", "controlled", "evict_every", "temperature", "top_p",
    "seed", "cue", "template", "thinking", "turns", "raw",
)  # fmt: skip
FIRST_METHODS = ("snapkv", "criticalkv", "keydiff", "streaming_llm")
FIRST_BUDGETS = ("50%", "20%", "10%", "5%")
PAPERS = ("criticalkv", "laprox", "dropkv", "indexmem", "compresskv")
SETS = (
    ("The five papers", PAPERS),
    ("Attention against perturbation", ("snapkv", "adakv", "criticalkv", "dropkv", "laprox", "obcache")),
)
OWN = "own"  # the group of methods that were registered here
_DEAR = ("column_sums", "repeat")  # needs of methods whose own reading of the document takes long


def form(engine: Any, limits: Settings) -> dict[str, Any]:
    """Everything the page's form shows, as plain values."""
    from kvviz.evaluate.examples import examples
    from kvviz.models.catalog import chosen_first, offered

    specs = engine.methods()
    models = offered(limits)
    known = [spec.id for spec in specs]
    cheap = [s.id for s in specs if not s.artefact and not set(_DEAR) & s.needs]
    return {
        "groups": [
            {"name": name, "methods": [_method(spec) for spec in specs if _group(spec) == name]}
            for name in (*([OWN] if any(_group(spec) == OWN for spec in specs) else []), *GROUPS)
        ],
        "sets": [
            {"name": name, "methods": [m for m in chosen if m in known]}
            for name, chosen in (*SETS, ("Everything cheap", cheap))
        ],
        "variants": [{"name": name, "label": label} for label, name in variants(engine)],
        "models": [{"id": offer.id, "label": offer.label, "needs": offer.needs} for offer in models],
        "dtypes": list(DTYPES),
        "any_model": not limits.public,
        "decodes": [spec.label for spec in specs if spec.decodes],
        "most_new_tokens": min(256, limits.max_new_tokens),
        "most_questions": MOST_QUESTIONS,
        "most_bytes": limits.max_upload_bytes,
        "examples": [
            {"title": e.title, "document": e.document, "question": e.questions[0].question,
             "expected": e.questions[0].expected, "protocol": e.protocol}
            for e in examples()
        ],
        "first": {
            "methods": [m for m in FIRST_METHODS if m in known] or known[:2],
            "budgets": list(FIRST_BUDGETS), "model": chosen_first(limits).id, "protocol": Request.protocol,
            "max_new_tokens": min(Ask.max_new_tokens, limits.max_new_tokens),
        },
    }  # fmt: skip


def _group(spec: Any) -> str:
    return OWN if source_of(spec.id) is not None else spec.group or GROUPS[-1]


def _method(spec: Any) -> dict[str, Any]:
    source = source_of(spec.id)
    return {
        "id": spec.id, "label": spec.label, "idea": spec.idea,
        "paper": spec.paper if source is None else f"From {source.name}.",
        "reconstructed": bool(spec.reconstructed), "five": spec.id in PAPERS,
        "needs_file": bool(spec.artefact), "allocation": spec.allocation,
        "options": [row.describe() for row in spec.rows],
    }  # fmt: skip


def variants(engine: Any) -> list[tuple[str, str]]:
    """(label, name) of every method with every allocation that is not its own and can serve it."""
    return [
        (f"{spec.label} with {a.label}", f"{spec.id}:allocation={a.id}")
        for spec in engine.methods()
        for a in spec.allocators()
        if a.id != spec.allocation
    ]


def filled(run: Run) -> dict[str, Any]:
    """The form's fields as they stood for a run, so that one of them can be changed and it be run again."""
    ask = run.recipe()
    values = {f.name: getattr(ask, f.name) for f in fields(Request) if f.name in NAMES}
    window = {given.get("window") for given in ask.options.values()} - {None}
    framing = ask.framing.to_dict()
    turns = json.dumps([{"role": r, "content": text} for r, text in framing["turns"]], ensure_ascii=False)
    return {
        **values,
        **framing,
        "turns": turns if framing["turns"] else "",
        "methods": [m for m in ask.methods if ":" not in m],
        "variants": [m for m in ask.methods if ":" in m],
        "budgets": [_budget(value) for value in ask.budgets],
        "window": window.pop() if len(window) == 1 else None,
    }


def _budget(value: float | int) -> str:
    budget = Budget.parse(value)
    return f"{100 * budget.share:.10g}%" if budget.share is not None else f"{budget.entries}t"


@view("form")
def form_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What the form holds for this run."""
    return {"fields": filled(run)}
