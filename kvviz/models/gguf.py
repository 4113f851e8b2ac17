"""A GGUF file as a transformers folder: weights unpacked, answers ended where its template ends them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from kvviz import memory
from kvviz.errors import Cancelled, ModelError
from kvviz.models.adapters import family_of
from kvviz.models.room import NO_MEMORY, check_memory, no_space

Progress = Callable[[str, float | None], None]

_HEADER = 2**26  # bytes that hold the names and tokens at the start of any GGUF file
_ANSWER = "kvvizAnswer8d02"  # stand-in while rendering


def unpack(id: str, gguf: Path, dtype: torch.dtype, target: Path, say: Progress) -> list[str]:
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
        raise ModelError(no_space(id, folder.parent.parent))


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
