"""Comparisons as files: one zip of a JSON manifest and plain `.npy` arrays (no pickles), or the same content
as one strict JSON text. Both carry `FORMAT`, and `load_comparison` reads either.

A file may come from a stranger: every array has the shape and kind that the manifest's sizes ask for before
it is unpacked, and the manifest itself is checked field by field (`kvviz.results.manifest`).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.results import manifest as fields
from kvviz.results import stored
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.kept import KeptSet

FORMAT = 1  # raised when an older reader could misread a newer file
_MAX_MANIFEST = 64_000_000  # bytes of JSON
_MAX_BYTES = 2_000_000_000  # of unpacked arrays
_VARIANT_ARRAYS = ("kl", "output_error", "layer_error")
_ROUNDED = ("scores_", "selection_scores_", "lenses_")


def save(c: Comparison, path: str | Path, rounded: bool = False) -> Path:
    """See `Comparison.save`."""
    manifest, arrays = _pack(c)
    if rounded:
        arrays = {k: _rounded(a) if k.startswith(_ROUNDED) else a for k, a in arrays.items()}
        manifest["settings"] = {**manifest["settings"], "rounded": "scores and lenses to 3 digits"}
    manifest["same"], arrays = _without_twins(arrays)
    path = Path(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(plain(manifest), allow_nan=False))
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"arrays/{name}.npy", buffer.getvalue())
    return path


def to_json(c: Comparison, path: str | Path | None = None) -> str:
    """See `Comparison.to_json`."""
    manifest, arrays = _pack(c)
    manifest["same"], arrays = _without_twins(arrays)
    manifest["table"] = c.rows()
    manifest["arrays"] = {name: _array_to_json(a) for name, a in arrays.items()}
    text = json.dumps(plain(manifest), allow_nan=False, ensure_ascii=False)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


class _Refused(InputError):
    """A file that is refused for a reason of its own, not as damaged."""


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
                return _read(*_open_zip(archive))
        return _read(*_open_json(path))
    except _Refused:
        raise
    except MemoryError as error:
        raise InputError(f"There is not enough memory to open {path.name}.") from error
    except Exception as error:  # every way a stranger's file can be broken is the same to the reader
        raise InputError(f"{path.name} is not a comparison saved by kvviz, or it is damaged.") from error


# -- arrays -------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Arrays:
    """Arrays of a file by name, each read once, and only with the shape and kind it must have.

    head  gives (dtype, shape) of a name, or None where there is no such array; body gives its content.
    same  {name: name of its twin}.
    """

    head: Callable[[str], tuple[np.dtype, tuple[int, ...]] | None]
    body: Callable[[str], np.ndarray]
    same: dict[str, str]

    def __post_init__(self) -> None:
        self._read: dict[str, np.ndarray] = {}
        self._bytes = 0

    def take(self, name: str, dtype: str, *shape: int | None) -> np.ndarray:
        """The array of this name; `None` in `shape` is any length. ValueError where it is another."""
        array = self.find(name, dtype, *shape)
        if array is None:
            raise ValueError(f"no array {name}")
        return array

    def find(self, name: str, dtype: str, *shape: int | None) -> np.ndarray | None:
        """The same, None where the file has no such array."""
        name = self.same.get(name, name)
        head = self.head(name)
        if head is None:
            return None
        kind, found = head
        right = len(found) == len(shape) and all(want in (None, is_) for want, is_ in zip(shape, found))
        if kind != np.dtype(dtype) or not right:
            raise ValueError(f"array {name} is {kind} {found}, not {dtype} {shape}")
        if name not in self._read:
            self._bytes += kind.itemsize * math.prod(found)
            if self._bytes > _MAX_BYTES:
                raise _Refused(f"This comparison unpacks to more than {_MAX_BYTES // 10**9} GB.")
            array = self.body(name)
            if array.shape != found or array.dtype != kind:
                raise ValueError(f"array {name} is cut")
            self._read[name] = array
        return self._read[name]


def _open_zip(archive: zipfile.ZipFile) -> tuple[dict, Callable[[dict], Arrays]]:
    if archive.getinfo("manifest.json").file_size > _MAX_MANIFEST:
        raise _Refused(f"The manifest of this comparison is larger than {_MAX_MANIFEST // 10**6} MB.")
    manifest = json.loads(archive.read("manifest.json"))
    names = set(archive.namelist())

    def head(name: str):
        file = f"arrays/{name}.npy"
        if file not in names:
            return None
        with archive.open(file) as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else (
                np.lib.format.read_array_header_2_0)  # fmt: skip
            shape, _, dtype = read(stream)
        return dtype, shape

    def body(name: str) -> np.ndarray:
        return np.load(io.BytesIO(archive.read(f"arrays/{name}.npy")), allow_pickle=False)

    return manifest, lambda same: Arrays(head, body, same)


def _open_json(path: Path) -> tuple[dict, Callable[[dict], Arrays]]:
    if path.stat().st_size > _MAX_BYTES:
        raise _Refused(f"{path.name} is larger than {_MAX_BYTES // 10**9} GB.")
    manifest = json.loads(path.read_text(encoding="utf-8"))

    def head(name: str):
        spec = manifest["arrays"].get(name)
        return spec and (np.dtype(spec["dtype"]), tuple(int(size) for size in spec["shape"]))

    def body(name: str) -> np.ndarray:
        dtype, shape = head(name)
        size = dtype.itemsize * math.prod(shape)
        packed = base64.b64decode(manifest["arrays"][name]["zlib_base64"])
        raw = zlib.decompressobj().decompress(packed, size + 1)
        return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()

    return manifest, lambda same: Arrays(head, body, same)


def _array_to_json(array: np.ndarray) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "zlib_base64": packed}


def _without_twins(arrays: dict[str, np.ndarray]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Arrays that occur twice are stored once: ({name: name of its twin}, the others).

    Methods share base scores, and the table of scores repeats those of a selection.
    """
    seen: dict[tuple, str] = {}
    same: dict[str, str] = {}
    for name, array in arrays.items():
        first = seen.setdefault(_digest(array), name)
        if first != name:
            same[name] = first
    return same, {name: array for name, array in arrays.items() if name not in same}


def _digest(array: np.ndarray) -> tuple:
    content = hashlib.sha256(np.ascontiguousarray(array).data).digest()
    return content, array.dtype.str, array.shape


def _rounded(array: np.ndarray) -> np.ndarray:
    """float32 with the lowest 12 bits of the mantissa rounded away; NaN and infinities stay."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    near = ((bits.astype(np.uint64) + 0x800) & 0xFFFFF000).astype(np.uint32)
    return np.where(np.isfinite(array), near.view(np.float32), array).astype(np.float32)


def plain(value: Any) -> Any:
    """Numpy scalars to Python, NaN and infinities to null: strict JSON."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


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
            content = _digest(stacked)
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
        raise _Refused(
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
