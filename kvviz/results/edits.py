"""An edit beside its random controls: rows of answers, and one sentence that claims no more than they do.

Edits are `kvviz.engine.experiment.Edit`; answers are the edit's variant, then those of its controls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kvviz.identity import MethodRef
from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.measures import MEASURE, Against, kl_of
from kvviz.results.story import Experiment
from kvviz.results.verdict import judge


def report(c: Comparison, before: Variant, tried: Sequence[Variant], edits: Sequence[Any]) -> Experiment:
    """A row an answer and the outcome, stored with a run."""
    names = ["After the edit", *(f"Random control {number}" for number in range(len(tried) - 1))]
    rows = [_row(c, "Before", before), *(_row(c, n, v) for n, v in zip(names, tried))]
    return Experiment(tuple(rows), sentence(c, before, tried, edits))


def edited(
    c: Comparison, before: Variant, tried: Sequence[Variant], edits: Sequence[Any], same_size: bool
) -> Comparison:
    """The run with the edited answer (tried[0]) beside the others, what was edited, and what came of it."""
    earlier = list(c.settings.get("edits") or [])
    number = 1 + len(earlier)
    name = str(MethodRef.parse(before.method).changed(f"edit{number}"))
    label = f"{before.label} + edit {number}"
    selection = dataclasses.replace(tried[0].packed, method=name, label=label)
    answer = dataclasses.replace(tried[0], method=name, label=label, selection=selection)
    made = {"method": before.method, "budget": before.budget, "same_size": same_size,
            "edits": [dataclasses.asdict(edit) for edit in edits], "name": name}  # fmt: skip
    story = dataclasses.replace(c.story, experiment=report(c, before, tried, edits))
    settings = {**c.settings, "edits": [*earlier, made]}
    return dataclasses.replace(c, variants=[*c.variants, answer], settings=settings, story=story)


def _row(c: Comparison, name: str, v: Variant) -> dict[str, str]:
    held = ""
    if c.marks:
        mark = c.marks[0]
        kept = v.packed.kept.span(mark.start, mark.end)
        held = f"{mark.name} in {int(kept.all(axis=-1).sum())} of {kept.shape[0] * kept.shape[1]}"
    return {
        "name": name,
        "text": v.text,
        "verdict": judge(v, c.expected),
        "kl": text.kl(kl_of(c, v)),
        "error": MEASURE["output_error"].words(MEASURE["output_error"].of(c, Point.of(v), Against())),
        "held": held,
    }


def sentence(c: Comparison, before: Variant, tried: Sequence[Variant], edits: Sequence[Any]) -> str:
    """What changed, beside its controls. It names no cause: an edit shows an effect, not what it was for."""
    kinds = {edit.kind for edit in edits}
    doing, noun = {"pin": ("pinning", "pins"), "evict": ("evicting", "evictions")}.get(
        kinds.pop() if len(kinds) == 1 else "", ("editing", "edits")
    )
    what = what_words(c, edits)
    cut = any(v.finished == "cancelled" for v in (c.full, before, *tried))
    said = "" if cut else _outcome(c, before, tried, f"{doing} {what}", noun, what)
    return " ".join(filter(None, (said, _change(c, before, tried, f"{doing} {what}", noun))))


def _outcome(c: Comparison, before: Variant, tried: Sequence[Variant], deed: str, noun: str, what: str):
    """Right or wrong after the edit and its controls, as far as this can be judged."""
    controls = len(tried) - 1
    if not c.expected:
        same = [v.token_ids == c.full.token_ids for v in tried]
        said = "is the full cache's, token for token" if same[0] else "differs from the full cache's"
        return (
            f"After {deed}, the answer {said}; with random {noun} it was the same as the "
            f"full cache's in {sum(same[1:])} of {controls}."
        )
    expected = text.quoted(c.expected)
    if judge(c.full, c.expected) == "wrong":
        return f"The full cache misses {expected} itself, so there is no right or wrong here."
    right = [judge(v, c.expected) == "right" for v in tried]
    was = judge(before, c.expected) == "right"
    by_chance = sum(right[1:])
    state = "contains" if right[0] else "no longer contains" if was else "does not contain"
    said = f"After {deed}, the answer {state} {expected}; "
    said += f"with random {noun} it did in {by_chance} of {controls}."
    if was and right[0]:
        said += " It did before the edit as well."
    elif right[0] and by_chance == controls:
        said += f" Random {noun} do it as well, so this does not single out {what}."
    return said


def _change(c: Comparison, before: Variant, tried: Sequence[Variant], deed: str, noun: str) -> str:
    """What became of the text and of KL, as far as they are known."""
    after, controls = tried[0], tried[1:]
    if after.text == before.text:
        said = [f"The text did not change with {deed}."]
    else:
        said = [f"The answer went from {text.quoted(before.text)} to {text.quoted(after.text)}."]
    means = [kl_of(c, v) for v in (before, *tried)]
    if all(m is not None for m in means):
        was, now, *others = (text.kl_number(m) for m in means)
        beside = f", {text.span_names(others)} with random {noun}" if controls else ""
        said.append(f"KL was {was} before and is {now} after{beside} (nats/token).")
    return " ".join(said)


def what_words(c: Comparison, edits: Sequence[Any]) -> str:
    """ "“58213” (M1) in all heads", "tokens 4 to 9 and 1 more in layer 7"."""
    first = edits[0]
    marks = (m for m in c.marks if (m.start, m.end) == (first.start, first.end))
    name = next((f"{text.quoted(m.text, 40)} ({m.name})" for m in marks), "")
    if not name:
        one = first.end - first.start == 1
        name = f"token {first.start}" if one else f"tokens {first.start} to {first.end - 1}"
    more = f" and {len(edits) - 1} more" if len(edits) > 1 else ""
    if first.layer is None:
        where = "all heads" if first.head is None else f"KV head {first.head} of every layer"
    else:
        where = text.place(first.layer, first.head)
    return f"{name}{more} in {where}"
