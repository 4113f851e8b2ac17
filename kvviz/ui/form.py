"""What the form "Use my own text" offers, and what fills it: methods in groups, models, examples, a run."""

from __future__ import annotations

from typing import Any

from kvviz.engine.ask import Ask
from kvviz.methods.own import source_of
from kvviz.methods.spec import GROUPS
from kvviz.settings import Settings
from kvviz.types import DTYPES
from kvviz.ui.asks import MOST_QUESTIONS, Request, form_fields
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


@view("form")
def form_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What the form holds for this run, so that one thing is changed and it is run again."""
    return {"fields": form_fields(run.recipe())}
