"""Views of what had to be kept: the Cause tab's words, the fork under the answers, what a token looked at."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.results import cause_words as said
from kvviz.results import fork_words
from kvviz.results import words as text
from kvviz.results.attention import AnswerAttention, decode
from kvviz.results.causes import FOUND, PUT_BACK, TAKEN_OUT, Causes
from kvviz.results.comparison import FULL, Comparison
from kvviz.results.passages import passages
from kvviz.results.times import branch_seconds, causes_seconds
from kvviz.ui.chosen import Chosen, whole
from kvviz.ui.runs import Run
from kvviz.ui.views import view

_LOOK_FROM = (0.02, 0.07, 0.2, 0.5)  # of the most attended token of the text
HOLLOW = 8  # added to a shade: more than half of this attention fell on entries that A evicted
MOST_LOOKS = 600_000  # codes sent at once; of longer texts one answer token at a time


@view("cause")
def cause_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """Everything the tab says in words; "known" where this answer's causes were not searched."""
    c = run.comparison
    if chosen.a == FOUND:
        raise InputError(
            "This cache was found by search so that it gives the full cache's answer: nothing is to be put "
            "back into it. Choose a method as A to see what it lost."
        )
    found = said.causes_of(c, chosen.a, chosen.budget)
    known = [
        {"method": m, "share": c.share(b), "words": f"{text.label(c, m)} at {text.budget_name(b)}"}
        for m, b in said.known_answers(c)
    ]
    decoded = c.variant(chosen.a, chosen.budget)
    reply: dict[str, Any] = {
        "known": known,
        "name": f"{text.label(c, chosen.a)} at {text.budget_name(chosen.budget)}",
        "decoded": decoded is not None and Run.asked_for(chosen.a),
        "found": found is not None,
        "would": c.would_do is not None,
        "seconds": causes_seconds(c, _units(c)),
    }
    return reply if found is None else {**reply, **_words(c, found)}


def _units(c: Comparison) -> int:
    return c.model.n_layers * c.model.n_kv_heads + len(passages(c.prompt))


def _words(c: Comparison, found: Causes) -> dict[str, Any]:
    tops = {way: {unit: _top(c, found, way, unit) for unit in ("head", "passage")}
            for way in (PUT_BACK, TAKEN_OUT)}  # fmt: skip
    rescue = found.rescue
    return {
        "stopped": found.stopped,
        "gap": said.gap_sentence(c, found),
        "rescue": said.rescue_sentence(c, found),
        "details": said.rescue_details(found),
        "controls": [] if rescue is None or rescue.stopped else [
            ["put in on top", rescue.controls.added],
            ["put in at the same size", rescue.controls.same_size],
        ],
        "would_words": said.would_do_sentence(c),
        "would_notes": [] if c.would_do is None else c.would_do.notes,
        "notes": found.notes,
        "cost": f"{text.count(found.trials)} trials in {text.seconds(found.seconds)}",
        "tops": tops,
        "add_up": said.ADD_UP,
        "has": {way: {unit: bool(found.of(way, unit)) for unit in ("head", "passage")}
                for way in (PUT_BACK, TAKEN_OUT)},
        "agrees": bool(found.agreement),
    }  # fmt: skip


def _top(c: Comparison, found: Causes, direction: str, unit: str) -> list[dict[str, Any]]:
    rows = []
    for e in said.strongest(found, direction, unit):
        at = {"layer": e.layer, "head": e.head} if e.passage is None else {
            "tok": [e.passage.start, e.passage.end]}  # fmt: skip
        rows.append({**at, "name": said.unit_words(c, e), "words": said.effect_words(e, direction)})
    return rows


def _keys(c: Comparison, chosen: Chosen) -> list[tuple[str, str, str]]:
    """(side, label, key) of the answers of A and B at this budget."""
    found = []
    for side, method in (("a", chosen.a), ("b", chosen.b)):
        v = c.variant(method, chosen.budget) if method else None
        if v is not None:
            found.append((side, text.label(c, v.method), v.key))
    return found


