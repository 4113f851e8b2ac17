"""A finished comparison: everything a picture, a table or a saved file needs, on numpy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InputError
from kvviz.identity import Budget, MethodRef
from kvviz.results.ablation import Ablation
from kvviz.results.attention import AnswerAttention
from kvviz.results.causes import FOUND, Causes, WouldDo
from kvviz.results.fork import Fork
from kvviz.results.kept import KeptSet, everything, nearest, window_starts
from kvviz.results.points import Point, Variant
from kvviz.results.story import Story
from kvviz.results.turns import Turn
from kvviz.results.words import answer_lines, budget_name, budget_share
from kvviz.types import Mark, ModelInfo, Prompt

if TYPE_CHECKING:
    import pandas as pd

FULL = "full"  # the method name of the whole cache


@dataclass(repr=False)
class Comparison:
    """The result of `kvviz.compare`. `at` finds what is known of a method at a budget.

    full, variants   the answers; `full` is the whole cache.
    bytes_full       storage of the whole cache of the prompt, as allocated.
    at_stops         what every method keeps at the stops of the budget slider, without an answer.
    scores           {method: float32 [L, Hkv, n]}, NaN where the method gives none.
    lenses           {name: float32 [L, Hkv, n]}: "attention" (mean of the last prompt queries, before
                     pooling), and at the answer's queries "attention_answer" and "effect" (relative change
                     of the head's output if this token alone is removed); "value_size" and "key_norm",
                     the L2 norms of each entry's value and key. Older runs lack the last two.
    causes           {"method@budget": what its lost entries did}, as far as it was tried (`with_causes`).
    turns            further questions, and what each cache answered (`kvviz.conversation`).
    fork, answer_attention, ablation  None where they were not asked for.
    story            what a stored example says of itself.
    """

    model: ModelInfo
    prompt: Prompt
    settings: dict[str, Any]
    full: Variant
    variants: list[Variant]
    bytes_full: int
    marks: list[Mark] = field(default_factory=list)
    expected: str | None = None
    at_stops: list[Point] = field(default_factory=list)
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    lenses: dict[str, np.ndarray] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    causes: dict[str, Causes] = field(default_factory=dict)
    fork: Fork | None = None
    answer_attention: AnswerAttention | None = None
    ablation: Ablation | None = None
    story: Story = Story()
    turns: list[Turn] = field(default_factory=list)

    def __repr__(self) -> str:
        """A few lines: what was run and what is in it."""
        head = f"Comparison of {self.model.id}, {self.n:,} tokens ({self.prompt.protocol})"
        lines = answer_lines(self.full, self.variants)
        if self.turns:
            lines.append(f"  and further questions, {len(self.turns)}: see turns_frame()")
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        from kvviz import notebook

        return notebook.table_html(self)

    def view(self, lens: str, theme: str = "light", **asked: Any) -> Any:
        """A view of the page as a Plotly figure: view("kept", a="snapkv", budget=0.1).

        lens   an id of `kvviz.figures.FIGURES`; asked are fields of `kvviz.figures.figure.Look`: a, b (the
               first two methods), budget (the smallest decoded one), layer, head, tok, side, ...
        theme  "light" or "dark".

        Raises InputError, which names what there is.
        """
        from kvviz import notebook

        return notebook.view(self, lens, theme, **asked)

    def show(self, a: str | None = None, b: str | None = None, budget: Any = None, height: int = 800) -> Any:
        """The page of this run in a frame of a notebook, without a server: its story, or A, B and budget
        where one of them is named. It takes 6 MB and more of the notebook (plotly.js is in it)."""
        from kvviz import notebook

        return notebook.show(self, a, b, budget, height)

    @property
    def n(self) -> int:
        """Tokens under compression."""
        return self.prompt.n_compressible

    @property
    def methods(self) -> list[str]:
        """Method names in the order they were asked for."""
        return list(dict.fromkeys(variant.method for variant in self.variants))

    @property
    def choices(self) -> list[str]:
        """What can be looked at as A or B: the methods, then the cache found by search, if there is one."""
        return [*self.methods, FOUND] if self.would_do is not None else self.methods

    @property
    def labels(self) -> dict[str, str]:
        """{method: label a person reads}."""
        return {variant.method: variant.label for variant in self.variants}

    @property
    def budgets(self) -> list[float | int]:
        """Decoded budgets, largest first."""
        decoded = dict.fromkeys(Budget.parse(v.budget) for v in self.variants)  # 1 and 1.0 are two budgets
        return sorted((b.value for b in decoded), key=lambda b: -self.share(b))

    @property
    def stops(self) -> tuple[float | int, ...]:
        """Budgets of the slider at which every method's kept set is known, smallest first."""
        return tuple(dict.fromkeys(point.budget for point in self.at_stops))

    def share(self, budget: Any) -> float:
        """A budget (or its text) as a share of n; a whole number is entries per KV head."""
        return Budget.parse(budget).share_of(self.n)

    def at(self, method: str | MethodRef, budget: Any) -> Point | None:
        """What is known of a method at a budget: decoded, else at a stop, else None. "full" always is, and
        "found", the cache that would do, at its own size whatever the budget."""
        method = str(method)
        if method == FOUND:
            return None if self.would_do is None else self.would_do.point
        if method == FULL:
            return self.whole
        answer = self.variant(method, budget)
        stop = _nearest_same([p for p in self.at_stops if p.method == method], budget, self.n)
        if answer is not None and answer.selection is not None:
            point = Point.of(answer)
            return point if stop is None or point.error is not None else replace(point, error=stop.error)
        if stop is None:
            return None
        return replace(stop, scores=self.scores.get(method), scope=self.scope(method))

    @property
    def whole(self) -> Point:
        """What the full cache holds, and its answer."""
        return Point(FULL, 1.0, self._everything, answer=self.full, label=self.full.label)

    def largest(self, method: str) -> Point:
        """The method's largest decoded budget: the scores at its stops are those that decided there."""
        return self.need(method, max((v.budget for v in self.variants if v.method == method), key=self.share))

    def need(self, method: str, budget: Any) -> Point:
        """`at`, or an InputError that names the nearest budgets at which kept sets are known."""
        point = self.at(method, budget)
        if point is not None:
            return point
        around = [budget_share(v) for v in nearest(self.shares(method), self.share(budget))]
        said = f"The kept tokens were not stored at {budget_name(budget)}"
        if not around:
            raise InputError(f"{said}.")
        verb = "are" if len(around) > 1 else "is"
        raise InputError(f"{said}; nearest {verb} {' and '.join(around)}.")

    def variant(self, method: str | MethodRef, budget: Any) -> Variant | None:
        """The decoded answer at this very budget (as it was asked for, or as the same share), or None."""
        method = str(method)
        return _nearest_same([v for v in self.variants if v.method == method], budget, self.n)

    def shares(self, method: str) -> list[float]:
        """Shares at which this method's kept entries are known, ascending, each once."""
        found = sorted(
            [self.share(v.budget) for v in self.variants if v.method == method and v.selection is not None]
            + [self.share(p.budget) for p in self.at_stops if p.method == method]
        )
        return [s for i, s in enumerate(found) if i == 0 or not math.isclose(s, found[i - 1])]

    def scope(self, method: str) -> str:
        """What an entry competes with under this method: "head", "layer" or "all"."""
        chosen = (v.selection for v in self.variants if v.method == method)
        return next((s.scope for s in chosen if s is not None), "head")

    def evicted(self, point: Point) -> np.ndarray:
        """Layers where this kept set lacks something that the full cache still holds, bool [L]."""
        held = (self.n - self.window_starts()).reshape(-1, 1)
        return np.logical_or.reduce(point.kept.counts() < held, axis=1)

    def window_starts(self) -> np.ndarray:
        """First token that each layer still holds, int64 [L]; 0 where its attention is full."""
        return window_starts(self.model, self.n)

    def outside(self, x0: int = 0, x1: int | None = None) -> np.ndarray:
        """Tokens x0 to x1 that a layer's sliding window has left behind, bool [L, x1 - x0]."""
        x1 = self.n if x1 is None else x1
        return np.arange(x0, x1) < self.window_starts().reshape(-1, 1)

    @cached_property
    def _everything(self) -> KeptSet:
        return everything(self.model, self.n)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, those that several points share counted once."""
        points = [v.packed for v in self.variants if v.selection is not None] + self.at_stops
        arrays: list[np.ndarray | None] = [*self.scores.values(), *self.lenses.values()]
        arrays += [] if self.answer_attention is None else self.answer_attention.arrays
        for p in points:
            arrays += [p.kept.bits, p.kept.by_rule, p.stage, p.cutoff, p.error]
            arrays += [row for rows in (p.scores, p.scores_raw, p.first_scores) for row in rows or ()]
        arrays += [a for v in [self.full, *self.variants] for a in (v.kl, v.output_error, v.layer_error)]
        held = {a.__array_interface__["data"][0]: a.nbytes for a in arrays if a is not None}
        return sum(held.values())

    @property
    def token_bytes(self) -> int:
        """Bytes that one more token adds to a cache. A sliding layer whose window is full adds none: an old
        row goes."""
        growing = int((window_starts(self.model, self.n + 1) == 0).sum())
        return growing * self.model.n_kv_heads * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        """Bytes of one row: K and V of one head."""
        return 2 * self.model.head_dim * (4 if self.model.dtype == "float32" else 2)

    def bytes_at_end(self, v: Variant) -> int:
        """Bytes of an answer's cache once it is written; `bytes` is what it held after reading."""
        written = max(0, len(v.token_ids) - 1)  # the last token is never read again
        if v.evictions:  # every cut brings the cache back to its budget
            last = v.evictions[-1]
            fed = written + (len(self.prompt.input_ids) - self.n if last.get("phase") == "question" else 0)
            return v.bytes + self.token_bytes * max(0, fed - int(last["step"]))
        kept = (self.whole if v.selection is None else Point.of(v)).kept
        end = len(self.prompt.input_ids) + written
        rows = 0  # that came, less those that a sliding layer's window has left behind since
        for layer, start in enumerate(window_starts(self.model, end).tolist()):
            rows += self.model.n_kv_heads * (end - max(start, self.n))
            rows -= int(kept.layer(layer)[:, :start].sum())
        return v.bytes + rows * self._row_bytes

    def base_of(self, method: str) -> str:
        """The attention-only method of this run that a method is measured against, "" where there is none."""
        used = (self.settings.get("methods") or {}).get(method) or {}
        base = used.get("compare_with")
        return next((m for m in self.methods if base and MethodRef.parse(m).id == base), "")

    def merged(self, other: Comparison) -> Comparison:
        """This run with what `other`, of the same prompt, adds: finished answers that are new, the stops
        and scores of methods that are new (where both have the same stops), and the methods' settings.
        """
        have = {v.key for v in self.variants}
        new = [v for v in other.variants if v.key not in have and v.finished != "cancelled"]
        at_stops, scores = self.at_stops, self.scores
        if other.stops == self.stops:
            mine = {p.method for p in self.at_stops}
            at_stops = [*self.at_stops, *(p for p in other.at_stops if p.method not in mine)]
            scores = {**other.scores, **self.scores}
        seen = self.answer_attention
        if seen is not None and other.answer_attention is not None:
            seen = seen.with_lost(other.answer_attention)
        both = {
            name: {**(self.settings.get(name) or {}), **(other.settings.get(name) or {})}
            for name in ("methods", "own")
            if self.settings.get(name) or other.settings.get(name)
        }
        return replace(
            self,
            variants=[*self.variants, *new],
            at_stops=at_stops,
            scores=scores,
            answer_attention=seen,
            settings={**self.settings, **both},
        )

    @property
    def would_do(self) -> WouldDo | None:
        """The smallest cache that a search found to give the full cache's answer."""
        found = [c.would_do for c in self.causes.values() if c.would_do is not None]
        return min(found, key=lambda w: w.entries, default=None)

    def with_causes(self, found: Causes) -> Comparison:
        """This run with the causes of one of its answers, held against what its methods keep."""
        from kvviz.results.agreement import FEWEST, agreement, document_passages

        budget = Budget.parse(found.budget)
        kept = {
            v.key: v.packed.kept.mask()
            for v in self.variants
            if v.selection is not None and not v.made and Budget.parse(v.budget) == budget
        }
        enough = len(document_passages(found)) >= FEWEST
        found = replace(found, agreement=agreement(found, kept) if enough else [])
        return replace(self, causes={**self.causes, found.key: found})

    def rows(self) -> list[dict[str, Any]]:
        """One row an answer as plain values, the full cache first: budget as it was asked for, share and
        entries beside it; what `kvviz.results.measures` says of it.
        """
        from kvviz.results import measures

        return measures.rows(self)

    def to_frame(self) -> pd.DataFrame:
        """`rows` as a pandas DataFrame; budgets keep their kind, so that 1 (token) and 1.0 (all) are two."""
        import pandas as pd

        frame = pd.DataFrame(self.rows())
        frame["budget"] = pd.Series([v.budget for v in [self.full, *self.variants]], dtype=object)
        return frame

    def turns_frame(self) -> pd.DataFrame:
        """One row a question and answer, the run's own question first: text, verdict, mean KL."""
        import pandas as pd

        from kvviz.results.turns import rows

        return pd.DataFrame(rows(self))

    def to_json(self, path: str | Path | None = None) -> str:
        """The whole comparison as one strict JSON text (arrays zlib-packed); also written to `path`."""
        from kvviz.results import archive

        return archive.to_json(self, path)

    def save(self, path: str | Path, rounded: bool = False) -> Path:
        """Write one `.zip` that `load_comparison` and the app open again.

        rounded  keep 11 bits (three digits) of scores and lenses, which halves the file; kept sets,
                 errors and KL stay exact.
        """
        from kvviz.results import archive

        return archive.save(self, path, rounded)


def _nearest_same(items: Sequence[Any], budget: Any, n: int) -> Any | None:
    """The item whose budget is this one: the very same first, else one of the same share of n tokens."""
    asked = Budget.parse(budget)
    share = asked.share_of(n)
    found = None
    for item in items:
        own = Budget.parse(item.budget)
        if own == asked:
            return item
        if found is None and math.isclose(own.share_of(n), share):
            found = item
    return found
