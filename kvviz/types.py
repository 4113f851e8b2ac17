"""The values that travel from stage to stage. Read this file first.

Letters used everywhere: L layers, Hq query heads, Hkv KV heads, g = Hq / Hkv (group), n tokens under
compression, W observation window, d head size, D hidden size, b budget (entries kept per KV head on
average). Query head h belongs to KV head h // g. Layers, heads and tokens count from 0.

An *entry* is one (layer, KV head, token) row of the cache: the unit that is kept or evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kvviz.brief import brief
from kvviz.framing import Framing

if TYPE_CHECKING:  # neither is needed to say what travels
    import numpy as np
    import torch

QUESTION_AWARE = "question-aware"  # document and question are compressed together
QUESTION_AGNOSTIC = "question-agnostic"  # the document alone is compressed, the question comes later
PROTOCOLS = (QUESTION_AWARE, QUESTION_AGNOSTIC)
PAGE_END = "\f"  # the last character of a document's page that another follows
DTYPES = ("auto", "float32", "bfloat16", "float16")  # number formats a model may be asked for in


T = TypeVar("T")


def complete(items: Iterable[T | None]) -> list[T] | None:
    """All of them, or None where one is missing."""
    found: list[T] = []
    for item in items:
        if item is None:
            return None
        found.append(item)
    return found


@dataclass(frozen=True)
class ModelInfo:
    """What a picture needs to know of a model once the weights are gone."""

    id: str
    n_layers: int
    n_query_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    dtype: str  # "float32", "bfloat16" or "float16"
    windows: tuple[int | None, ...]  # sliding window of each layer, None = full attention
    max_tokens: int  # longest prompt plus answer the model was made for

    @property
    def group(self) -> int:
        """Query heads per KV head, g."""
        return self.n_query_heads // self.n_kv_heads


@dataclass(frozen=True)
class Prompt:
    """A document and a question as the model reads them.

    input_ids       LongTensor [N], the whole prompt, template included; int64 numpy once read from a file.
    n_compressible  leading tokens that may be evicted: N (question-aware) or the part up to the
                    document's end (question-agnostic).
    tokens          N readable strings, one a token.
    offsets         N items: (start, end) characters in `document`, or None for tokens outside it.
    document_span   (start, end) token positions that the document occupies; question_span likewise.
    now             ISO text of the time that the template wrote into the prompt, None where it wrote none.
    framing         what stands around document and question.
    cue_span        (start, end) of the tokens that the answer was made to begin with.
    """

    input_ids: torch.Tensor | np.ndarray
    n_compressible: int
    tokens: list[str]
    offsets: list[tuple[int, int] | None]
    document: str
    question: str
    system: str | None
    protocol: str
    document_span: tuple[int, int]
    question_span: tuple[int, int]
    notes: tuple[str, ...] = ()
    now: str | None = None
    framing: Framing = Framing()
    cue_span: tuple[int, int] = (0, 0)

    __repr__ = brief

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """(first, last + 1) of the tokens that hold any of the document's characters start .. end - 1;
        None where none does (a template may strip white space at the document's edges)."""
        inside = [
            token
            for token, span in enumerate(self.offsets)
            if span is not None and span[0] < end and span[1] > start
        ]
        return (inside[0], inside[-1] + 1) if inside else None


@dataclass(frozen=True)
class Mark:
    """A named span of tokens worth following: the needle, a chosen passage. `end` is exclusive."""

    name: str  # "M1", or "M1a", "M1b" when one text occurs several times
    start: int
    end: int
    text: str
    reason: str = ""


@dataclass(frozen=True)
class Event:
    """One step of a running comparison.

    stage  "prefill", "score", "decode", "measure", "done".
    done, total  counts within the stage (tokens, methods, steps); seconds_left is an estimate or None.
    answers      {"SnapKV · 20%": text so far} when the event carries new text.
    """

    stage: str
    message: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    answers: dict[str, str] | None = None
    result: Any = None  # the Comparison, on the last event
    scored: Any = None  # the trace behind it with its scores (`engine.scoring.Scored`), to be used again

    __repr__ = brief
