"""Comparisons as files: one zip of a JSON manifest and plain `.npy` arrays (no pickles), or the same content
as one strict JSON text. Both carry `FORMAT`, and `load_comparison` reads either.

A file may come from a stranger: every array has the shape and kind that the manifest's sizes ask for before
it is unpacked, and the manifest itself is checked field by field (`kvviz.results.manifest`).
"""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.results import manifest as fields
from kvviz.results import stored
from kvviz.results.arrays import (
    Arrays,
    Refused,
    digest,
    json_text,
    open_json,
    open_zip,
    three_digits,
    write_zip,
)
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.kept import KeptSet

FORMAT = 1  # raised when an older reader could misread a newer file
_VARIANT_ARRAYS = ("kl", "output_error", "layer_error")
_ROUNDED = ("scores_", "selection_scores_", "lenses_")


def save(c: Comparison, path: str | Path, rounded: bool = False) -> Path:
    """See `Comparison.save`."""
    manifest, arrays = _pack(c)
    if rounded:
        arrays = {k: three_digits(a) if k.startswith(_ROUNDED) else a for k, a in arrays.items()}
        manifest["settings"] = {**manifest["settings"], "rounded": "scores and lenses to 3 digits"}
    return write_zip(Path(path), manifest, arrays)


def to_json(c: Comparison, path: str | Path | None = None) -> str:
    """See `Comparison.to_json`."""
    manifest, arrays = _pack(c)
    text = json_text({**manifest, "table": c.rows()}, arrays)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def load_comparison(path: str | Path) -> Comparison:
    """Read a comparison written by `Comparison.save` or `Comparison.to_json`.

    Raises InputError when the file is not one, is damaged, or was written by a newer kvviz.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no saved comparison at {path}.")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return _read(*open_zip(archive))
        return _read(*open_json(path))
    except Refused:
        raise
    except MemoryError as error:
        raise InputError(f"There is not enough memory to open {path.name}.") from error
    except Exception as error:  # every way a stranger's file can be broken is the same to the reader
        raise InputError(f"{path.name} is not a comparison saved by kvviz, or it is damaged.") from error


# -- writing ------------------------------------------------------------------------------------------


def _pack(c: Comparison) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {"input_ids": np.asarray(c.prompt.input_ids)}
    names: dict[tuple, str] = {}  # selections of one method share their scores

    def shared(rows: Sequence[np.ndarray] | None) -> str | None:
        if rows is None:
            return None
        place = tuple((row.__array_interface__["data"][0], row.shape) for row in rows)
        if place not in names:
            stacked = np.stack(rows)
            content = digest(stacked)
            new = f"selection_scores_{sum(name.startswith('selection') for name in arrays)}"
            names[place] = names.setdefault(content, new)  # "scores_0" is a table's
            arrays.setdefault(names[place], stacked)
        return names[place]

    def pack_variant(v: Variant, name: str) -> dict[str, Any]:
        spec = {
            f.name: getattr(v, f.name)
            for f in dataclasses.fields(v)
            if f.name not in (*_VARIANT_ARRAYS, "selection")
        }
        for key in _VARIANT_ARRAYS:
            if getattr(v, key) is not None:
                arrays[f"{name}_{key}"] = np.asarray(getattr(v, key))
        if v.selection is not None:
            point = Point.of(v)
            arrays[f"{name}_kept"] = point.kept.bits
            arrays[f"{name}_stage"] = np.asarray(point.stage)
            arrays[f"{name}_cutoff"] = np.asarray(point.cutoff)
            spec["selection"] = {
                "scope": point.scope,
                "notes": point.notes,
                "seconds": point.seconds,
                "scores": shared(point.scores),
                "scores_raw": shared(point.scores_raw),
                "first_scores": shared(point.first_scores),
            }
        return spec

    tables = _tables(c)
    prompt = {f.name: getattr(c.prompt, f.name) for f in dataclasses.fields(c.prompt)}
    del prompt["input_ids"]
    prompt["framing"] = c.prompt.framing.to_dict()
    manifest = {
        "kvviz": "comparison",
        "format": FORMAT,
        "model": dataclasses.asdict(c.model),
        "prompt": prompt,
        "settings": {**c.settings, **c.story.to_dict()},
        "full": pack_variant(c.full, "full"),
        "variants": [pack_variant(v, f"variant{i}") for i, v in enumerate(c.variants)],
        "bytes_full": c.bytes_full,
        "marks": [dataclasses.asdict(m) for m in c.marks],
        "expected": c.expected,
        "stops": list(c.stops),
        "seconds": c.seconds,
        "notes": c.notes,
        "turns": stored.pack_turns(c.turns, pack_variant),
        "tables": {table: list(columns) for table, columns in tables.items()},
    }
    for spec, more in (stored.pack_causes(c.causes), stored.pack_attention(c.answer_attention)):
        manifest, arrays = {**manifest, **spec}, {**arrays, **more}
    for name, value in (("fork", c.fork), ("ablation", c.ablation)):
        manifest[name] = None if value is None else value.to_dict()
    for table, columns in tables.items():
        arrays |= {f"{table}_{i}": np.asarray(array) for i, array in enumerate(columns.values())}
    return manifest, arrays


def _tables(c: Comparison) -> dict[str, dict[str, np.ndarray]]:
    """{table: {method or lens: array}}; what is kept at the stops is one array [S, ...] a method."""
    rows: dict[str, list[Point]] = {}
    for point in c.at_stops:
        rows.setdefault(point.method, []).append(point)
    flat = c.model.n_layers * c.model.n_kv_heads, -1
    return {
        "kept_bits": {m: np.stack([p.kept.bits.reshape(flat) for p in ps]) for m, ps in rows.items()},
        "protected_bits": {m: np.stack([p.kept.by_rule.reshape(flat) for p in ps]) for m, ps in rows.items()},
        "stop_entries": {m: np.array([p.entries for p in ps]) for m, ps in rows.items()},
        "stop_errors": {m: np.stack([np.asarray(p.error) for p in ps]) for m, ps in rows.items()},
        "scores": c.scores,
        "lenses": c.lenses,
    }


# -- reading ------------------------------------------------------------------------------------------


def _read(m: Any, arrays_of: Callable[[dict], Arrays]) -> Comparison:
    if not isinstance(m, dict) or m.get("kvviz") != "comparison":
        raise ValueError("no manifest of a comparison")
    version = m.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise Refused(
            f"This comparison was saved by a newer kvviz (format {version}; this one "
            f"reads up to {FORMAT}). Update kvviz to open it."
        )
    arrays = arrays_of(fields.texts(m.get("same", {})))
    model = fields.model(m["model"])
    input_ids = arrays.take("input_ids", "i8", None)
    prompt = fields.prompt(m["prompt"], input_ids)
    layers, heads, queries, n = model.n_layers, model.n_kv_heads, model.n_query_heads, prompt.n_compressible
    packed = -(-n // 8)

    def scores(name: str | None) -> list[np.ndarray] | None:
        return None if name is None else list(arrays.take(fields.text(name), "f4", layers, heads, n))

    def variant(spec: dict[str, Any], name: str) -> Variant:
        v = fields.variant(spec)
        v.kl = arrays.find(f"{name}_kl", "f4", None)
        v.output_error = arrays.find(f"{name}_output_error", "f4", layers, queries)
        v.layer_error = arrays.find(f"{name}_layer_error", "f4", layers)
        if "selection" in spec:
            s = spec["selection"]
            stage = arrays.take(f"{name}_stage", "i1", layers, heads, n)
            bits = arrays.take(f"{name}_kept", "u1", layers, heads, packed)
            v.selection = Point(
                method=v.method,
                budget=v.budget,
                kept=KeptSet(bits, np.packbits(stage == 3, axis=-1), n, v.entries),
                scores=scores(s["scores"]),
                scores_raw=scores(s["scores_raw"]),
                first_scores=scores(s["first_scores"]),
                stage=stage,
                cutoff=arrays.take(f"{name}_cutoff", "f4", layers, heads),
                scope=fields.one_of(s["scope"], ("head", "layer", "all")),
                label=v.label,
                options=v.options,
                notes=fields.strings(s["notes"]),
                seconds=fields.number(s["seconds"]),
            )
        return v

    tables = {name: fields.strings(keys) for name, keys in fields.table(m["tables"]).items()}
    stops = fields.stops(m["stops"])
    at_stops = []
    for i, method in enumerate(tables["kept_bits"] if stops else []):
        size = len(stops)
        kept = arrays.take(f"kept_bits_{i}", "u1", size, layers * heads, packed)
        rule = arrays.take(f"protected_bits_{i}", "u1", size, layers * heads, packed)
        entries = arrays.take(f"stop_entries_{i}", "i8", size)
        errors = arrays.take(f"stop_errors_{i}", "f4", size, layers, queries)
        shape = (layers, heads, packed)
        at_stops += [
            Point(method, stop, KeptSet(kept[s].reshape(shape), rule[s].reshape(shape), n, int(entries[s])),
                  error=errors[s])
            for s, stop in enumerate(stops)
        ]  # fmt: skip
    return Comparison(
        model=model,
        prompt=prompt,
        settings=fields.settings(m["settings"], model, len(input_ids)),
        story=fields.story(m["settings"], model, len(input_ids)),
        full=variant(m["full"], "full"),
        variants=[variant(v, f"variant{i}") for i, v in enumerate(fields.items(m["variants"]))],
        bytes_full=fields.whole(m["bytes_full"], 0),
        marks=[fields.mark(item, len(input_ids)) for item in fields.items(m["marks"])],
        expected=fields.text_or_none(m["expected"]),
        at_stops=at_stops,
        scores={
            key: arrays.take(f"scores_{i}", "f4", layers, heads, n) for i, key in enumerate(tables["scores"])
        },
        lenses={
            key: arrays.take(f"lenses_{i}", "f4", layers, heads, n) for i, key in enumerate(tables["lenses"])
        },
        seconds=fields.table(m["seconds"]),
        notes=fields.strings(m["notes"]),
        causes=stored.read_causes(m.get("causes", []), arrays, model, prompt),
        fork=stored.read_fork(m.get("fork")),
        answer_attention=stored.read_attention(m.get("answer_attention"), arrays, model, n),
        ablation=stored.read_ablation(m.get("ablation")),
        turns=stored.read_turns(m.get("turns", []), variant),
    )
