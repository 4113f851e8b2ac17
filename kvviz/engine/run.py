"""A whole comparison, as a stream of events: read once, score, decode all variants together, measure."""

from __future__ import annotations

import dataclasses
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
import transformers

import kvviz
from kvviz import kernels
from kvviz.engine.answer_attention import attention_of_answer
from kvviz.engine.ask import Ask
from kvviz.engine.budgets import entries_of
from kvviz.engine.cache import build_cache
from kvviz.engine.decode import Answer, Cut, Wave, feed_same, generate
from kvviz.engine.measures import (
    Probes,
    answer_attention,
    first_difference,
    kl_divergence,
    output_errors,
    token_effects,
)
from kvviz.engine.plan import Plan, Planned, labels, make_plan
from kvviz.engine.rolling import Rolling
from kvviz.engine.scoring import Scored, Wanted
from kvviz.engine.selection import Selection, label_of, select_from
from kvviz.engine.trace import Trace, prefill_steps
from kvviz.errors import Cancelled
from kvviz.methods import artefacts
from kvviz.models import Model
from kvviz.results.comparison import Comparison, Point, Variant
from kvviz.results.kept import KeptSet
from kvviz.results.marks import find_marks
from kvviz.results.points import PROBE, PROBE_CUT
from kvviz.settings import Settings, settings
from kvviz.types import Event, Prompt

STOPS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
_STOP_BYTES = 128 * 2**20  # kept masks at the slider's stops are stored up to this much
_EVENT_SECONDS = 0.2


def compare(
    model: Model,
    prompt: Prompt,
    methods: Sequence[str] = (),
    budgets: Sequence[float | int] = (),
    max_new_tokens: int = Ask.max_new_tokens,
    measures: Sequence[str] = Ask.measures,
    events: Callable[[Event], None] | None = None,
    cancel: threading.Event | None = None,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    controlled: bool = Ask.controlled,
    expected: str | None = Ask.expected,
    temperature: float = Ask.temperature,
    top_p: float = Ask.top_p,
    seed: int = Ask.seed,
    lenses: bool = Ask.lenses,
    evict_every: int | None = Ask.evict_every,
    selections: Sequence[Selection] = (),
    trace: Trace | None = None,
    scored: Scored | None = None,
    limits: Settings | None = None,
    ask: Ask | None = None,
) -> Comparison:
    """Answers and losses of `methods` x `budgets` on one prompt, with the full cache beside them.

    The settings are those of `kvviz.engine.ask.Ask`; `ask` holds them all in one value, in their place.

    events      is called with every `Event`; set `cancel` to stop: what is finished comes back.
    selections  further kept sets to decode beside the methods', such as edited ones (with `trace`).
    trace       an earlier trace of the same tokens, so that nothing is read again; `scored` is one with
                what was scored of it.
    limits      `kvviz.settings.Settings` of a server; without, as large as the model allows.

    Raises InputError with a sentence for a person before anything is read.
    """
    if ask is None:
        ask = Ask(methods, budgets, max_new_tokens, measures, options or {}, controlled, expected,
                  temperature, top_p, seed, lenses, evict_every)  # fmt: skip
    result = None
    for event in compare_stream(
        model, prompt, ask=ask, selections=selections, trace=trace, scored=scored, cancel=cancel,
        limits=limits,
    ):  # fmt: skip
        result = event.result
        if events:
            events(event)
    return result


def compare_stream(
    model: Model,
    prompt: Prompt,
    methods: Sequence[str] = (),
    budgets: Sequence[float | int] = (),
    max_new_tokens: int = Ask.max_new_tokens,
    measures: Sequence[str] = Ask.measures,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    controlled: bool = Ask.controlled,
    expected: str | None = Ask.expected,
    temperature: float = Ask.temperature,
    top_p: float = Ask.top_p,
    seed: int = Ask.seed,
    lenses: bool = Ask.lenses,
    evict_every: int | None = Ask.evict_every,
    selections: Sequence[Selection] = (),
    trace: Trace | None = None,
    scored: Scored | None = None,
    cancel: threading.Event | None = None,
    limits: Settings | None = None,
    ask: Ask | None = None,
) -> Iterator[Event]:
    """The same as an iterator of events; the last one carries the result, also after a stop.

    What was asked is checked at the call.
    """
    if ask is None:
        ask = Ask(methods, budgets, max_new_tokens, measures, options or {}, controlled, expected,
                  temperature, top_p, seed, lenses, evict_every)  # fmt: skip
    if scored is None and trace is not None:
        scored = Scored(trace)
    held = None if scored is None else scored.trace
    plan = make_plan(model, prompt, ask, selections=selections, trace=held, limits=limits)
    return _Run(model, prompt, plan, scored, cancel).events()


