"""A cell of a sweep: one item and one model. One reading serves every method at every budget.

A cell is a plain value: rows as they stand in the table, and what they were measured with. Whatever goes
wrong with an item becomes rows with a reason, so that a sweep of days never stops at one of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

import kvviz
from kvviz.engine.ask import Ask
from kvviz.engine.plan import make_plan
from kvviz.engine.prompts import build_prompt
from kvviz.engine.run import Guest, compare
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trace import Trace, prefill
from kvviz.errors import Cancelled, KvvizError
from kvviz.evaluate.items import Item
from kvviz.evaluate.judging import judged
from kvviz.identity import Budget, MethodRef
from kvviz.methods.own import Source, sources
from kvviz.models import Model
from kvviz.results.comparison import FULL, Comparison
from kvviz.types import QUESTION_AGNOSTIC, QUESTION_AWARE, Prompt

_LITTLE = ("random", 0.01)  # who answers from this had no need of the document
_NO_DOCUMENT = "(There is no document.)"


@dataclass(frozen=True)
class Study:
    """What is done with every item: everything about a sweep but its models and items.

    ask        methods, budgets, measures and decoding; `max_new_tokens` is an item's own where its meta
               says so.
    keep_runs  which comparisons are saved for the page: "none", "failures" (the full cache is right, a
               method is not) or "all".
    own        where its own methods come from: another file is another study.
    """

    ask: Ask
    protocol: str = QUESTION_AWARE
    dtype: str = "auto"
    keep_runs: str = "none"
    own: dict[str, Source] = field(init=False)

    def __post_init__(self) -> None:
        """Where the own methods of the ask come from; it travels to the worker processes with the rest."""
        object.__setattr__(self, "own", sources(MethodRef.parse(name).id for name in self.ask.methods))

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        plain = {"protocol": self.protocol, "dtype": self.dtype, "keep_runs": self.keep_runs}
        own = {"own": {id: source.told() for id, source in self.own.items()}} if self.own else {}
        return {"ask": self.ask.to_dict(), **plain, **own}

    def ask_of(self, item: Item) -> Ask:
        """What is asked of one item."""
        new = item.meta.get("max_new_tokens") or self.ask.max_new_tokens
        expected = item.answers[0] if item.answers else None
        return dataclasses.replace(self.ask, max_new_tokens=new, expected=expected)


def digest(value: Any) -> str:
    """20 hex digits of a plain value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]


def cell_key(model: str, item: Item, study: Study) -> str:
    """The name of a cell: the same where model, item and study are."""
    return digest([model, item.to_dict(), study.to_dict()])


@dataclass
class Measured:
    """A cell, and the bytes of its saved run where it was kept."""

    cell: dict[str, Any]
    run: bytes | None = None


def measure(
    model: Model, name: str, items: Sequence[Item], study: Study, cancel: threading.Event | None = None
) -> Iterator[Measured]:
    """The cells of items that share a document, one by one.

    name    the model as the sweep calls it. Under the question-agnostic protocol the document is read once.
    cancel  stops within a step: raises Cancelled.
    """
    held: Scored[Trace] | None = None
    for item in items:
        started = time.perf_counter()
        run, reason = None, ""
        try:
            rows, run, held = _measured(model, name, item, study, held, cancel)
        except Cancelled:
            raise
        except KvvizError as error:
            reason = str(error)
        except (MemoryError, torch.OutOfMemoryError):
            reason = "There was not enough memory for this item: ask for fewer methods, or a shorter text."
        except Exception as error:  # one item must not end a sweep of days; the row says what happened
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        if reason:
            rows, held = failed_rows(name, item, study, reason), None
        cell = {
            "key": cell_key(name, item, study),
            "seconds": time.perf_counter() - started,
            "about": about(model),
            "rows": rows,
        }
        yield Measured(cell, run)
        if study.protocol != QUESTION_AGNOSTIC:
            held = None


def _measured(
    model: Model, name: str, item: Item, study: Study, held: Scored[Trace] | None,
    cancel: threading.Event | None,
) -> tuple[list[dict[str, Any]], bytes | None, Scored[Trace]]:  # fmt: skip
    prompt = build_prompt(model, item.document, item.question, protocol=study.protocol, cue=item.cue)
    asked = study.ask_of(item)
    ask, reasons = _possible(model, prompt, asked)
    plan = make_plan(model, prompt, ask)
    if held is None or not _same_reading(held.trace, prompt, plan.needs):
        held = Scored(prefill(model, prompt, needs=plan.needs, cancel=cancel))
    asks_little = any(MethodRef.parse(m).id == _LITTLE[0] for m in ask.methods)
    little = [] if asks_little else [select_from(held, *_LITTLE)]
    # What the model knew is only asked where a right answer is known.
    guest = closed_book(model, item.question, item.cue) if item.answers else None
    c = compare(model, prompt, ask=ask, scored=held, selections=little, cancel=cancel, guest=guest)
    if cancel is not None and cancel.is_set():
        raise Cancelled("Stopped.")
    rows = _rows(c, name, item, study)
    full, *others = rows
    if study.keep_runs == "all" or (
        study.keep_runs == "failures"
        and full["verdict"] == "right"
        and any(row["verdict"] == "wrong" for row in others)
    ):
        run = _saved(compare(model, prompt, ask=dataclasses.replace(ask, lenses=True), scored=held))
    else:
        run = None
    knew = None if guest is None else _knew(item, c, guest.text)
    for row in rows:
        row["knew"] = knew
    return rows + _failed(name, item, study, reasons, held.trace.n), run, held