@view("fork")
def fork_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """The likeliest next tokens of the full cache, A and B at every step, and how near each came."""
    c = run.comparison
    keys = [row for row in _keys(c, chosen) if c.fork is not None and row[2] in c.fork.paths]
    if c.fork is None or not keys:
        raise InputError("The likeliest next tokens of these answers were not stored.")
    columns = [{"side": "full", "label": "Full cache", **fork_words.path_rows(c.fork, FULL)}]
    columns += [{"side": s, "label": label, **fork_words.path_rows(c.fork, key)} for s, label, key in keys]
    steps = fork_words.expected_steps(c.fork.tokens, c.expected)
    branches = [b for b in c.settings.get("branches") or [] if isinstance(b, dict)]
    shown = {key: side for side, _, key in keys} | {FULL: "full"}
    return {
        "columns": columns,
        "seconds": branch_seconds(c),
        "tokens": c.fork.tokens,
        "expected": [steps.start, steps.stop],
        "words": [fork_words.near_words(c, c.fork, key, label) for _, label, key in keys],
        "branches": [{**b, "side": shown[b["key"]]} for b in branches if b.get("key") in shown],
    }


@view("looked")
def looked_view(run: Run, chosen: Chosen, args: dict[str, Any]) -> dict[str, Any]:
    """What the full cache looked at to write each token of its answer: a shade a token of the text, the
    evicted ones hollow, and a sentence. Of a long text only the step that is asked for."""
    c = run.comparison
    seen = c.answer_attention
    if seen is None:
        raise InputError("What the answer's tokens looked at was not stored with this run.")
    steps = list(range(min(seen.steps, len(c.full.tokens))))
    one = whole(args.get("step"), 0, len(steps) - 1)
    alone = len(steps) * c.n > MOST_LOOKS
    if alone:
        steps = [one or 0]
    layer, head = chosen.layer, chosen.head
    answers = _kept_keys(c, chosen)
    gone = c.at(chosen.a, chosen.budget)
    lost = None if gone is None else ~gone.kept.mask()
    return {
        "all": not alone,
        "rows": {str(s): _codes(c, seen, s, layer, head, lost) for s in steps},
        "words": {str(s): fork_words.looked_words(c, s, answers, layer, head) for s in steps},
        "where": text.place(layer, head) or "all heads",
    }


def _kept_keys(c: Comparison, chosen: Chosen) -> list[tuple[str, str]]:
    """(label, key) of A's and B's kept sets: a decoded answer, else the stop of the slider."""
    found = []
    for method in filter(None, (chosen.a, chosen.b)):
        point = c.at(method, chosen.budget)
        if point is not None:
            budget = point.budget if point.answer is None else point.answer.budget
            found.append((text.label(c, method), f"{method}@{budget}"))
    return found


def _codes(
    c: Comparison, seen: AnswerAttention, step: int, layer: int | None, head: int | None,
    lost: np.ndarray | None,
) -> str:  # fmt: skip
    """A character a token under compression: "0" plus its shade, plus HOLLOW."""
    weight = seen.weights(step, layer, head)
    start, end = c.prompt.document_span
    top = float(weight[start : min(end, c.n)].max(initial=0)) or 1.0
    code = np.digitize(weight / top, _LOOK_FROM).astype(np.uint8)
    if lost is not None:
        rows = slice(None) if layer is None else slice(layer, layer + 1)
        heads = slice(None) if head is None else slice(head, head + 1)
        each = decode(seen.codes[step][rows])  # [L', H, n]
        away = lost[rows, heads].mean(1, keepdims=True) if each.shape[1] == 1 else lost[rows, heads]
        each = each if each.shape[1] == 1 else each[:, heads]
        part = (each * away).sum((0, 1)) / np.maximum(each.sum((0, 1)), 1e-12)
        code = np.where((code > 0) & (part > 0.5), code + HOLLOW, code)
    return "".join(chr(48 + int(v)) for v in code.tolist())
