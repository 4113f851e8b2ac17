"""Named arrays and a JSON manifest as one file: a zip of plain `.npy` arrays (no pickles), or one strict JSON
text. Arrays are read one by one, each only with the shape and kind it must have.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvviz.errors import InputError

_MAX_MANIFEST = 64_000_000  # bytes of JSON
_MAX_BYTES = 2_000_000_000  # of unpacked arrays


def write_zip(path: Path, manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> Path:
    """Manifest and arrays into one zip."""
    same, arrays = _without_twins(arrays)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(_plain({**manifest, "same": same}), allow_nan=False))
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"arrays/{name}.npy", buffer.getvalue())
    return path


def json_text(manifest: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """The same as one JSON text."""
    same, arrays = _without_twins(arrays)
    packed = {name: _array_to_json(array) for name, array in arrays.items()}
    whole = _plain({**manifest, "same": same, "arrays": packed})
    return json.dumps(whole, allow_nan=False, ensure_ascii=False)


class Refused(InputError):
    """A file that is refused for a reason of its own, not as damaged."""


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
                raise Refused(f"This comparison unpacks to more than {_MAX_BYTES // 10**9} GB.")
            array = self.body(name)
            if array.shape != found or array.dtype != kind:
                raise ValueError(f"array {name} is cut")
            self._read[name] = array
        return self._read[name]


def open_zip(archive: zipfile.ZipFile) -> tuple[dict, Callable[[dict], Arrays]]:
    """(manifest, how its arrays are read once their twins are known)."""
    if archive.getinfo("manifest.json").file_size > _MAX_MANIFEST:
        raise Refused(f"The manifest of this comparison is larger than {_MAX_MANIFEST // 10**6} MB.")
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


def open_json(path: Path) -> tuple[dict, Callable[[dict], Arrays]]:
    """The same of one JSON text."""
    if path.stat().st_size > _MAX_BYTES:
        raise Refused(f"{path.name} is larger than {_MAX_BYTES // 10**9} GB.")
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
        first = seen.setdefault(digest(array), name)
        if first != name:
            same[name] = first
    return same, {name: array for name, array in arrays.items() if name not in same}


def digest(array: np.ndarray) -> tuple:
    """What tells this array from another."""
    content = hashlib.sha256(np.ascontiguousarray(array).data).digest()
    return content, array.dtype.str, array.shape


def three_digits(array: np.ndarray) -> np.ndarray:
    """float32 with the lowest 12 bits of the mantissa rounded away; NaN and infinities stay."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    near = ((bits.astype(np.uint64) + 0x800) & 0xFFFFF000).astype(np.uint32)
    return np.where(np.isfinite(array), near.view(np.float32), array).astype(np.float32)


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
