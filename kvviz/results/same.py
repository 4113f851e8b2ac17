"""Same settings: what two methods are set to differently, and the second with the first one's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvviz.identity import MethodRef
from kvviz.results import words as text
from kvviz.results.comparison import Comparison, Variant

SETTINGS = ("window", "pool", "pool_kind", "group", "protect", "allocation")


def settings_apart(c: Comparison, variants: Sequence[Variant]) -> str:
    """Settings that two methods both have and that differ: what they show is not their formulas alone."""
    if len(variants) != 2:
        return ""
    apart = _apart(*variants)
    if not apart:
        return ""
    sides = [f"{text.label(c, v.method)} {_words(v.options, apart)}" for v in variants]
    return " ".join(filter(None, (f"Settings differ too: {'; '.join(sides)}.", _with_equal(c, variants))))


def _with_equal(c: Comparison, variants: Sequence[Variant]) -> str:
    """What the grid of settings says of these two formulas, where it holds both at this budget."""
    if c.ablation is None or c.ablation.full_verdict != "right":
        return ""
    ids = [MethodRef.parse(v.method).id for v in variants]
    verdicts: dict[str, dict[str, str]] = {}
    for row in c.ablation.rows:
        if row.method in ids and row.budget == variants[0].budget and row.verdict:
            options = {"window": row.window, "pool": row.pool, "pool_kind": row.pool_kind}
            verdicts.setdefault(_words(options, tuple(options)), {})[row.method] = row.verdict
    both = {setting: found for setting, found in verdicts.items() if set(ids) <= set(found)}
    pairs = {setting: [found[i] for i in ids] for setting, found in both.items()}
    if len(set(ids)) < 2 or not pairs:
        return ""
    said = []
    for outcome, words in (
        (["right", "right"], "both find it"),
        (["wrong", "wrong"], "both miss it"),
        (["right", "wrong"], f"only {text.label(c, variants[0].method)} finds it"),
        (["wrong", "right"], f"only {text.label(c, variants[1].method)} finds it"),
    ):
        settings = [setting for setting, verdicts in pairs.items() if verdicts == outcome]
        if settings:
            named = " and with ".join(settings) if len(settings) < 3 else f"{len(settings)} other settings"
            said.append(f"{words} with {named}")
    same = all(one == other for one, other in pairs.values())
    ending = ": here the settings decide, not the formula." if same and len(said) > 1 else "."
    return f"With equal settings, {'; '.join(said)}{ending}"


def same_settings(c: Comparison, a: str, b: str | None, k: float | int) -> dict[str, Any] | None:
    """B with A's settings where they differ: {"method": its name, "label", "held": whether the run has it,
    "decoded": whether at k}; None where they do not, or one of the two was not decoded."""
    if not b:
        return None
    one, other = c.variant(a, k), c.variant(b, k)
    if one is None or other is None:
        return None
    apart = _apart(one, other)
    ref = MethodRef.parse(b)
    if not apart or ref.made:
        return None
    given = {**ref.given, **{name: one.options[name] for name in apart}}
    given.pop("preset", None)  # it would set what is given here
    wanted = MethodRef(ref.id, tuple(sorted(given.items())))
    name = _held(c, wanted, one, apart, b) or str(wanted)
    return {
        "method": name,
        "label": f"{text.plain_label(c, b)} with {text.label(c, a)}'s settings",
        "held": name in c.methods,
        "decoded": c.variant(name, k) is not None,
    }


def _held(c: Comparison, wanted: MethodRef, one: Variant, apart: Sequence[str], b: str) -> str:
    """A method of the run other than B that has these settings already, whatever it is called."""
    for v in (v for v in c.variants if v.method != b):
        ref = MethodRef.parse(v.method)
        if ref == wanted:
            return v.method
        if ref.id == wanted.id and not ref.made and all(v.options.get(n) == one.options[n] for n in apart):
            return v.method
    return ""


def _apart(one: Variant, other: Variant) -> list[str]:
    return [
        name
        for name in SETTINGS
        if name in one.options and name in other.options and one.options[name] != other.options[name]
    ]


def _words(options: Mapping[str, Any], names: Sequence[str]) -> str:
    """ "window 32, average over 7"."""
    words = []
    if "window" in names:
        words.append(f"window {options['window']}")
    if {"pool", "pool_kind"} & set(names):
        pooled = {"avg": "average", "max": "maximum"}.get(str(options.get("pool_kind")))
        words.append(f"{pooled} over {options.get('pool')}" if pooled else "no pooling")
    if "group" in names:
        words.append(f"{options['group']} over query heads")
    if "protect" in names:
        words.append(f"protects {options['protect'] if options['protect'] is not None else 'its window'}")
    if "allocation" in names:
        words.append(f"{options['allocation']} allocation")
    return ", ".join(words)
