"""Load a model by name: the embedded one, a hub id, a local folder or a local .gguf file."""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from kvviz import memory
from kvviz.errors import ModelError
from kvviz.hardware import cpu_threads, gpu_has_bfloat16, lent
from kvviz.identity import model_name, shown
from kvviz.models.adapters import Model, family_of, wrap_model
from kvviz.models.catalog import CATALOG, offer, offered
from kvviz.models.converted import EMBEDDED, NO_NETWORK, converted_folder, embedded_key, gguf_key
from kvviz.models.gguf import Progress
from kvviz.models.hub_cache import damaged_sentence, drop_damaged
from kvviz.models.room import NO_MEMORY, check_memory
from kvviz.settings import settings
from kvviz.types import DTYPES

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_model(
    name: str, dtype: str = "auto", device: str = "auto", progress: Progress | None = None
) -> Model:
    """Load a model.

    name      an id of the catalogue, a hub id (owner/name) or the address of its page, a local folder or a
              local .gguf file.
    dtype     "float32", "bfloat16", "float16", or "auto": bfloat16 where this device computes fast
              in it, else float32.
    device    "cpu", "cuda", "cuda:1", or "auto": over several GPUs where one is too small.
    progress  called as progress(message, fraction or None) while something slow goes on.

    Raises ModelError with one sentence when a model is unknown, unsupported, unreachable or broken.
    """
    say = progress or (lambda message, fraction: None)
    limits = settings()
    name = model_name(name)
    known = offer(name)
    if limits.public and known not in (rows := offered(limits)):
        raise ModelError(f"This server offers these models: {', '.join(row.id for row in rows)}.")
    where = pick_device(device)
    numbers = pick_dtype(dtype, where)
    if where.type == "cpu" and not lent():
        torch.set_num_threads(cpu_threads())
    notes: list[str] = []
    source: Path | str
    with _quiet_bars():
        if known and known.source is None:
            source, notes = converted_folder(EMBEDDED, embedded_key(), numbers, limits.cache, None, say)
            id = known.id
        elif known and known.source:
            source = id = known.source
        else:
            source, id = _find(name)
            if isinstance(source, Path) and source.suffix.lower() == ".gguf":
                source, notes = converted_folder(id, gguf_key(source), numbers, limits.cache, source, say)
        say(f"Loading {id}", None)
        spread = device == "auto" and where.type == "cuda" and torch.cuda.device_count() > 1
        hf_model, tokenizer = (
            _read_folder(source, id, numbers, where, spread)
            if isinstance(source, Path)
            else _read_hub(source, numbers, say, where, spread)
        )
        if not on_several(hf_model, id):
            try:
                hf_model = hf_model.to(where)
            except torch.OutOfMemoryError as error:
                raise ModelError(
                    f"{id} does not fit into the memory of {where}; choose a smaller model or bfloat16."
                ) from error
    return dataclasses.replace(wrap_model(hf_model, tokenizer, id, tuple(notes)), source=name)


def _find(name: str) -> tuple[Path | str, str]:
    """(what to load, id to show) for a name that is not in the catalogue."""
    path = Path(os.path.expanduser(name))  # like isdir and isfile, it takes any text for a name
    if name and os.path.isdir(path):
        ggufs = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(ggufs) == 1:
            return ggufs[0], ggufs[0].stem
        if not (path / "config.json").exists():
            raise ModelError(f"The folder {path.name} holds no model: there is no config.json in it.")
        return path, path.resolve().name
    if os.path.isfile(path):
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path.name} is a single file; give the folder it lies in, or a .gguf file.")
        return path, path.stem
    if _HUB_ID.fullmatch(name) and not name.lower().endswith(".gguf"):
        return name, name
    raise ModelError(
        f"There is no model {shown(name)}: give one of {', '.join(o.id for o in CATALOG)}, a hub id "
        "such as Qwen/Qwen3-0.6B, a local folder or a .gguf file."
    )


def on_several(hf_model: Any, id: str) -> bool:
    """Whether its layers were spread over several GPUs; ModelError where those do not hold all of them."""
    places = getattr(hf_model, "hf_device_map", None) or {}
    if {"cpu", "disk"} & {str(place) for place in places.values()}:
        raise ModelError(f"{id} does not fit into the memory of all GPUs here; choose a smaller model.")
    return len(set(places.values())) > 1


def _weights(config: Any) -> int:
    """How many weights a model of this configuration has."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())


def _larger_than_one_gpu(config: Any, dtype: torch.dtype) -> bool:
    """Whether the weights of this configuration leave less than a quarter of one GPU's free memory."""
    return _weights(config) * dtype.itemsize > 0.75 * torch.cuda.mem_get_info(0)[0]


def _read_folder(
    folder: Path, id: str, dtype: torch.dtype, where: torch.device, spread: bool
) -> tuple[Any, Any]:
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    check_memory(id, stored, where)
    try:
        return _read(str(folder), id, dtype, where, spread, local_files_only=True)
    except ModelError:
        raise
    except Exception as error:  # file and format errors have no common base
        raise ModelError(_folder_sentence(id, error)) from error


