"""Causes, fork, answer attention, ablation and further questions in a saved comparison.

`pack_*` gives the manifest's part and the arrays, `read_*` checks both field by field as
`kvviz.results.manifest` does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.identity import Budget, MethodRef
from kvviz.results import manifest as fields
from kvviz.results.ablation import Ablation, AblationRow
from kvviz.results.attention import STEPS, AnswerAttention
from kvviz.results.causes import (
    PUT_BACK,
    TAKEN_OUT,
    UNITS,
    Agreement,
    Causes,
    Controls,
    Effect,
    Rescue,
    WouldDo,
)
from kvviz.results.fork import Fork, Path, Step
from kvviz.results.passages import KINDS, Passage, passage_of
from kvviz.results.points import Variant
from kvviz.results.turns import Turn
from kvviz.types import ModelInfo, Prompt

if TYPE_CHECKING:
    from kvviz.results.arrays import Arrays

Packed = tuple[dict[str, Any], dict[str, np.ndarray]]
_PLAIN = ("method", "budget", "answer", "tokens", "method_text", "gap", "expected_gap", "kl", "notes",
          "trials", "seconds", "stopped")  # fmt: skip


# -- causes -------------------------------------------------------------------------------------------


def pack_causes(causes: dict[str, Causes]) -> Packed:
    """Effects as two arrays a direction: places int32 [N, 6] (unit, layer, head, passage, token, entries;
    -1 where a unit spans all) and values float64 [N, 3] (effect, KL, effect on the expected answer)."""
    specs: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    for i, found in enumerate(causes.values()):
        spec = {name: getattr(found, name) for name in _PLAIN}
        pieces = {p: None for way in (PUT_BACK, TAKEN_OUT) for e in getattr(found, way) if (p := e.passage)}
        index = {piece: number for number, piece in enumerate(pieces)}
        spec["passages"] = [[p.kind, p.start, p.end] for p in index]
        for way in (PUT_BACK, TAKEN_OUT):
            rows = getattr(found, way)
            places = [
                (UNITS.index(e.unit), _or(e.layer), _or(e.head),
                 -1 if e.passage is None else index[e.passage], _or(e.token), e.entries)
                for e in rows
            ]  # fmt: skip
            values = [(e.effect, e.kl, math.nan if e.expected is None else e.expected) for e in rows]
            arrays[f"causes{i}_{way}_places"] = np.array(places, np.int32).reshape(-1, 6)
            arrays[f"causes{i}_{way}_values"] = np.array(values, np.float64).reshape(-1, 3)
        spec["agreement"] = [dataclasses.asdict(a) for a in found.agreement]
        spec["rescue"] = None if found.rescue is None else found.rescue.to_dict()
        spec["would_do"] = None
        if found.would_do is not None:
            arrays[f"causes{i}_would_do"] = np.packbits(found.would_do.mask, axis=-1)
            row = found.would_do.to_dict()
            spec["would_do"] = {k: v for k, v in row.items() if k not in ("entries", "size")}
        specs.append(spec)
    return {"causes": specs}, arrays


def _or(index: int | None) -> int:
    return -1 if index is None else index


def read_causes(given: Any, arrays: Arrays, model: ModelInfo, prompt: Prompt) -> dict[str, Causes]:
    """The reverse of `pack_causes`."""
    found = [_causes(spec, f"causes{i}", arrays, model, prompt) for i, spec in enumerate(fields.items(given))]
    return {c.key: c for c in found}


def _causes(s: dict[str, Any], name: str, arrays: Arrays, model: ModelInfo, prompt: Prompt) -> Causes:
    n = prompt.n_compressible
    pieces = [_passage(p, prompt) for p in s["passages"]]
    MethodRef.parse(fields.text(s["method"]))
    return Causes(
        method=s["method"],
        budget=Budget.parse(fields.number(s["budget"])).value,
        answer=fields.text(s["answer"]),
        tokens=fields.strings(s["tokens"]),
        method_text=fields.text(s["method_text"]),
        gap=fields.number(s["gap"]),
        expected_gap=fields.number_or_none(s["expected_gap"]),
        kl=fields.number(s["kl"]),
        n=n,
        put_back=_effects(f"{name}_{PUT_BACK}", arrays, pieces, model, n),
        taken_out=_effects(f"{name}_{TAKEN_OUT}", arrays, pieces, model, n),
        rescue=None if s["rescue"] is None else _rescue(s["rescue"], model, n),
        would_do=None if s["would_do"] is None else _would_do(s["would_do"], name, arrays, model, n),
        agreement=[
            Agreement(fields.text(a["name"]), *(_or_nan(a[side]) for side in ("rho", "low", "high")))
            for a in fields.items(s["agreement"])
        ],
        notes=fields.strings(s["notes"]),
        trials=fields.whole(s["trials"], 0),
        seconds=fields.number(s["seconds"]),
        stopped=fields.flag(s["stopped"]),
    )


def _or_nan(value: Any) -> float:
    return math.nan if value is None else fields.number(value)


def _passage(given: Any, prompt: Prompt) -> Passage:
    kind, *place = given
    start, end = fields.span(place, prompt.n_compressible)
    if start == end or (kind == "document" and None in (prompt.offsets[start], prompt.offsets[end - 1])):
        raise ValueError("not a passage")
    return passage_of(prompt, fields.one_of(kind, KINDS), start, end)


def _effects(name: str, arrays: Arrays, pieces: list[Passage], model: ModelInfo, n: int) -> list[Effect]:
    places = arrays.take(f"{name}_places", "i4", None, 6)
    values = arrays.take(f"{name}_values", "f8", len(places), 3)
    most = (len(UNITS), model.n_layers, model.n_kv_heads, len(pieces), n)
    if len(places) and not (
        (places[:, :5] < most).all()
        and (places[:, :5] >= (0, -1, -1, -1, -1)).all()
        and (places[:, 5] >= 0).all()
        and np.isfinite(values[:, :2]).all()
    ):
        raise ValueError("effects of something else")
    found = []
    for (unit, layer, head, piece, token, entries), (effect, kl, expected) in zip(
        places.tolist(), values.tolist()
    ):
        has = (layer >= 0, head >= 0, piece >= 0, token >= 0)
        if has != _HAS[UNITS[unit]]:
            raise ValueError("an effect of another unit")
        found.append(
            Effect(UNITS[unit], entries, effect, kl, expected if math.isfinite(expected) else None,
                   layer if has[0] else None, head if has[1] else None, pieces[piece] if has[2] else None,
                   token if has[3] else None)
        )  # fmt: skip
    return found


_HAS = {  # what says which unit: layer, head, passage, token
    "head": (True, True, False, False),
    "layer": (True, False, False, False),
    "passage": (False, False, True, False),
    "token": (False, False, False, True),
    "passage-head": (True, True, True, False),
}


def _rescue(r: Any, model: ModelInfo, n: int) -> Rescue:
    entries = [_entry(e, model, n) for e in r["entries"]]
    return Rescue(
        entries=entries,
        of=fields.whole(r["of"], len(entries)),
        text=fields.text(r["text"]),
        verdict=fields.one_of(r["verdict"], ("right", "same tokens")),
        necessary=fields.flags(r["necessary"], len(entries)),
        effect=fields.number(r["effect"]),
        same_size=fields.flag(r["same_size"]),
        controls=Controls(*(fields.flags(r["controls"][side]) for side in ("added", "same_size"))),
        minimal=fields.flag(r["minimal"]),
        trials=fields.whole(r["trials"], 0),
        seconds=fields.number(r["seconds"]),
    )


def _entry(given: Any, model: ModelInfo, n: int) -> tuple[int, int, int]:
    layer, head, token = given
    return (
        fields.whole(layer, 0, model.n_layers - 1),
        fields.whole(head, 0, model.n_kv_heads - 1),
        fields.whole(token, 0, n - 1),
    )


def _would_do(w: Any, name: str, arrays: Arrays, model: ModelInfo, n: int) -> WouldDo:
    bits = arrays.take(f"{name}_would_do", "u1", model.n_layers, model.n_kv_heads, -(-n // 8))
    return WouldDo(
        mask=np.unpackbits(bits, axis=-1, count=n).astype(bool),
        start=fields.text(w["start"]),
        text=fields.text(w["text"]),
        bytes=fields.whole(w["bytes"], 0),
        kl=fields.number(w["kl"]),
        held={fields.text(k): fields.number(v) for k, v in fields.table(w["held"]).items()},
        minimal=fields.flag(w["minimal"]),
        trials=fields.whole(w["trials"], 0),
        most=fields.whole(w["most"], 0),
        seconds=fields.number(w["seconds"]),
        notes=fields.strings(w["notes"]),
    )


# -- fork ---------------------------------------------------------------------------------------------


def read_fork(given: Any) -> Fork | None:
    """The reverse of `Fork.to_dict`."""
    if given is None:
        return None
    paths = {
        name: Path(
            name=name,
            text=fields.text(p["text"]),
            steps=[
                Step(fields.text(s["token"]), [(fields.text(t), fields.number(x)) for t, x in s["likeliest"]])
                for s in fields.items(p["steps"])
            ],
            expected=[(fields.number(x), fields.whole(rank, 1)) for x, rank in p["expected"]],
        )
        for name, p in fields.table(given["paths"]).items()
    }
    if "full" not in paths:
        raise ValueError("a fork without the full cache")
    return Fork(fields.strings(given["tokens"]), paths)


# -- answer attention -----------------------------------------------------------------------------------


def pack_attention(a: AnswerAttention | None) -> Packed:
    """The keys, and what was lost as one array over them."""
    if a is None:
        return {"answer_attention": None}, {}
    arrays = {"attention_codes": a.codes, "attention_document": a.document}
    if a.lost:
        arrays["attention_lost"] = np.stack(list(a.lost.values()))
        arrays["attention_lost_document"] = np.stack([a.lost_document[key] for key in a.lost])
    return {"answer_attention": a.keys}, arrays


def read_attention(given: Any, arrays: Arrays, model: ModelInfo, n: int) -> AnswerAttention | None:
    """The reverse of `pack_attention`."""
    if given is None:
        return None
    layers, heads, keys = model.n_layers, model.n_kv_heads, fields.strings(given)
    document = arrays.take("attention_document", "f2", None, layers, heads)
    codes = arrays.take("attention_codes", "u1", len(document), layers, None, n)
    if not 1 <= len(document) <= STEPS or codes.shape[2] not in (1, heads):
        raise ValueError("not the attention of an answer")
    lost = [
        arrays.take(f"attention_{name}", "f2", len(keys), *document.shape) if keys else ()
        for name in ("lost", "lost_document")
    ]
    return AnswerAttention(codes, document, *(dict(zip(keys, rows, strict=True)) for rows in lost))


# -- ablation -------------------------------------------------------------------------------------------


def read_ablation(given: Any) -> Ablation | None:
    """The reverse of `Ablation.to_dict`."""
    if given is None:
        return None
    rows = [
        AblationRow(
            method=fields.text(r["method"]),
            window=fields.whole(r["window"], 1),
            pool_kind=fields.one_of(r["pool_kind"], ("avg", "max", "none")),
            pool=fields.whole(r["pool"], 1),
            budget=Budget.parse(fields.number(r["budget"])).value,
            verdict=fields.text(r["verdict"]),
            mean_kl=fields.number_or_none(r["mean_kl"]),
            text=fields.text(r["text"]),
        )
        for r in fields.items(given["rows"])
    ]
    return Ablation(rows, fields.text(given["full_text"]), fields.text(given["full_verdict"]))


# -- turns ----------------------------------------------------------------------------------------------


def pack_turns(turns: list[Turn], pack: Callable[[Variant, str], dict[str, Any]]) -> list[dict[str, Any]]:
    """The manifest's part; `pack` writes one answer, whose arrays begin with the name."""
    return [
        {
            **turn.to_dict(),
            "full": pack(turn.full, f"turn{i}_full"),
            "variants": [pack(v, f"turn{i}_variant{k}") for k, v in enumerate(turn.variants)],
        }
        for i, turn in enumerate(turns)
    ]


def read_turns(given: Any, read: Callable[[dict[str, Any], str], Variant]) -> list[Turn]:
    """The reverse of `pack_turns`."""
    return [
        Turn(
            question=fields.text(t["question"]),
            expected=fields.text_or_none(t["expected"]),
            fresh=fields.flag(t["fresh"]),
            input_ids=[fields.whole(i, 0) for i in t["input_ids"]],
            full=read(t["full"], f"turn{i}_full"),
            variants=[read(v, f"turn{i}_variant{k}") for k, v in enumerate(fields.items(t["variants"]))],
            seconds=fields.number(t["seconds"]),
        )
        for i, t in enumerate(fields.items(given))
    ]
