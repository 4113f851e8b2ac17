"""A whole comparison, as a stream of events: read once, score, decode all variants together, measure."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kvviz.engine.answer_attention import attention_of_answer
from kvviz.engine.ask import Ask
from kvviz.engine.budgets import entries_of
from kvviz.engine.cache import batches, build_cache, with_guest
from kvviz.engine.conversation import checked_questions, name_of, with_questions
from kvviz.engine.decode import Answer, Cut, Probes, Wave, first_logits, forced, generate
from kvviz.engine.lenses import at_stops, single_tokens, stops_for
from kvviz.engine.measures import first_difference, kl_divergence, output_errors
from kvviz.engine.plan import Plan, labels, make_plan
from kvviz.engine.provenance import provenance
from kvviz.engine.rolling import Rolling
from kvviz.engine.scoring import Scored, Wanted
from kvviz.engine.selection import Selection, label_of, select_from
from kvviz.engine.steps import called_as, heard, result_of
from kvviz.engine.trace import Trace, prefill_events
from kvviz.errors import Cancelled
from kvviz.models import Model
from kvviz.results.attention import AnswerAttention
from kvviz.results.comparison import FULL, Comparison, Point, Variant
from kvviz.results.marks import find_marks
from kvviz.settings import Settings
from kvviz.types import Event, Prompt

_EVENT_SECONDS = 0.2


@dataclasses.dataclass
class Guest:
    """Another prompt that is answered greedily beside a comparison, from its whole cache: a row more of the
    same wave costs far less than decoding it alone.

    trace  of all its tokens;  text  its answer, once it is written.
    """

    trace: Trace
    text: str = ""


def compare_stream(
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
    scored: Scored[Trace] | None = None,
    limits: Settings | None = None,
    ask: Ask | None = None,
    questions: Iterable[str | Sequence[str | None]] = (),
    guest: Guest | None = None,
) -> Iterator[Event]:
    """`compare` as an iterator of events; the last one carries the result, also after a stop.

    What was asked is checked at the call.
    """
    if ask is None:
        ask = Ask(methods, budgets, max_new_tokens, measures, options or {}, controlled, expected,
                  temperature, top_p, seed, lenses, evict_every)  # fmt: skip
    if scored is None and trace is not None:
        scored = Scored(trace)
    held = None if scored is None else scored.trace
    plan = make_plan(model, prompt, ask, selections=selections, trace=held, limits=limits)
    asked = checked_questions(model, prompt, ask, questions)
    stream = _Run(model, prompt, plan, scored, cancel, guest).events()
    if asked:
        stream = with_questions(stream, model, asked, cancel)
    return stream if events is None else heard(stream, events)


@called_as(compare_stream)
def compare(stream: Iterator[Event]) -> Comparison:
    """Answers and losses of `methods` x `budgets` on one prompt, with the full cache beside them.

    The settings are those of `kvviz.engine.ask.Ask`; `ask` holds them all in one value, in their place.

    events      is called with every `Event`; set `cancel` to stop: what is finished comes back.
    selections  further kept sets to decode beside the methods', such as edited ones (with `trace`).
    trace       an earlier trace of the same tokens, so that nothing is read again; `scored` is one with
                what was scored of it.
    limits      `kvviz.settings.Settings` of a server; without, as large as the model allows.
    questions   further ones to the compressed document, each alone or with its expected answer:
                `Comparison.turns`. One reading and one compression serve all.
    guest       another prompt to be answered beside; its text is written into it.

    Raises InputError with a sentence for a person before anything is read.
    """
    return result_of(stream)


class _Run:
    """One comparison on its way."""

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        plan: Plan,
        scored: Scored[Trace] | None,
        cancel: threading.Event | None,
        guest: Guest | None = None,
    ):
        self.model, self.prompt, self.plan, self.cancel = model, prompt, plan, cancel
        self.guest = guest
        self.held = scored  # the trace with its scores, once the prompt was read
        self.ask, self.n = plan.ask, prompt.n_compressible
        self.question = prompt.input_ids[self.n :].tolist()  # where it comes after what is compressed
        self.stops = stops_for(model, self.n, len(plan.methods)) if self.ask.lenses else ()
        self.full = Variant(FULL, "Full cache", 1.0, self.n, {}, None, tokens_kept=float(self.n))
        self.variants: list[Variant] = []
        self.probes: Probes | None = None
        self.cuts: dict[str, list[Cut]] = {}  # by variant, while the full cache's answer was fed
        self.full_logits: list[torch.Tensor] = []  # [vocabulary] at each step of the full cache's answer
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = [*prompt.notes, *plan.notes]
        self.lenses: dict[str, np.ndarray] = {}
        self.scores: dict[str, np.ndarray] = {}
        self.at_stops: list[Point] = []
        self.answer_attention: AnswerAttention | None = None

    @property
    def scored(self) -> Scored[Trace]:
        assert self.held is not None, "read first"
        return self.held

    @property
    def trace(self) -> Trace:
        return self.scored.trace

    def events(self) -> Iterator[Event]:
        """Stage after stage; their ids are those of `Comparison.seconds`."""
        stages = {
            "read": self._read,
            "score": self._score,
            "decode": self._decode,
            "errors": self._errors,
            "lenses": self._lenses,
        }
        message = "Done"
        try:
            for id, stage in stages.items():
                started = time.perf_counter()
                yield from stage()
                self.seconds[id] = time.perf_counter() - started
        except Cancelled:
            done = sum(v.finished not in ("", "cancelled") for v in self.variants)
            message = f"Stopped. {done} of {self.plan.answers} answers are finished and shown."
            self.notes.append(message)
        result = None if self.held is None else self._result()
        yield Event("done", message, 1, 1, 0.0, result=result, scored=self.held)

    def _read(self) -> Iterator[Event]:
        if self.held is None:
            trace = yield from prefill_events(self.model, self.prompt, self.plan.needs, self.cancel)
            self.held = Scored(trace)

    def _score(self) -> Iterator[Event]:
        """Score layer by layer, all methods and all places where a context may end, then select."""
        wanted = [
            Wanted.at(self.trace, p.method, p.used, entries_of(budget, self.n))
            for p in self.plan.methods
            for budget in (*self.ask.budgets, *self.stops)
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
                self.variants.append(_variant(dataclasses.replace(chosen, label=shown[p.name])))
        self.variants += map(_variant, self.plan.selections)

    # -- decode -------------------------------------------------------------------------------------

    def _decode(self) -> Iterator[Event]:
        """The full cache and all variants, in as few waves as the memory for caches allows."""

        def entries(variant: Variant) -> int:
            return 0 if variant is self.full else int(variant.selection.budgets.sum())

        waves = list(batches(self.trace, [self.full, *self.variants], entries))
        # A guest has had its question, never samples, and is not cut while it writes.
        alike = not (self.question or self.ask.evict_every or self.plan.sampling.temperature)
        for number, variants in enumerate(waves, 1):
            guest = self.guest if alike and number == 1 else None
            yield from self._decode_wave(variants, number, len(waves), guest)
        if self.guest is not None and not alike:
            self._answer_alone(self.guest)

    def _answer_alone(self, guest: Guest) -> None:
        most, answers = self.ask.max_new_tokens, [Answer()]
        wave = Wave(self.model, build_cache(guest.trace, [None]), most, self.cancel)
        first = guest.trace.last_logits[None]
        for _ in generate(wave, first, most, self.model.stop_ids, answers=answers):
            pass
        guest.text = self._text(answers[0].token_ids, whole=True)

    def _decode_wave(
        self, variants: list[Variant], number: int, waves: int, guest: Guest | None
    ) -> Iterator[Event]:
        self._alive()
        wave, watcher = self._wave(variants, guest)
        for variant, size in zip(variants, wave.cache.bytes):
            variant.bytes = size
        first = first_logits(wave, self.question, self.trace.last_logits)
        if guest is not None:
            first = torch.cat([first[:-1], guest.trace.last_logits[None]])
        answers = [Answer() for _ in range(wave.size)]
        try:
            yield from self._writing(generate(
                wave, first, self.ask.max_new_tokens, self.model.stop_ids, self.plan.sampling, answers
            ), variants, number, waves)  # fmt: skip
        finally:
            for variant, answer in zip(variants, answers):
                self._write(variant, answer)
        if guest is not None:
            guest.text = self._text(answers[-1].token_ids, whole=True)
        if watcher is not None:
            for variant, records in zip(variants, watcher.records):
                variant.evictions = records
        texts = {name_of(v): v.text for v in variants}
        yield Event("decode", f"{len(variants)} answers written", number, waves, None, texts)
        if self.ask.measures or self.ask.lenses:
            yield Event("measure", "Comparing next-token distributions", number, waves)
            if watcher is not None:  # its cuts have changed the caches: start from the prompt again
                wave, _ = self._wave(variants)
                first = first_logits(wave, self.question, self.trace.last_logits)
            self._teacher_force(wave, variants, first)

    def _wave(self, variants: list[Variant], guest: Guest | None = None) -> tuple[Wave, Rolling | None]:
        selections = [v.selection for v in variants]
        capacity = len(self.question) + self.ask.max_new_tokens
        cache = build_cache(self.trace, selections)
        if guest is not None:
            cache = with_guest(cache, guest.trace)
        wave = Wave(self.model, cache, capacity, self.cancel)
        if guest is not None:
            wave.seen[-1] = guest.trace.n
        every = self.ask.evict_every
        watcher = Rolling(self.trace, wave, selections, every, len(self.question)) if every else None
        return wave, watcher

    def _writing(
        self, steps: Iterator[list[Answer]], variants: list[Variant], number: int, waves: int
    ) -> Iterator[Event]:
        """The answers of one of `waves` waves as they grow."""
        most = self.ask.max_new_tokens
        where = f" (part {number} of {waves})" if waves > 1 else ""
        started = shown = time.perf_counter()
        for step, answers in enumerate(steps, 1):
            now = time.perf_counter()
            if now - shown < _EVENT_SECONDS and step > 1:
                continue
            shown = now
            at, total = (number - 1) * most + step, waves * most
            left = (now - started) / step * (total - at)
            texts = {name_of(v): self._text(a.token_ids, whole=False) for v, a in zip(variants, answers)}
            message = f"Writing {len(variants)} answers{where}, token {step} of at most {most}"
            yield Event("decode", message, at, total, left, texts)

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

    def _teacher_force(self, wave: Wave, variants: list[Variant], first: torch.Tensor) -> None:
        """Feed the full cache's answer to every variant: KL a step, and the full run's probes."""
        answer = self.full.token_ids
        wave.truncate(len(self.question))
        leads = variants[0] is self.full
        if leads:
            wave.record()
        divergence = []
        for step, logits in forced(wave, first, answer if leads else answer[:-1]):
            for t in range(min(logits.shape[1], len(answer) - step)):
                if leads:
                    self.full_logits.append(logits[0, t])
                divergence.append(kl_divergence(self.full_logits[step + t], logits[:, t]))
        if leads:
            self.probes = wave.probes()
        if wave.watcher is not None:
            self.cuts |= {v.key: cuts for v, cuts in zip(variants, wave.watcher.cuts)}
        if "kl" in self.ask.measures:
            for variant, row in zip(variants, torch.stack(divergence, 1)):
                variant.kl = row.float().cpu().numpy()

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
        """What the page's views need besides the answers."""
        if not self.ask.lenses or self.probes is None:
            return
        total = 1 + len(self.plan.methods)
        yield Event("measure", "Effects of single tokens", 0, total)
        self.lenses = single_tokens(self.trace, self.probes)
        for number, p in enumerate(self.plan.methods, 1):
            self._alive()
            yield Event("measure", f"{label_of(p.method, p.used)} at every budget", number, total)
            largest = max((v for v in self.variants if v.method == p.name), key=lambda v: v.entries)
            self.scores[p.name] = np.stack(largest.packed.need_scores())
            self.at_stops += at_stops(self.scored, self.probes, p, self.stops, self._alive)
        yield Event("measure", "What each answer token looked at", 0, 0)
        kept = {f"{p.method}@{p.budget}": p.kept for p in self.at_stops}
        kept |= {v.key: v.packed.kept for v in self.variants}
        self.answer_attention = attention_of_answer(self.trace, self.full.token_ids, kept, self.cancel)

    def _alive(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("Stopped.")

    def _result(self) -> Comparison:
        return Comparison(
            model=self.model.info,
            prompt=self.prompt,
            settings=provenance(self.model, self.prompt, self.plan),
            full=self.full,
            variants=[v for v in self.variants if v.finished],
            bytes_full=self.trace.bytes,
            marks=find_marks(self.prompt, self.ask.expected) if self.ask.expected else [],
            expected=self.ask.expected,
            at_stops=self.at_stops,
            scores=self.scores,
            lenses=self.lenses,
            answer_attention=self.answer_attention,
            seconds={**self.trace.seconds, **self.seconds},
            notes=self.notes,
        )


def _variant(selection: Selection) -> Variant:
    """What will be decoded from this selection."""
    kept = float(selection.budgets.float().mean())
    return Variant(
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
