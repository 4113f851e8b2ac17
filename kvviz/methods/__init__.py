"""The registry: one line a method, in the order people meet them; all lists elsewhere derive from it."""

from __future__ import annotations

from typing import Any

from kvviz.errors import InputError
from kvviz.identity import MethodRef
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
from kvviz.methods.spec import Method

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


def list_methods() -> list[Method]:
    """Every method's spec: id, label, paper, needs, options with defaults, presets, allocation."""
    return list(METHODS)


def get_method(method_id: str) -> Method:
    """The spec of one method; InputError names the known ids."""
    if method_id not in _BY_ID:
        raise InputError(f"There is no method {method_id!r}. Choose from: {', '.join(_BY_ID)}.")
    return _BY_ID[method_id]


def methods_table() -> str:
    """The README's table of methods, in markdown: one row a method."""
    rows = ["| id | idea | paper | reads | allocation | provenance |", "|---|---|---|---|---|---|"]
    for method in METHODS:
        provenance = f"reconstructed: {method.reconstructed}" if method.reconstructed else "verified"
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