class _Run:
    """One comparison on its way. Methods are in the order in which they happen."""

    def __init__(self, model: Model, prompt: Prompt, plan: Plan, scored: Scored | None, cancel):
        self.model, self.prompt, self.plan, self.scored, self.cancel = model, prompt, plan, scored, cancel
        self.ask, self.n = plan.ask, prompt.n_compressible
        self.suffix = prompt.input_ids[self.n :].tolist()
        self.full = Variant("full", "Full cache", 1.0, self.n, {}, None, tokens_kept=float(self.n))
        self.variants: list[Variant] = []
        self.probes: Probes | None = None
        self.cuts: dict[str, list[Cut]] = {}  # by variant, while the full cache's answer was fed
        self.full_logits: list[torch.Tensor] = []
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = [*prompt.notes, *plan.notes]
        self.tables: dict[str, Any] = {}

    @property
    def trace(self) -> Trace:
        return self.scored.trace

    def events(self) -> Iterator[Event]:
        stopped = False
        try:
            for stage in (self._read, self._score, self._decode, self._errors, self._lenses):
                started = time.perf_counter()
                yield from stage()
                self.seconds[stage.__name__.strip("_")] = time.perf_counter() - started
        except Cancelled:
            stopped = True
            done = sum(v.finished not in ("", "cancelled") for v in self.variants)
            total = self.plan.answers
            self.notes.append(f"Stopped. {done} of {total} answers are finished and shown.")
        message = self.notes[-1] if stopped else "Done"
        yield Event(
            "done",
            message,
            1,
            1,
            0.0,
            result=None if self.scored is None else self._result(),
            scored=self.scored,
        )

    # -- read ---------------------------------------------------------------------------------------

    def _read(self) -> Iterator[Event]:
        if self.scored is not None:
            return
        started = time.perf_counter()
        yield Event("prefill", f"Reading the document, 0 of {self.n:,} tokens", 0, self.n)
        steps = prefill_steps(self.model, self.prompt, self.plan.needs, self.cancel)
        while True:
            try:
                done, total = next(steps)
            except StopIteration as stop:
                self.scored = Scored(stop.value)
                return
            left = (time.perf_counter() - started) / done * (total - done)
            yield Event("prefill", f"Reading the document, {done:,} of {total:,} tokens", done, total, left)

    # -- score --------------------------------------------------------------------------------------

    def _score(self) -> Iterator[Event]:
        """Score layer by layer, all methods and all places where a context may end, then select."""
        budgets = [*self.ask.budgets, *(self._stops() if self.ask.lenses else ())]
        wanted = [
            Wanted.at(self.trace, p.method, p.used, entries_of(budget, self.n))
            for p in self.plan.methods
            for budget in budgets
        ]
        layers = self.model.n_layers
        for done in self.scored.add(wanted, self._alive):
            if done % 4 == 0 or done == layers:
                yield Event("score", f"Scoring layer {done} of {layers}", done, layers)
        shown = labels(self.plan.methods)
        for p in self.plan.methods:
            for budget in self.ask.budgets:
                self._alive()
                chosen = select_from(self.scored, p.name, budget, **p.used)
                self._add(dataclasses.replace(chosen, label=shown[p.name]))
        for selection in self.plan.selections:
            self._add(selection)

    def _add(self, selection: Selection) -> None:
        kept = float(selection.budgets.float().mean())
        self.variants.append(
            Variant(
                selection.method,
                selection.label,
                selection.budget,
                selection.entries,
                selection.options,
                selection,
                tokens_kept=int(kept) if kept.is_integer() else kept,
                notes=list(selection.notes),
                seconds={"select": selection.seconds},
            )
        )

    def _stops(self) -> tuple[float, ...]:
        size = self.model.n_layers * self.model.n_kv_heads * self.n / 8 * len(STOPS) * len(self.plan.methods)
        return STOPS if size <= _STOP_BYTES else ()

    # -- decode -------------------------------------------------------------------------------------

    def _decode(self) -> Iterator[Event]:
        waves = self._waves()
        for number, variants in enumerate(waves, 1):
            yield from self._decode_wave(variants, number, len(waves))

    def _waves(self) -> list[list[Variant]]:
        """The full cache and all variants, in as few waves as the memory for caches allows."""
        per_entry = 2 * self.model.head_dim * self.trace.keys[0].element_size()
        limit = settings().wave_bytes
        waves, used = [[self.full]], 0
        for variant in self.variants:
            size = int(variant.selection.budgets.sum()) * per_entry
            if used and used + size > limit:
                waves.append([])
                used = 0
            waves[-1].append(variant)
            used += size
        return waves

    def _decode_wave(self, variants: list[Variant], number: int, waves: int) -> Iterator[Event]:
        self._alive()
        wave, watcher = self._wave(variants)
        for variant, size in zip(variants, wave.cache.bytes):
            variant.bytes = size
        first = self._first_logits(wave)
        answers = [Answer() for _ in variants]
        steps = generate(
            wave, first, self.ask.max_new_tokens, self.model.stop_ids, self.plan.sampling, answers
        )
        started = shown = time.perf_counter()
        try:
            for step, _ in enumerate(steps, 1):
                now = time.perf_counter()
                if now - shown < _EVENT_SECONDS and step > 1:
                    continue
                shown = now
                most = self.ask.max_new_tokens
                at, total = (number - 1) * most + step, waves * most
                left = (now - started) / step * (total - at)
                where = f" (part {number} of {waves})" if waves > 1 else ""
                texts = {v.key: self._text(a.token_ids, whole=False) for v, a in zip(variants, answers)}
                message = f"Writing {len(variants)} answers{where}, token {step} of at most {most}"
                yield Event("decode", message, at, total, left, texts)
        finally:
            for variant, answer in zip(variants, answers):
                self._write(variant, answer)
        if watcher is not None:
            for variant, records in zip(variants, watcher.records):
                variant.evictions = records
        texts = {v.key: v.text for v in variants}
        yield Event("decode", f"{len(variants)} answers written", number, waves, None, texts)
        if "kl" in self.ask.measures or "output_error" in self.ask.measures or self.ask.lenses:
            yield Event("measure", "Comparing next-token distributions", number, waves)
            if watcher is not None:  # its cuts have changed the caches: start from the prompt again
                wave, _ = self._wave(variants)
                first = self._first_logits(wave)
            self._teacher_force(wave, variants, first)

    def _wave(self, variants: list[Variant]) -> tuple[Wave, Rolling | None]:
        selections = [v.selection for v in variants]
        capacity = len(self.suffix) + self.ask.max_new_tokens
        wave = Wave(self.model, build_cache(self.trace, selections), capacity, self.cancel)
        every = self.ask.evict_every
        watcher = Rolling(self.trace, wave, selections, every, len(self.suffix)) if every else None
        return wave, watcher

    def _first_logits(self, wave: Wave) -> torch.Tensor:
        """What predicts the first new token: the full prefill, or the question on each variant's cache."""
        if not self.suffix:
            return self.trace.last_logits.expand(wave.size, -1)
        for logits in feed_same(wave, self.suffix, every=False):
            last = logits[:, -1]
        return last

    def _teacher_force(self, wave: Wave, variants: list[Variant], first: torch.Tensor) -> None:
        """Feed the full cache's answer to every variant: KL a step, and the full run's probe queries."""
        answer = self.full.token_ids
        wave.truncate(len(self.suffix))
        lead = variants[0] is self.full
        queries: dict[int, list[torch.Tensor]] = {}
        divergence = [kl_divergence(self._full_logits(lead, first[0], 0), first)[:, None]]
        step = 1
        for logits in (
            feed_same(wave, answer, every=True) if not lead else self._recorded(wave, answer, queries)
        ):
            for t in range(logits.shape[1]):
                if step < len(answer):
                    full = self._full_logits(lead, logits[0, t], step)
                    divergence.append(kl_divergence(full, logits[:, t])[:, None])
                step += 1
        if "kl" in self.ask.measures:
            for variant, row in zip(variants, torch.cat(divergence, 1)):
                variant.kl = row.float().cpu().numpy()
        if wave.watcher is not None:
            self.cuts |= {v.key: cuts for v, cuts in zip(variants, wave.watcher.cuts)}
        if lead:
            layers = range(self.model.n_layers)
            self.probes = Probes(
                [torch.cat(queries[i], 1) for i in layers],
                [tuple(side.clone() for side in wave.tail_rows(i)) for i in layers],
            )

    def _full_logits(self, lead: bool, logits: torch.Tensor, step: int) -> torch.Tensor:
        if lead:
            self.full_logits.append(logits)
        return self.full_logits[step]

    @staticmethod
    def _recorded(wave: Wave, answer, queries) -> Iterator[torch.Tensor]:
        """feed_same that also keeps the queries of the full cache's row."""
        wave.recorded = {}
        for logits in feed_same(wave, answer, every=True):
            for index, rows in wave.recorded.items():
                queries.setdefault(index, []).append(rows)
            yield logits
        wave.recorded = None

    def _write(self, variant: Variant, answer: Answer) -> None:
        variant.token_ids = list(answer.token_ids)
        variant.tokens = [self.model.tokenizer.decode([t]) for t in answer.token_ids]
        variant.text = self._text(answer.token_ids, whole=True)
        variant.finished = answer.finished or "cancelled"
        variant.first_difference = first_difference(self.full.token_ids, variant.token_ids)

    def _text(self, token_ids: list[int], whole: bool) -> str:
        """Decoded answer; while it is being written, bytes of an unfinished character are held back."""
        text = self.model.tokenizer.decode(token_ids, skip_special_tokens=True)
        return text if whole else text.rstrip("\ufffd")

    # -- measure ------------------------------------------------------------------------------------

    def _errors(self) -> Iterator[Event]:
        if "output_error" not in self.ask.measures or self.probes is None:
            return
        masks = [v.selection.mask for v in self.variants]
        readouts = [v.selection.readout for v in self.variants]
        cuts = [self.cuts.get(v.key, []) for v in self.variants]
        for done, partial in output_errors(self.trace, self.probes, masks, readouts, cuts):
            self._alive()
            errors = partial
            if done % 5 == 0:
                yield Event("measure", "Measuring output errors", done, self.model.n_layers)
        for variant, error in zip(self.variants, errors):
            variant.output_error, variant.layer_error = error.l2, error.layer

    def _lenses(self) -> Iterator[Event]:
        """What the app's views need besides the answers."""
        if not self.ask.lenses or self.probes is None:
            return
        yield Event("measure", "Effects of single tokens", 0, 1 + len(self.plan.methods))
        window = min(32, self.n)
        attention = [self.trace.window_attention(i, window).mean(1) for i in range(self.model.n_layers)]
        grouped = torch.stack(attention).unflatten(1, (self.model.n_kv_heads, -1)).mean(2)
        self.tables["lenses"] = {
            "attention": grouped.float().cpu().numpy(),
            "attention_answer": answer_attention(self.trace, self.probes),
            "effect": token_effects(self.trace, self.probes),
        }
        self.tables |= {"scores": {}, "at_stops": []}
        for number, p in enumerate(self.plan.methods, 1):
            self._alive()
            message = f"{label_of(p.method, p.used)} at every budget"
            yield Event("measure", message, number, 1 + len(self.plan.methods))
            self._stops_of(p)
        yield Event("measure", "What each answer token looked at", 0, 0)
        kept = {v.key: v.packed.kept for v in self.variants}
        kept = {f"{p.method}@{p.budget}": p.kept for p in self.tables["at_stops"]} | kept
        self.tables["answer_attention"] = attention_of_answer(
            self.trace, self.full.token_ids, kept, self.cancel
        )

    def _stops_of(self, p: Planned) -> None:
        stops = self._stops()
        largest = max((v for v in self.variants if v.method == p.name), key=lambda v: v.entries)
        self.tables["scores"][p.name] = _stack(largest.selection.scores)
        if not stops:
            return
        chosen = [select_from(self.scored, p.name, stop, **p.used) for stop in stops]
        readouts = [s.readout for s in chosen]
        for _, partial in output_errors(self.trace, self.probes, [s.mask for s in chosen], readouts):
            self._alive()
            errors = partial
        for s, error in zip(chosen, errors):
            kept = KeptSet.pack(_stack(s.mask), s.protected.cpu().numpy(), s.entries)
            self.tables["at_stops"].append(Point(p.name, s.budget, kept, error=error.l2))

    def _alive(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped.")

    def _result(self) -> Comparison:
        finished = [v for v in self.variants if v.finished]
        return Comparison(
            model=self.model.info,
            prompt=self.prompt,
            settings=self._settings(),
            full=self.full,
            variants=finished,
            bytes_full=self.trace.bytes,
            marks=find_marks(self.prompt, self.ask.expected) if self.ask.expected else [],
            expected=self.ask.expected,
            seconds={**self.trace.seconds, **self.seconds},
            notes=self.notes,
            **self.tables,
        )

    def _settings(self) -> dict[str, Any]:
        return {
            **self.plan.settings(),
            "protocol": self.prompt.protocol,
            "probe": PROBE if self.ask.evict_every is None else PROBE_CUT,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": self.model.source,
            "weights": self.model.weights_hash,
            "calibrated": {
                p.name: artefacts.load(self.model, p.method.artefact.name).about.get("sha256", "lent")
                for p in self.plan.methods
                if p.method.artefact is not None
            },
            "machine": {
                "device": str(self.model.device),
                "threads": torch.get_num_threads(),
                "kernels": kernels.last_used(),
            },
            "versions": {
                "kvviz": kvviz.__version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
        }


def _stack(rows) -> np.ndarray:
    return np.stack([row.cpu().numpy() for row in rows])
