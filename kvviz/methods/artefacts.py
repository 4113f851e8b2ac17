"""Calibrated files: what a method measured or learned on one model, with where it came from.

One safetensors file a method and model. It is found by the hash of the model's weights and by what its
configuration says of attention, whatever folder or name it has: first in `assets/artefacts`, which ships,
then in the user's cache folder. Its metadata holds one JSON object: model id and weight hashes, that part of
the configuration, texts, steps, losses, seed, date, code version and the SHA-256 of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvviz.errors import InputError, NeedError
from kvviz.methods.spec import ArtefactSpec
from kvviz.resources import asset
from kvviz.settings import settings

SHIPPED = asset("artefacts")
FORMAT = 1
_KEY = "kvviz"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# What the same weights compute depends on these: keys and queries are calibrated as they are after them.
_ATTENTION = ("rope_parameters", "sliding_window", "layer_types", "query_pre_attn_scalar", "rms_norm_eps")


def spec_of(name: str) -> ArtefactSpec:
    """The spec called `name`; InputError names those there are."""
    from kvviz.methods import artefact_specs

    specs = artefact_specs()
    if name not in specs:
        raise InputError(f"There is nothing to calibrate called {name!r}. Choose from: {', '.join(specs)}.")
    return specs[name]


@dataclass(frozen=True)
class Artefact:
    """tensors  float32 by name (`ArtefactSpec.shapes`); about  the provenance as plain values."""

    name: str
    tensors: dict[str, torch.Tensor]
    about: dict[str, Any]


_lent: ContextVar[Mapping[str, Artefact]] = ContextVar("kvviz_lent", default={})  # noqa: B039, never written


@contextmanager
def lend(artefact: Artefact) -> Iterator[None]:
    """Within it, this thread uses `artefact` in place of any file (while calibrating, and in tests)."""
    token = _lent.set({**_lent.get(), artefact.name: artefact})
    try:
        yield
    finally:
        _lent.reset(token)


def load(model, name: str) -> Artefact:
    """The artefact `name` of this model. NeedError says how to make it; InputError what is damaged."""
    if name in _lent.get():
        return _lent.get()[name]
    path = find(model, name)
    if path is None:
        raise NeedError(missing(model, name, name))
    state = path.stat()
    artefact = _read(path, state.st_mtime_ns, state.st_size)
    check(artefact, model.info, path.name)
    return artefact


def missing(model, name: str, label: str) -> str:
    """Why `label` cannot run on this model: one sentence, "" where its artefact is there."""
    if name in _lent.get() or find(model, name) is not None:
        return ""
    command = f"python -m kvviz calibrate {name} --model {model.id}"
    for folder in (SHIPPED / model.id, folders()[1] / _slug(model)):
        path = folder / f"{name}.safetensors"
        if path.is_file() and _about_or_none(path) is None:
            return f"The calibrated file {path.name} for {model.id} is damaged. Make it again: {command}"
    return f"{label} was not calibrated for {model.id}. Calibrate it first: {command}"


def find(model, name: str) -> Path | None:
    """The file of this artefact for exactly these weights (in whatever dtype they are loaded), read with the
    same configuration."""
    for folder in folders():
        for path in sorted(folder.glob(f"*/{name}.safetensors")):
            about = _about_or_none(path)
            if about is None or about["name"] != name or about.get("config") != attention_config(model):
                continue
            if model.weights_hash in about["weights"].values():
                return path
    return None


def attention_config(model) -> dict[str, Any]:
    """What the model's configuration says of its attention, as plain values; numbers to six digits, for they
    may have gone through float32 in a model file."""
    config = model.hf.config.get_text_config()
    found = {key: getattr(config, key, None) for key in _ATTENTION}
    text = json.dumps({key: value for key, value in found.items() if value is not None})
    return json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))


def folders() -> tuple[Path, Path]:
    """Where artefacts are looked for, in order: shipped, then made by this user."""
    return SHIPPED, settings().cache / "artefacts"


def folder_for(model, out: Path | str | None = None) -> Path:
    """Where a new artefact of this model goes; made if need be."""
    base = Path(out) if out is not None else folders()[1] / _slug(model)
    base.mkdir(parents=True, exist_ok=True)
    return base


def _slug(model) -> str:
    # Two models may share a name (two folders called "final"): the hash tells them apart.
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model.id)}-{model.weights_hash[:8]}"


def save(model, name: str, tensors: dict[str, torch.Tensor], about: dict[str, Any], folder: Path) -> Path:
    """Write an artefact beside its final place and rename it, so that a reader sees all of it or nothing."""
    from kvviz import __version__

    stored = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    about = {
        "format": FORMAT,
        "name": name,
        "model": model.id,
        "weights": {str(d).removeprefix("torch."): model.weights_hash_as(d) for d in _DTYPES},
        "config": attention_config(model),
        "calibrated_in": model.info.dtype,
        **about,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "sha256": digest(stored),
    }
    artefact = Artefact(name, {k: v.float() for k, v in stored.items()}, about)
    check(artefact, model.info, name)
    path = folder / f"{name}.safetensors"
    handle, partial = tempfile.mkstemp(dir=folder, prefix=".unfinished-", suffix=".safetensors")
    os.close(handle)
    try:
        save_file(stored, partial, {_KEY: json.dumps(about, ensure_ascii=False)})
        os.chmod(partial, 0o644)  # a temporary file is private, an artefact is not
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and values."""
    made = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        made.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        made.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def read(path: Path) -> Artefact:
    """An artefact file, its hash checked. InputError says what is wrong with it."""
    state = path.stat()
    return _read(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=32)
def _read(path: Path, modified: int, size: int) -> Artefact:
    about = _about(path, modified, size)
    with safe_open(path, "pt") as file:
        stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, not a mapping
    if digest(stored) != about.get("sha256"):
        raise InputError(f"The calibrated file {path.name} is damaged: its checksum does not match.")
    return Artefact(about["name"], {k: v.float() for k, v in stored.items()}, about)


@lru_cache(maxsize=256)
def _about(path: Path, modified: int, size: int) -> dict[str, Any]:
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[_KEY])
        if not (isinstance(about["weights"], dict) and isinstance(about["name"], str)):
            raise ValueError("neither hashes nor a name")
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} is not a calibrated file of this project, or is damaged.") from error
    if about.get("format") != FORMAT:
        raise InputError(f"{path.name} has format {about.get('format')!r}; this version reads {FORMAT}.")
    return about


def _about_or_none(path: Path) -> dict[str, Any] | None:
    try:
        state = path.stat()
        return _about(path, state.st_mtime_ns, state.st_size)
    except (OSError, InputError):
        return None  # another model's file may be broken without concern to this one


def check(artefact: Artefact, info, where: str) -> None:
    """InputError unless names and shapes fit the model and every number is finite."""
    wanted = spec_of(artefact.name).shapes(info)
    got = {key: tuple(value.shape) for key, value in artefact.tensors.items()}
    if got != wanted:
        raise InputError(f"{where} does not fit {info.id}: it holds {got}, wanted is {wanted}.")
    for key, value in artefact.tensors.items():
        if not value.isfinite().all():
            raise InputError(f"{where} holds numbers that are not finite ({key}).")
