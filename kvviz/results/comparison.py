"""A finished comparison: everything a picture, a table or a saved file needs, without a model at hand.

The saved form is one zip of a JSON manifest and plain `.npy` arrays (no pickles); `to_json` writes the
same content as one strict JSON text. Both carry `FORMAT`, and `load_comparison` reads either.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.types import Mark, ModelInfo, Prompt, Selection, Variant

FORMAT = 1  # raised when an older reader could misread a newer file
_MAX_BYTES = 2_000_000_000  # of unpacked arrays: a saved file may come from a stranger


@dataclass
class Comparison:
    """The result of `kvviz.compare`.

    full, variants   the answers; `full` is the whole cache.
    bytes_full       storage of the whole cache of the prompt, as allocated.
    stops            shares of n at which `kept_bits` holds every method's selection (the slider).
    kept_bits        {method: uint8 [S, L * Hkv, ceil(n / 8)]}, np.packbits of the kept mask at each stop.
    protected_bits   {method: uint8 [S, L * Hkv, ceil(n / 8)]}, entries kept by rule at each stop.
    stop_entries     {method: int [S]}, entries per KV head at each stop.
    stop_errors      {method: float32 [S, L, Hq]}, relative L2 output error at each stop.
    scores           {method: float32 [L, Hkv, n]}, NaN where the method gives none.
    lenses           {name: float32 [L, Hkv, n]}: "attention" (window mean, before pooling) and "effect"
                     (relative change of the head's output if this token alone is removed).
    """

    model: ModelInfo
    prompt: Prompt
    settings: dict[str, Any]
    full: Variant
    variants: list[Variant]
    bytes_full: int
    marks: list[Mark] = field(default_factory=list)
    expected: str | None = None
    stops: tuple[float, ...] = ()
    kept_bits: dict[str, np.ndarray] = field(default_factory=dict)
    protected_bits: dict[str, np.ndarray] = field(default_factory=dict)
    stop_entries: dict[str, np.ndarray] = field(default_factory=dict)
    stop_errors: dict[str, np.ndarray] = field(default_factory=dict)
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    lenses: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Tokens under compression."""
        return self.prompt.n_compressible

    @property
    def methods(self) -> list[str]:
        """Method names in the order they were asked for."""
        return list(dict.fromkeys(variant.method for variant in self.variants))

    @property
    def labels(self) -> dict[str, str]:
        """{method: label a person reads}."""
        return {variant.method: variant.label for variant in self.variants}

    @property
    def budgets(self) -> list[float | int]:
        """Decoded budgets, largest first."""
        decoded = dict.fromkeys(Budget.parse(v.budget) for v in self.variants)  # 1 and 1.0 are two budgets
        return sorted((b.value for b in decoded), key=lambda b: -self.share(b))

    def share(self, budget: float | int) -> float:
        """A budget as a share of n (an integer budget is entries per KV head)."""
        return min(1.0, budget / self.n) if isinstance(budget, int) else budget

    def variant(self, method: str, budget: float | int) -> Variant | None:
        """The decoded variant at this very budget, or None."""
        for v in self.variants:
            if v.method == method and math.isclose(self.share(v.budget), self.share(budget)):
                return v
        return None

    def kept(self, method: str, budget: float | int) -> np.ndarray | None:
        """Kept mask, bool [L, Hkv, n], at a decoded budget or a slider stop; None elsewhere."""
        return self._bits(self.kept_bits, method, budget, lambda sel: _stack(sel.mask))

    def protected(self, method: str, budget: float | int) -> np.ndarray | None:
        """Entries kept by rule, bool [L, Hkv, n], at a decoded budget or a slider stop."""

        def of(sel: Selection) -> np.ndarray:
            return np.broadcast_to(np.asarray(sel.protected), self._shape())

        return self._bits(self.protected_bits, method, budget, of)

    def _shape(self) -> tuple[int, int, int]:
        return self.model.n_layers, self.model.n_kv_heads, self.n

    def _bits(self, bits, method, budget, from_selection):
        variant = self.variant(method, budget)
        if variant is not None and variant.selection is not None:
            return from_selection(variant.selection)
        for index, stop in enumerate(self.stops):
            if math.isclose(stop, self.share(budget)) and method in bits:
                flat = np.unpackbits(bits[method][index], axis=-1, count=self.n)
                return flat.astype(bool).reshape(self._shape())
        return None

    def to_frame(self):
        """One row an answer, as a pandas DataFrame; the full cache comes first."""
        import pandas as pd

        return pd.DataFrame([_row(self, v) for v in [self.full, *self.variants]])

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole comparison as one strict JSON text (arrays zlib-packed); also written to `path`."""
        manifest, arrays = _pack(self)
        manifest["same"], arrays = _without_twins(arrays)
        manifest["table"] = [_row(self, v) for v in [self.full, *self.variants]]
        manifest["arrays"] = {name: _array_to_json(a) for name, a in arrays.items()}
        text = json.dumps(_plain(manifest), allow_nan=False, ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def save(self, path: str | Path, rounded: bool = False) -> Path:
        """Write one `.zip` that `load_comparison` and the app open again.

        rounded  keep 11 bits (three digits) of scores and lenses, which halves the file; kept sets,
                 errors and KL stay exact.
        """
        manifest, arrays = _pack(self)
        if rounded:
            arrays = {
                k: _rounded(a) if k.startswith(("scores_", "selection_scores_", "lenses_")) else a
                for k, a in arrays.items()
            }
            manifest["settings"] = {**manifest["settings"], "rounded": "scores and lenses to 3 digits"}
        manifest["same"], arrays = _without_twins(arrays)
        path = Path(path)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", json.dumps(_plain(manifest), allow_nan=False))
            for name, array in arrays.items():
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(f"arrays/{name}.npy", buffer.getvalue())
        return path


def load_comparison(path: str | Path) -> Comparison:
    """Read a comparison written by `Comparison.save` or `Comparison.to_json`.

    Raises InputError when the file is not one, is damaged, or was written by a newer kvviz.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no saved comparison at {path}.")
    try:
        manifest, arrays = _read_zip(path) if zipfile.is_zipfile(path) else _read_json(path)
        if manifest.get("format", 0) > FORMAT:
            raise InputError(
                f"This comparison was saved by a newer kvviz (format {manifest['format']}; this one "
                f"reads up to {FORMAT}). Update kvviz to open it."
            )
        arrays.update({name: arrays[twin] for name, twin in manifest.get("same", {}).items()})
        return _unpack(manifest, arrays)
    except InputError:
        raise
    except Exception as error:  # every way a stranger's file can be broken is the same to the reader
        raise InputError(f"{path.name} is not a comparison saved by kvviz, or it is damaged.") from error


def _read_zip(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with zipfile.ZipFile(path) as archive:
        if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
            raise InputError(f"{path.name} unpacks to more than {_MAX_BYTES // 10**9} GB.")
        manifest = json.loads(archive.read("manifest.json"))
        arrays = {
            name.removeprefix("arrays/").removesuffix(".npy"): np.load(
                io.BytesIO(archive.read(name)), allow_pickle=False
            )
            for name in archive.namelist()
            if name.startswith("arrays/") and name.endswith(".npy")
        }
    return manifest, arrays


def _read_json(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    arrays = {name: _array_from_json(spec) for name, spec in manifest["arrays"].items()}
    return manifest, arrays


def _without_twins(arrays: dict[str, np.ndarray]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Arrays that occur twice are stored once: ({name: name of its twin}, the others).

    Methods share base scores, and the table of scores repeats those of a selection.
    """
    seen: dict[tuple, str] = {}
    same: dict[str, str] = {}
    for name, array in arrays.items():
        content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
        first = seen.setdefault((content, array.dtype.str, array.shape), name)
        if first != name:
            same[name] = first
    return same, {name: array for name, array in arrays.items() if name not in same}


def _rounded(array: np.ndarray) -> np.ndarray:
    """float32 with the lowest 12 bits of the mantissa rounded away; NaN and infinities stay."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    near = ((bits.astype(np.uint64) + 0x800) & 0xFFFFF000).astype(np.uint32)
    return np.where(np.isfinite(array), near.view(np.float32), array).astype(np.float32)


def _array_to_json(array: np.ndarray) -> dict[str, Any]:
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "zlib_base64": packed}


def _array_from_json(spec: dict[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(spec["dtype"]), tuple(int(s) for s in spec["shape"])
    size = dtype.itemsize * math.prod(shape)
    if dtype.hasobject or size > _MAX_BYTES:
        raise InputError("This comparison holds an array that cannot be read safely.")
    raw = zlib.decompressobj().decompress(base64.b64decode(spec["zlib_base64"]), size + 1)
    return np.frombuffer(raw, dtype=dtype).reshape(shape).copy()


def _plain(value: Any) -> Any:
    """Numpy scalars to Python, NaN and infinities to null: strict JSON."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(c: Comparison, v: Variant) -> dict[str, Any]:
    kl = v.kl if v.kl is not None and len(v.kl) else None
    error = v.output_error
    return {
        "method": v.method,
        "label": v.label,
        "budget": v.budget,
        "share": c.share(v.budget),
        "entries": v.entries,
        "tokens_kept": v.tokens_kept,
        "bytes": v.bytes,
        "text": v.text,
        "first_difference": v.first_difference,
        "mean_kl": mean_kl(kl, c.prompt.protocol),
        "max_kl": None if kl is None else float(np.max(kl)),
        "median_output_error": None if error is None else float(np.nanmedian(error)),
        "mean_output_error": None if error is None else float(np.nanmean(error)),
    }


def mean_kl(kl: np.ndarray | None, protocol: str) -> float | None:
    """Mean of KL a step. Question-aware, step 0 is zero by construction and is left out."""
    if kl is None or len(kl) == 0:
        return None
    rest = kl[1:] if protocol == "question-aware" and len(kl) > 1 else kl
    return float(np.mean(rest))


def _stack(rows) -> np.ndarray:
    return np.stack([np.asarray(row) for row in rows])


_VARIANT_ARRAYS = ("kl", "output_error", "output_error_l1", "layer_error")
_TABLES = ("kept_bits", "protected_bits", "stop_entries", "stop_errors", "scores", "lenses")


def _pack(c: Comparison) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays: dict[str, np.ndarray] = {"input_ids": np.asarray(c.prompt.input_ids)}
    seen: dict[tuple[int, ...], str] = {}  # selections of one method share their score tensors

    def shared(rows) -> str:
        key = tuple(id(row) for row in rows)
        if key not in seen:
            seen[key] = f"selection_scores_{len(seen)}"  # "scores_0" is a table's
            arrays[seen[key]] = _stack(rows)
        return seen[key]

    def pack_variant(v: Variant, name: str) -> dict[str, Any]:
        plain = {
            f.name: getattr(v, f.name)
            for f in dataclasses.fields(v)
            if f.name not in (*_VARIANT_ARRAYS, "selection")
        }
        for key in _VARIANT_ARRAYS:
            if getattr(v, key) is not None:
                arrays[f"{name}_{key}"] = np.asarray(getattr(v, key))
        if v.selection is not None:
            s = v.selection
            arrays[f"{name}_kept"] = np.packbits(_stack(s.mask), axis=-1)
            arrays[f"{name}_stage"] = np.asarray(s.stage)
            arrays[f"{name}_cutoff"] = np.asarray(s.cutoff)
            plain["selection"] = {
                "scope": s.scope,
                "notes": s.notes,
                "seconds": s.seconds,
                "scores": shared(s.scores),
                "scores_raw": shared(s.scores_raw),
                "first_scores": None if s.first_scores is None else shared(s.first_scores),
            }
        return plain

    manifest: dict[str, Any] = {
        "kvviz": "comparison",
        "format": FORMAT,
        "model": dataclasses.asdict(c.model),
        "prompt": {
            f.name: getattr(c.prompt, f.name) for f in dataclasses.fields(c.prompt) if f.name != "input_ids"
        },
        "settings": c.settings,
        "full": pack_variant(c.full, "full"),
        "variants": [pack_variant(v, f"variant{i}") for i, v in enumerate(c.variants)],
        "bytes_full": c.bytes_full,
        "marks": [dataclasses.asdict(m) for m in c.marks],
        "expected": c.expected,
        "stops": list(c.stops),
        "seconds": c.seconds,
        "notes": c.notes,
        "tables": {},
    }
    for table in _TABLES:
        keys = list(getattr(c, table))
        manifest["tables"][table] = keys
        for index, key in enumerate(keys):
            arrays[f"{table}_{index}"] = np.asarray(getattr(c, table)[key])
    return manifest, arrays


def _unpack(m: dict[str, Any], arrays: dict[str, np.ndarray]) -> Comparison:
    import torch

    p = m["prompt"]
    prompt = Prompt(
        input_ids=torch.from_numpy(arrays["input_ids"]),
        n_compressible=p["n_compressible"],
        tokens=p["tokens"],
        offsets=[tuple(o) if o is not None else None for o in p["offsets"]],
        document=p["document"],
        question=p["question"],
        system=p["system"],
        protocol=p["protocol"],
        document_span=tuple(p["document_span"]),
        question_span=tuple(p["question_span"]),
        notes=tuple(p["notes"]),
    )
    n = prompt.n_compressible
    tensors: dict[str, list[torch.Tensor]] = {}

    def scores(name: str | None) -> list[torch.Tensor] | None:
        if name is None:
            return None
        if name not in tensors:
            tensors[name] = list(torch.from_numpy(arrays[name]))
        return tensors[name]

    def variant(spec: dict[str, Any], name: str) -> Variant:
        plain = {k: v for k, v in spec.items() if k != "selection"}
        v = Variant(**plain, selection=None)
        for key in _VARIANT_ARRAYS:
            setattr(v, key, arrays.get(f"{name}_{key}"))
        if "selection" in spec:
            s = spec["selection"]
            mask = np.unpackbits(arrays[f"{name}_kept"], axis=-1, count=n).astype(bool)
            stage = torch.from_numpy(arrays[f"{name}_stage"])
            v.selection = Selection(
                method=v.method,
                label=v.label,
                budget=v.budget,
                entries=v.entries,
                options=v.options,
                mask=list(torch.from_numpy(mask)),
                scores=scores(s["scores"]),
                scores_raw=scores(s["scores_raw"]),
                budgets=torch.from_numpy(mask.sum(-1).astype(np.int64)),
                protected=stage == 3,
                stage=stage,
                cutoff=torch.from_numpy(arrays[f"{name}_cutoff"]),
                scope=s["scope"],
                notes=s["notes"],
                first_scores=scores(s["first_scores"]),
                seconds=s["seconds"],
            )
        return v

    model = dict(m["model"])
    model["windows"] = tuple(model["windows"])
    tables = {
        table: {key: arrays[f"{table}_{i}"] for i, key in enumerate(keys)}
        for table, keys in m["tables"].items()
    }
    return Comparison(
        model=ModelInfo(**model),
        prompt=prompt,
        settings=m["settings"],
        full=variant(m["full"], "full"),
        variants=[variant(v, f"variant{i}") for i, v in enumerate(m["variants"])],
        bytes_full=m["bytes_full"],
        marks=[Mark(**mark) for mark in m["marks"]],
        expected=m["expected"],
        stops=tuple(m["stops"]),
        seconds=m["seconds"],
        notes=m["notes"],
        **tables,
    )
