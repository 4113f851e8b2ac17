"""One answer, and what one method keeps at one budget, on numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvviz.brief import brief
from kvviz.errors import InputError
from kvviz.identity import MethodRef
from kvviz.results.kept import KeptSet

# Where output errors are measured; the second where caches were cut while the answer was written.
PROBE = "the full cache's answer tokens"
PROBE_CUT = f"{PROBE}, on what each cache held then"


@dataclass
class Variant:
    """One answer: the full cache (method "full") or one method at one budget.

    selection     what was kept: the engine's `Selection` after a run, a `Point` (numpy, with the same
                  names) once it was read back from a file.
    kl            float32 [T], nats a step against the full cache, teacher-forced on its answer.
    output_error  float32 [L, Hq], relative L2 change of each head's contribution, mean over probe queries.
    bytes         storage allocated for the prompt's entries; generated rows are not in it.
    tokens_kept   entries kept per KV head, averaged over layers and heads.
    first_difference  index of the first generated token that differs from the full cache's, or None.
    """

    method: str
    label: str
    budget: float | int
    entries: int
    options: dict[str, Any]
    selection: Any
    token_ids: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    text: str = ""
    finished: str = ""  # "stop token", "length" or "cancelled"
    kl: np.ndarray | None = None
    output_error: np.ndarray | None = None
    layer_error: np.ndarray | None = None  # float32 [L], after summing heads
    bytes: int = 0
    tokens_kept: float = 0.0
    first_difference: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    evictions: list[dict[str, Any]] = field(default_factory=list)  # decode-time eviction, one a cut

    __repr__ = brief

    @property
    def key(self) -> str:
        """Unique within a comparison and stable across runs."""
        return f"{self.method}@{self.budget}"

    @property
    def made(self) -> str:
        """ "edit1" or "control0" where the kept set was made by hand, "" where a method chose it."""
        return MethodRef.parse(self.method).made

    @property
    def packed(self) -> Point:
        """The selection on numpy; the engine's own is packed once."""
        held, point = self.__dict__.get("_packed", (None, None))
        if held is not self.selection:
            point = self.selection if isinstance(self.selection, Point) else Point.pack(self.selection)
            self._packed = self.selection, point
        return point


@dataclass(frozen=True, eq=False)
class Point:
    """A method at one budget: decoded, or one of the slider's stops. On numpy alone.

    kept    the kept entries.
    scores  rows of float32 [Hkv, n], one a layer, NaN where the method gives none: the ones that decided
            here, or at a stop those of the method's largest decoded budget; None where none were stored.
    error   float32 [L, Hq], relative L2 output error; None where it was not measured.
    answer  what was decoded here, None at a stop.

    Of a decoded budget only, else None: scores_raw (before pooling), first_scores (of stage 1), stage
    int8 [L, Hkv, n] (0 evicted, 1 and 2 the stage that kept the entry, 3 kept by rule), cutoff float32
    [L, Hkv] (the lowest score that was still kept by score).
    scope   what an entry competed with: "head", "layer" or "all".
    """

    method: str
    budget: float | int
    kept: KeptSet
    scores: Sequence[np.ndarray] | None = None
    error: np.ndarray | None = None
    answer: Variant | None = None
    scope: str = "head"
    scores_raw: Sequence[np.ndarray] | None = None
    first_scores: Sequence[np.ndarray] | None = None
    stage: np.ndarray | None = None
    cutoff: np.ndarray | None = None
    label: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    __repr__ = brief

    @classmethod
    def of(cls, v: Variant) -> Point:
        """The point of a decoded answer."""
        return replace(v.packed, method=v.method, error=v.output_error, answer=v)

    @classmethod
    def pack(cls, s: Any) -> Point:
        """From the engine's selection: masks as bits, everything else the same memory seen by numpy."""
        mask, protected = np.stack([np.asarray(row) for row in s.mask]), np.asarray(s.protected)
        return cls(
            method=s.method,
            budget=s.budget,
            kept=KeptSet.pack(mask, protected, s.entries),
            scores=_rows(s.scores),
            scope=s.scope,
            scores_raw=_rows(s.scores_raw),
            first_scores=_rows(s.first_scores),
            stage=np.asarray(s.stage),
            cutoff=np.asarray(s.cutoff),
            label=s.label,
            options=s.options,
            notes=s.notes,
            seconds=s.seconds,
        )

    def need_scores(self) -> Sequence[np.ndarray]:
        """The scores; InputError where none were stored."""
        if self.scores is None:
            raise InputError(f"No scores of {self.label or self.method} are stored here: compare again.")
        return self.scores

    @property
    def entries(self) -> int:
        """b, entries per KV head on average."""
        return self.kept.entries

    @property
    def mask(self) -> list[np.ndarray]:
        """Kept entries, bool [Hkv, n] a layer."""
        return list(self.kept.mask())

    @property
    def budgets(self) -> np.ndarray:
        """Entries kept by each head, int64 [L, Hkv]."""
        return self.kept.counts()

    @property
    def protected(self) -> np.ndarray:
        """Entries kept by rule, bool [L, Hkv, n]."""
        return self.kept.protected()


def _rows(rows: Sequence[Any] | None) -> list[np.ndarray] | None:
    return None if rows is None else [np.asarray(row) for row in rows]
