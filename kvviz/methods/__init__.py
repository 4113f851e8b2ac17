"""The registry: one line a method, in the order people meet them. Everything else derives from it."""

from __future__ import annotations

from kvviz.errors import InputError
from kvviz.methods import (
    adakv,
    critical_adakv,
    criticalkv,
    keydiff,
    knorm,
    random,
    snapkv,
    streaming_llm,
    tova,
)
from kvviz.methods.base import Method

METHODS: tuple[Method, ...] = (
    random.METHOD,
    streaming_llm.METHOD,
    knorm.METHOD,
    keydiff.METHOD,
    snapkv.METHOD,
    tova.METHOD,
    adakv.METHOD,
    criticalkv.METHOD,
    critical_adakv.METHOD,
)

_BY_ID = {method.id: method for method in METHODS}


def list_methods() -> list[Method]:
    """Every method's spec: id, label, idea, paper, needs, options with defaults, presets, allocation."""
    return list(METHODS)


def get_method(method_id: str) -> Method:
    """The spec of one method; InputError names the known ids."""
    if method_id not in _BY_ID:
        raise InputError(f"There is no method {method_id!r}. Choose from: {', '.join(_BY_ID)}.")
    return _BY_ID[method_id]
