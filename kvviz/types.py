"""The values that travel from stage to stage. Read this file first.

Letters used everywhere: L layers, Hq query heads, Hkv KV heads, g = Hq / Hkv (group), n tokens under
compression, W observation window, d head size, D hidden size, b budget (entries kept per KV head on
average). Query head h belongs to KV head h // g. Layers, heads and tokens count from 0.

An *entry* is one (layer, KV head, token) row of the cache: the unit that is kept or evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # torch stays out of this module, so figures can import it without a model at hand
    import torch

QUESTION_AWARE = "question-aware"  # document and question are compressed together
QUESTION_AGNOSTIC = "question-agnostic"  # the document alone is compressed, the question comes later
PROTOCOLS = (QUESTION_AWARE, QUESTION_AGNOSTIC)


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

    input_ids       LongTensor [N], the whole prompt, template included.
    n_compressible  leading tokens that may be evicted: N (question-aware) or the part up to the
                    document's end (question-agnostic).
    tokens          N readable strings, one a token.
    offsets         N items: (start, end) characters in `document`, or None for tokens outside it.
    document_span   (start, end) token positions that the document occupies; question_span likewise.
    """

    input_ids: torch.Tensor
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


@dataclass(frozen=True)
class Mark:
    """A named span of tokens worth following: the needle, a chosen passage. `end` is exclusive."""

    name: str  # "M1", or "M1a", "M1b" when one text occurs several times
    start: int
    end: int
    text: str
    reason: str = ""


@dataclass(frozen=True)
class Selection:
    """What one method keeps of a trace at one budget.

    mask       list over layers of bool [Hkv, n], True = kept.
    scores     list over layers of float32 [Hkv, n]; NaN where the method gives no score (protected
               tokens, tokens outside a sliding window).
    scores_raw the same before pooling.
    budgets    int64 [L, Hkv], entries kept by each head.
    protected  bool [L, Hkv, n], kept by rule rather than by score.
    stage      int8 [L, Hkv, n]: 0 evicted, 1 and 2 the stage that kept the entry, 3 protected.
    cutoff     float32 [L, Hkv]: the lowest score that was still kept by score, NaN where none was.
    scope      what an entry competed with: "head", "layer" or "all".
    first_scores   for two-stage methods the scores of stage 1 (float32 [Hkv, n] a layer), else None.
    readout    what the method adds to the kept entries' attention output (`kvviz.methods.base.Readout`),
               None for all methods that only evict.
    """

    method: str
    label: str
    budget: float | int  # as it was asked for
    entries: int  # b, entries per KV head on average
    options: dict[str, Any]
    mask: list[torch.Tensor]
    scores: list[torch.Tensor]
    scores_raw: list[torch.Tensor]
    budgets: torch.Tensor
    protected: torch.Tensor
    stage: torch.Tensor
    cutoff: torch.Tensor
    scope: str
    notes: list[str] = field(default_factory=list)
    first_scores: list[torch.Tensor] | None = None
    seconds: float = 0.0
    readout: Any = None


@dataclass
class Variant:
    """One answer: the full cache (method "full") or one method at one budget.

    kl            float32 [T], nats a step against the full cache, teacher-forced on its answer.
    output_error  float32 [L, Hq], relative L2 change of each head's contribution, mean over probe queries.
    bytes         storage allocated for the prompt's entries; generated rows are not in it.
    tokens_kept   entries kept per KV head, averaged over layers and heads.
    agreement     word F1 and exact match against the full cache's answer ("f1_full", "exact_full") and,
                  where an expected answer was given, against that ("f1_expected", "exact_expected").
    first_difference  index of the first generated token that differs from the full cache's, or None.
    """

    method: str
    label: str
    budget: float | int
    entries: int
    options: dict[str, Any]
    selection: Selection | None
    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    finished: str = ""  # "stop token", "length" or "cancelled"
    kl: np.ndarray | None = None
    output_error: np.ndarray | None = None
    output_error_l1: np.ndarray | None = None  # float32 [L, Hq]
    layer_error: np.ndarray | None = None  # float32 [L], after summing heads
    bytes: int = 0
    tokens_kept: float = 0.0
    first_difference: int | None = None
    agreement: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    evictions: list[dict[str, Any]] = field(default_factory=list)  # decode-time eviction, one a cut

    @property
    def key(self) -> str:
        """Unique within a comparison and stable across runs."""
        return f"{self.method}@{self.budget}"


@dataclass(frozen=True)
class Event:
    """One step of a running comparison.

    stage  "prefill", "score", "decode", "measure", "done".
    done, total  counts within the stage (tokens, methods, steps); seconds_left is an estimate or None.
    answers      {variant key: text so far} when the event carries new text.
    """

    stage: str
    message: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    answers: dict[str, str] | None = None
    result: Any = None  # the Comparison, on the last event
    trace: Any = None  # the Trace behind it, to be used again
