"""The registry: one line a method, in the order people meet them; all lists elsewhere derive from it."""

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
    "methods_table",
    "parse_method",
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

_BY_ID = {method.id: method for method in METHODS}
_BY_NAME = {"".join(filter(str.isalnum, name)).casefold(): m for m in METHODS for name in (m.id, m.label)}


def list_methods() -> list[Method]:
    """Every method's spec: id, label, paper, needs, options with defaults, presets, allocation."""
    return list(METHODS)


def get_method(method_id: str) -> Method:
    """The spec of one method, by its id or its label; InputError says which was probably meant."""
    if method_id in _BY_ID:
        return _BY_ID[method_id]
    plain = "".join(filter(str.isalnum, method_id)).casefold()
    if plain not in _BY_NAME:
        close = [_BY_NAME[name].id for name in get_close_matches(plain, _BY_NAME, 1)]
        meant = f"Did you mean {close[0]}?" if close else f"Choose from: {', '.join(_BY_ID)}."
        raise InputError(f"There is no method {shown(method_id)}. {meant}")
    return _BY_ID[_BY_NAME[plain].id]


def artefact_specs() -> dict[str, ArtefactSpec]:
    """{name: spec} of every calibrated file that some method needs."""
    return {m.artefact.name: m.artefact for m in METHODS if m.artefact is not None}


def methods_table() -> str:
    """The README's table of methods, in markdown: one row a method."""
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
