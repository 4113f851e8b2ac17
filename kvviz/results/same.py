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
    return f"Settings differ too: {'; '.join(sides)}."


def same_settings(c: Comparison, a: str, b: str | None, k: float | int) -> dict[str, Any] | None:
    """B with A's settings where they differ: {"method": its name, "label", "held": whether the run has it,
    "decoded": whether at k}; None where they do not, or one of the two was not decoded."""
    one, other = c.variant(a, k), c.variant(b, k) if b else None
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
    plain = text.label(c, b).partition(" (")[0]
    return {
        "method": name,
        "label": f"{plain} with {text.label(c, a)}'s settings",
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