def _read_hub(
    id: str, dtype: torch.dtype, say: Progress, where: torch.device, spread: bool
) -> tuple[Any, Any]:
    """From the hub's local cache if it is complete and whole there, else over the network."""
    try:
        return _read(id, id, dtype, where, spread, local_files_only=True)
    except ModelError:
        raise
    except Exception:  # not cached, not all of it, or damaged
        damaged = drop_damaged(id)
        say(f"Fetching {id} again: it was damaged" if damaged else f"Fetching {id}", None)
    try:
        # One quick question first: without a network the loader would retry for half a minute.
        get_hf_file_metadata(hf_hub_url(id, "config.json"), timeout=10)
        return _read(id, id, dtype, where, spread, local_files_only=False)
    except ModelError:
        raise
    except Exception as error:  # hub, network and format errors have no common base
        sentence = _hub_sentence(id, error)
        if damaged and sentence == NO_NETWORK:
            sentence = (
                f"What was fetched of {id} earlier was damaged ({', '.join(damaged)}) and is removed; try "
                "again when there is a network."
            )
        raise ModelError(sentence) from error


def _read(
    place: str, id: str, dtype: torch.dtype, where: torch.device, spread: bool, local_files_only: bool
) -> tuple[Any, Any]:
    """Configuration first: a model we cannot serve, or memory cannot hold, is refused before it is fetched.
    Weights go straight to a GPU: the machine's own memory is often the smaller one.

    spread  there are several GPUs, over which a model goes that is too large for one.
    """
    plain: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local_files_only}
    config = AutoConfig.from_pretrained(place, **plain)
    family_of(config, id)
    tokenizer = AutoTokenizer.from_pretrained(place, **plain)
    over: dict[str, Any] = {}
    if where.type == "cuda":
        several = spread and _larger_than_one_gpu(config, dtype)
        over["device_map"] = "auto" if several else where
    if place == id:  # of the hub; what lies in a folder was weighed by its files
        check_memory(id, _weights(config) * dtype.itemsize, where)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True, **plain, **over
        )
    except (MemoryError, RuntimeError) as error:
        if not memory.ran_out(error):
            raise
        raise ModelError(NO_MEMORY.format(id=id)) from error
    hf_model, report = loaded
    # transformers fills absent weights with random numbers and only warns.
    if report["missing_keys"]:
        raise ModelError(
            f"The weights of {id} are incomplete: {len(report['missing_keys'])} are missing, "
            f"for example {sorted(report['missing_keys'])[0]}."
        )
    return hf_model, tokenizer


def _folder_sentence(id: str, error: Exception) -> str:
    first = textwrap.shorten(str(error), 200, placeholder=" …")  # the reason may stand in its second line
    if "safetensors" in type(error).__module__ or "afetensor" in type(error).__name__:
        return f"The weights in the folder {id} are damaged or cut short ({first})."
    return f"The folder {id} could not be read as a model: {first}"


def _hub_sentence(id: str, error: BaseException) -> str:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    kinds = {base.__name__ for item in chain for base in type(item).__mro__}
    words = " ".join(str(item) for item in chain)
    if "GatedRepoError" in kinds:
        return f"{id} is gated: accept its terms on the hub and log in there, or choose another model."
    if "RepositoryNotFoundError" in kinds:
        return f"There is no model {id} on the hub, or it is private."
    no_network = {
        "ConnectError",
        "ConnectionError",
        "TransportError",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "NetworkError",
    }
    if kinds & no_network or "connect to" in words or "offline mode" in words:
        return NO_NETWORK
    if "EntryNotFoundError" in kinds:
        return f"{id} holds no transformers model (there is no config.json)."
    if kinds & {"SafetensorError", "JSONDecodeError"}:
        return damaged_sentence(id)
    if "No space left" in words:
        return f"There is not enough disk space to fetch {id}."
    if "safetensors" in words and "no file named" in words:
        return f"{id} offers no safetensors weights; other formats can carry code and are not read."
    return f"{id} could not be loaded: {str(error).strip().split(chr(10))[0]}"


def pick_device(device: str = "auto") -> torch.device:
    """The torch device for "auto", "cpu", "cuda" or "cuda:<n>"."""
    if device == "auto":
        # Where a GPU is lent by the call, the main process must not touch CUDA although torch claims it.
        return torch.device("cuda" if not lent() and torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"There is no device {device!r}; choose auto, cpu or cuda.") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ModelError(f"kvviz does not run on {device!r}; choose auto, cpu or cuda.")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ModelError(f"There is no device {device!r} on this machine; choose auto or cpu.")
    return chosen


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype for a name of `DTYPES` or "auto"."""
    if dtype == "auto":
        if lent():  # it waits on the CPU and computes on a GPU that has bfloat16
            return torch.bfloat16
        fast = gpu_has_bfloat16() if device.type == "cuda" else _cpu_has_bfloat16()
        return torch.bfloat16 if fast else torch.float32
    if dtype not in DTYPES:
        raise ModelError(f"There is no dtype {dtype!r}; choose one of {', '.join(DTYPES)}.")
    return getattr(torch, dtype)


def _cpu_has_bfloat16() -> bool:
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(known.split()))


@contextmanager
def _quiet_bars() -> Iterator[None]:
    """Silence transformers' own progress bars; `progress` says what is going on."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
