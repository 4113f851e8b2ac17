"""The manifest of a saved comparison, read field by field: a ValueError where one is not what it must be."""

from __future__ import annotations

import dataclasses
import math
import re
from datetime import datetime
from typing import Any

import numpy as np

from kvviz.engine.ask import Ask
from kvviz.framing import Framing
from kvviz.identity import Budget, MethodRef
from kvviz.results.comparison import Variant
from kvviz.results.mix import Mix
from kvviz.results.passages import GRAINS
from kvviz.results.story import MOST_STEPS, MOST_WORDS, Experiment, Opening, Places, Step, Story
from kvviz.types import PROTOCOLS, Mark, ModelInfo, Prompt

_MOST = 2**40  # of any whole number
_MOST_STOPS = 1000


def whole(value: Any, low: int = -_MOST, high: int = _MOST) -> int:
    """A whole number from low to high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"not a whole number from {low} to {high}")
    return value


def number(value: Any) -> float | int:
    """Any finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("not a number")
    return value


def number_or_none(value: Any) -> float | int | None:
    """Any finite number or nothing."""
    return None if value is None else number(value)


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def flags(value: Any, size: int | None = None) -> list[bool]:
    """A list of true and false, of this size where one is given."""
    if not isinstance(value, list) or size not in (None, len(value)):
        raise ValueError("not as many")
    return [flag(item) for item in value]


