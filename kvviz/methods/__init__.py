"""The registry: one line a method, in the order people meet them; all lists elsewhere derive from it.

Own methods stand behind them: see `kvviz.methods.own`.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from kvviz.errors import InputError
from kvviz.identity import MethodRef, shown
from kvviz.methods import (
    adakv,
    cake,
    caote,
    compresskv,
    critical_adakv,
    criticalkv,
    defensivekv,
    dropkv,
    duoattention,
    expected_attention,
    h2o,
    indexmem,
    keydiff,
    knorm,
    kvzip,
    laprox,
    lava,
    layer_defensivekv,
    obcache,
    pyramidkv,
    qfilters,
    random,
    snapkv,
    streaming_llm,
    tova,
    vatp,
)
from kvviz.methods.own import load_plugin, own_methods, plain_name, register
from kvviz.methods.spec import ArtefactSpec, Method, Scores
from kvviz.options import Option

__all__ = [
    "METHODS",
    "Method",
    "Option",
    "Scores",
    "artefact_specs",
    "get_method",
    "list_methods",
    "load_plugin",
    "methods_table",
    "parse_method",
    "register",
]

METHODS: tuple[Method, ...] = (
    random.METHOD,
    streaming_llm.METHOD,
    knorm.METHOD,
    keydiff.METHOD,
    snapkv.METHOD,
    tova.METHOD,
    h2o.METHOD,
    pyramidkv.METHOD,
    adakv.METHOD,
    expected_attention.METHOD,
    kvzip.METHOD,
    qfilters.METHOD,
    duoattention.METHOD,
    vatp.METHOD,
    lava.METHOD,
    cake.METHOD,
    obcache.METHOD,
    caote.METHOD,
    defensivekv.METHOD,
    layer_defensivekv.METHOD,
    criticalkv.METHOD,
    critical_adakv.METHOD,
    laprox.METHOD,
    dropkv.METHOD,
    compresskv.METHOD,
    indexmem.METHOD,
)

def list_methods() -> list[Method]:
    """Every method's spec: id, label, paper, needs, options with defaults, presets, allocation. Own methods
    (`kvviz.methods.own`) come last."""
    return [*METHODS, *own_methods()]


def get_method(method_id: str) -> Method:
    """The spec of one method, by its id or its label; InputError says which was probably meant."""
    known = {method.id: method for method in list_methods()}
    if method_id in known:
        return known[method_id]
    plain = plain_name(method_id)
    by_name = {plain_name(name): method for method in known.values() for name in (method.id, method.label)}
    if plain not in by_name:
        close = [by_name[name].id for name in get_close_matches(plain, by_name, 1)]
        meant = f"Did you mean {close[0]}?" if close else f"Choose from: {', '.join(known)}."
        raise InputError(f"There is no method {shown(method_id)}. {meant}")
    return by_name[plain]


def artefact_specs() -> dict[str, ArtefactSpec]:
    """{name: spec} of every calibrated file that some method needs."""
    return {m.artefact.name: m.artefact for m in list_methods() if m.artefact is not None}


def methods_table() -> str:
    """The README's table of methods, in markdown: one row a built-in method."""
    rows = ["| id | idea | paper | reads | allocation | provenance |", "|---|---|---|---|---|---|"]
    for method in METHODS:
        said = (("reconstructed", method.reconstructed), ("differs", method.differs))
        provenance = "; ".join(f"{word}: {what}" for word, what in said if what) or "verified"
        cells = (
            f"`{method.id}`",
            method.idea.rstrip("."),
            method.paper,
            method.reads,
            method.allocation.replace("_", " "),
            provenance,
        )
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def parse_method(name: str) -> tuple[Method, dict[str, Any]]:
    """The method and its options of "snapkv" or "snapkv:window=16,allocation=global"."""
    ref = MethodRef.parse(name)
    return get_method(ref.id), ref.given