def _same_reading(trace: Trace, prompt: Prompt, needs: frozenset[str]) -> bool:
    n = prompt.n_compressible
    same = trace.n == n and torch.equal(*(torch.as_tensor(p.input_ids[:n]) for p in (trace.prompt, prompt)))
    return same and needs <= trace.needs


def _possible(model: Model, prompt: Prompt, ask: Ask) -> tuple[Ask, dict[str, str]]:
    """The ask with the methods that can serve this prompt, and for the others the reason.

    Raises what stands against the item where no method can serve it.
    """
    reasons, first = {}, None
    for method in ask.methods:
        try:
            make_plan(model, prompt, ask.of(methods=[method]))
        except KvvizError as error:
            reasons[method], first = str(error), first or error
    usable = [method for method in ask.methods if method not in reasons]
    if first is not None and not usable:
        raise first
    return ask.of(methods=usable), reasons


def _rows(c: Comparison, name: str, item: Item, study: Study) -> list[dict[str, Any]]:
    """The table's rows of a comparison, the full cache first."""
    rows = []
    for v, row in zip([c.full, *c.variants], c.rows()):
        if v is not c.full and v.method not in study.ask.methods:
            continue
        verdict, score = judged(item, v.text)
        rows.append({
            **_head(name, item, study, v.method, 1.0 if v is c.full else v.budget, c.n),
            "label": v.label,
            "options": json.dumps(v.options, sort_keys=True, default=str),
            "tokens_kept": row["tokens_kept"],
            "answer": v.text,
            "verdict": verdict,
            "score": score,
            "empty": not v.text.strip(),
            "kl": row["mean_kl"],
            "max_kl": row["max_kl"],
            "output_error": row["median_output_error"],
            "mean_output_error": row["mean_output_error"],
            "heads_improved": row["heads_improved"],
            "same_as_full": row["first_difference"] is None,
            "f1_full": row["f1_full"],
            "bytes": v.bytes,
            "seconds": row["seconds"],
            "read_seconds": c.seconds.get("prefill"),
            "finished_by": v.finished,
        })  # fmt: skip
    return [{k: _finite(v) for k, v in row.items()} for row in rows]


def _head(name: str, item: Item, study: Study, method: str, budget: Any, n: int | None) -> dict[str, Any]:
    """What every row begins with, also one of a failure."""
    budget = Budget.parse(budget)
    return {
        "model": shown(name),
        "item": item.id,
        "task": item.task,
        "document": digest(item.document)[:12],
        "length": _number(item.meta.get("asked_tokens"), int),
        "depth": _number(item.meta.get("depth"), float),
        "protocol": study.protocol,
        "method": method,
        "budget": float(budget.value),
        "budget_name": str(budget),
        "share": None if n is None else budget.share_of(n),
        "entries": None if n is None else budget.of(n),
        "n": n,
        "metric": item.metric,
        "reason": "",
    }


def shown(name: str) -> str:
    """A model's name in tables: of a file or folder without its place, which is nobody else's business."""
    return Path(name).name.removesuffix(".gguf") if os.path.exists(name) else name


def failed_rows(name: str, item: Item, study: Study, reason: str) -> list[dict[str, Any]]:
    """The rows of an item that could not be measured at all."""
    full = {**_head(name, item, study, FULL, 1.0, None), "reason": reason}
    return [full, *_failed(name, item, study, dict.fromkeys(study.ask.methods, reason), None)]


def _failed(
    name: str, item: Item, study: Study, reasons: dict[str, str], n: int | None
) -> list[dict[str, Any]]:
    return [
        {**_head(name, item, study, method, budget, n), "reason": reason}
        for method, reason in reasons.items()
        for budget in study.ask.budgets
    ]


def _number(value: Any, kind: type) -> Any:
    """What an item says of itself, where the table can hold it: files of other people hold anything."""
    return kind(value) if type(value) in (int, float) and abs(value) < 2**53 else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _knew(item: Item, c: Comparison, closed: str) -> str:
    """How an item was answered that did not need its document: "without the document" (`closed`, the answer
    to the question alone), "with 1 % of the cache" (kept at random), or "" where it was needed."""
    if judged(item, closed)[0] == "right":
        return "without the document"
    little = [v for v in c.variants if v.method == _LITTLE[0] and c.share(v.budget) <= _LITTLE[1]]
    if any(judged(item, v.text)[0] == "right" for v in little):
        return "with 1 % of the cache"
    return ""


def closed_book(model: Model, question: str, cue: str = "") -> Guest:
    """The question alone, to be answered beside the others."""
    return Guest(prefill(model, build_prompt(model, _NO_DOCUMENT, question, cue=cue)))


def _saved(c: Comparison) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return c.save(Path(folder) / "run.zip", rounded=True).read_bytes()


def about(model: Model) -> dict[str, Any]:
    """What the rows of a model were measured with."""
    template = getattr(model.tokenizer, "chat_template", None) or ""
    return {
        "id": model.id,
        "weights": model.weights_hash,
        "template": hashlib.sha256(str(template).encode()).hexdigest()[:16],
        "dtype": model.info.dtype,
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "machine": platform.node(),
        "versions": {
            "kvviz": kvviz.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
    }