def text(value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def text_or_none(value: Any) -> str | None:
    """A string or nothing."""
    return None if value is None else text(value)


def moment_or_none(value: Any) -> str | None:
    """A date and time in ISO form or nothing."""
    return None if value is None else datetime.fromisoformat(text(value)).isoformat()


def one_of(value: Any, choices: tuple[str, ...]) -> str:
    """One of these strings."""
    if value not in choices:
        raise ValueError(f"none of {choices}")
    return value


def items(value: Any) -> list[dict[str, Any]]:
    """A list of objects."""
    if not isinstance(value, list):
        raise ValueError("not a list")
    return [table(item) for item in value]


def table(value: Any) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def texts(value: Any) -> dict[str, str]:
    """An object of strings."""
    return {key: text(item) for key, item in table(value).items()}


def strings(value: Any) -> list[str]:
    """A list of strings."""
    if not isinstance(value, list):
        raise ValueError("not a list")
    return [text(item) for item in value]


def span(value: Any, most: int) -> tuple[int, int]:
    """(start, end) with 0 <= start <= end <= most."""
    start, end = value if isinstance(value, list) and len(value) == 2 else (None, None)
    end = whole(end, 0, most)
    return whole(start, 0, end), end


def stops(value: Any) -> list[float]:
    """Shares in ascending order."""
    found = [float(number(item)) for item in value]
    if len(found) > _MOST_STOPS or found != sorted(set(found)) or any(not 0 < s <= 1 for s in found):
        raise ValueError("not the stops of a slider")
    return found


def model(m: Any) -> ModelInfo:
    """What is known of the model."""
    layers, queries = whole(m["n_layers"], 1, 10_000), whole(m["n_query_heads"], 1, 100_000)
    heads, windows = whole(m["n_kv_heads"], 1, queries), m["windows"]
    if queries % heads or not isinstance(windows, list) or len(windows) != layers:
        raise ValueError("heads or windows do not fit")
    return ModelInfo(
        id=text(m["id"]),
        n_layers=layers,
        n_query_heads=queries,
        n_kv_heads=heads,
        head_dim=whole(m["head_dim"], 1),
        hidden_size=whole(m["hidden_size"], 1),
        dtype=text(m["dtype"]),
        windows=tuple(None if w is None else whole(w, 1) for w in windows),
        max_tokens=whole(m["max_tokens"], 1),
    )


def prompt(p: Any, input_ids: np.ndarray) -> Prompt:
    """The prompt; one string and one offset (or None) a token."""
    size, document = len(input_ids), text(p["document"])
    tokens, offsets = strings(p["tokens"]), p["offsets"]
    if not isinstance(offsets, list) or not size == len(tokens) == len(offsets):
        raise ValueError("ids, tokens and offsets are not as many")
    return Prompt(
        input_ids=input_ids,
        n_compressible=whole(p["n_compressible"], 1, size),
        tokens=tokens,
        offsets=[None if o is None else span(o, len(document)) for o in offsets],
        document=document,
        question=text(p["question"]),
        system=text_or_none(p["system"]),
        protocol=one_of(p["protocol"], PROTOCOLS),
        document_span=span(p["document_span"], size),
        question_span=span(p["question_span"], size),
        notes=tuple(strings(p["notes"])),
        now=moment_or_none(p.get("now")),
        framing=Framing.from_dict(table(p.get("framing") or {})),
        cue_span=span(p.get("cue_span", [0, 0]), size),
    )


def variant(v: Any) -> Variant:
    """An answer without its arrays and its selection."""
    MethodRef.parse(text(v["method"]))
    difference, ids = v["first_difference"], v["token_ids"]
    if not isinstance(ids, list):
        raise ValueError("no token ids")
    return Variant(
        method=v["method"],
        label=text(v["label"]),
        budget=Budget.parse(number(v["budget"])).value,
        entries=whole(v["entries"], 0),
        options=table(v["options"]),
        selection=None,
        token_ids=[whole(i, 0) for i in ids],
        tokens=strings(v["tokens"]),
        text=text(v["text"]),
        finished=one_of(v["finished"], ("", "stop token", "length", "cancelled")),
        bytes=whole(v["bytes"], 0),
        tokens_kept=number(v["tokens_kept"]),
        first_difference=None if difference is None else whole(difference, 0),
        seconds=table(v["seconds"]),
        notes=strings(v["notes"]),
        evictions=items(v["evictions"]),
    )


def mark(m: Any, size: int) -> Mark:
    """A named span of tokens."""
    start, end = span([m["start"], m["end"]], size)
    return Mark(text(m["name"]), start, end, text(m["text"]), text(m["reason"]))


_EDIT = {"kind", "start", "end", "layer", "head"}


def settings(s: Any, info: ModelInfo, size: int) -> dict[str, Any]:
    """What was asked for. What is read from it later, beyond being shown, must have its type."""
    for row in table(s.get("methods") or {}).values():
        text(row.get("label", ""))
        for side in ("own", "used"):
            table(table(row).get(side, {}))
    for made in items(s.get("edits") or []):
        text(made["method"])
        number(made["budget"])
        for edit in items(made["edits"]):
            if set(edit) != _EDIT:
                raise ValueError("not an edit")
            one_of(edit["kind"], ("pin", "evict"))
            span([edit["start"], edit["end"]], size)
            for name, most in (("layer", info.n_layers), ("head", info.n_kv_heads)):
                if edit[name] is not None:
                    whole(edit[name], 0, most - 1)
    for mixed in items(s.get("mixes") or []):
        MethodRef.parse(text(mixed["name"]))
        number(mixed["budget"])
        Mix.of(mixed["mix"])
    Ask.of_settings(s)
    for name in ("date", "probe"):
        if s.get(name) is not None:
            text(s[name])
    return {key: value for key, value in s.items() if key not in _STORY}


_STORY = {f.name for f in dataclasses.fields(Story)}


def story(s: Any, info: ModelInfo, size: int) -> Story:
    """What the run says of itself, which its settings hold."""
    return Story(
        title=text(s.get("title") or ""),
        label=text(s.get("label") or ""),
        opening=_opening(s.get("opening"), info, size),
        places=_places(s.get("places")),
        experiment=_experiment(s.get("experiment")),
        steps=steps(s.get("steps") or [], info, size),
    )


def steps(given: Any, info: ModelInfo, size: int) -> tuple[Step, ...]:
    """The steps of a story, from a file or from the page."""
    if len(items(given)) > MOST_STEPS:
        raise ValueError("too many steps")
    return tuple(_step(item, info, size) for item in given)


def _step(given: dict[str, Any], info: ModelInfo, size: int) -> Step:
    words, shows, view = text(given["words"]), text(given["shows"]), _opening(given["view"], info, size)
    if set(given) != _STEP or view is None or len(words) > MOST_WORDS or not _SHOWS.fullmatch(shows):
        raise ValueError("not a step of a story")
    return Step(words, shows, view)


_STEP = {f.name for f in dataclasses.fields(Step)}
_SHOWS = re.compile("[a-z_]{1,20}")


def _opening(given: Any, info: ModelInfo, size: int) -> Opening | None:
    if given is None:
        return None
    if not set(table(given)) <= {f.name for f in dataclasses.fields(Opening)}:
        raise ValueError("an opening holds something else")

    def place(name: str, count: int) -> int | None:
        return None if given.get(name) is None else whole(given[name], 0, count - 1)

    return Opening(
        a=text(given["a"]),
        b=text_or_none(given["b"]),
        budget=number(given["budget"]),
        tok=None if given.get("tok") is None else span(given["tok"], size),
        layer=place("layer", info.n_layers),
        head=place("head", info.n_kv_heads),
        grain=one_of(given.get("grain", "token"), GRAINS),
    )


def _places(given: Any) -> Places | None:
    if given is None:
        return None
    found = {
        method: {float(share): tuple(flags(row)) for share, row in table(rows).items()}
        for method, rows in table(given["found"]).items()
    }
    depths = tuple(float(number(depth)) for depth in given.get("depths", ()))
    return Places(found, text(given.get("what", "Answer")), depths)


def _experiment(given: Any) -> Experiment | None:
    if given is None:
        return None
    rows = tuple(texts(row) for row in items(given.get("rows", [])))
    return Experiment(rows, text(given.get("sentence", "")))
