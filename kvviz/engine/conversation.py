"""Further questions to every cache of a run as it stands: nothing is compressed again.

    session = kvviz.conversation(model, result)
    turn = session.ask("Who signs it?", expected="the tenant")
    turn.full.text, [v.text for v in turn.variants]
    session.comparison.turns_frame()            # tables over the questions; saved with the run

Caches are gathered from the kept sets that the run holds, so a run from a file can be asked as well, by one
reading of its document. Positions stay those of the tokens seen; evicted entries stay gone. In a run that
evicts while generating the cuts go on over the turns: every so many tokens of question or answer, from the
document's end (of a fresh question) or from the run's first token on.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvviz.engine.ask import Ask
from kvviz.engine.cache import batches, build_cache
from kvviz.engine.decode import Answer, Sampling, Wave, feed_same, forced, generate
from kvviz.engine.documents import is_blank, readable
from kvviz.engine.measures import first_difference, kl_divergence
from kvviz.engine.prompts import build_prompt
from kvviz.engine.rolling import Rolling
from kvviz.engine.scoring import Scored
from kvviz.engine.steps import called_as, result_of
from kvviz.engine.templates import further, moment_of
from kvviz.engine.tokens import encode
from kvviz.engine.trace import Trace, needs_of, prefill_events
from kvviz.engine.trials import Kept
from kvviz.errors import Cancelled, InputError
from kvviz.identity import Budget, shown
from kvviz.methods import parse_method
from kvviz.models import Model
from kvviz.results.comparison import FULL, Comparison, Variant
from kvviz.results.turns import Turn, chain
from kvviz.types import QUESTION_AGNOSTIC, Event, Prompt

_PIECE = 256  # tokens of earlier turns fed at once
_EVENT_SECONDS = 0.2


class Conversation:
    """Questions one after another. `comparison` is the run with the turns so far."""

    def __init__(self, model: Model, comparison: Comparison, scored: Scored[Trace] | None = None):
        self.model, self.comparison, self._scored = model, comparison, scored

    def __repr__(self) -> str:
        return f"Conversation, further questions: {len(self.comparison.turns)}\n{self.comparison!r}"

    def ask(self, question: str, expected: str | None = None, fresh: bool = False) -> Turn:
        """Ask every cache; see `ask_stream`."""
        for event in ask_stream(
            self.model, self.comparison, question, expected=expected, fresh=fresh, scored=self._scored
        ):
            self._scored = event.scored or self._scored
        self.comparison = event.result
        return self.comparison.turns[-1]


def conversation(model: Model, comparison: Comparison, scored: Scored[Trace] | None = None) -> Conversation:
    """A conversation with the full cache and every method's cache of a run.

    scored  an earlier reading of the same prompt; without one the document is read once, at the first ask.
    """
    return Conversation(model, comparison, scored)


def ask_stream(
    model: Model,
    comparison: Comparison,
    question: str,
    *,
    expected: str | None = None,
    fresh: bool = False,
    scored: Scored[Trace] | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Event]:
    """One further question to the full cache and every method's cache; the last event carries the run with
    the turn in it, or the run as it was after a stop.

    expected  a text that a right answer contains.
    fresh     ask the compressed document alone; else the turns before stand in the cache, each with the
              answer that this cache gave.

    What is asked is checked at the call: InputError with a sentence for a person.
    """
    asked = Ask(expected=expected)
    question = readable(question)[0].strip()
    if is_blank(question):
        raise InputError("Ask a question about the document.")
    variants = [v for v in comparison.variants if v.selection is not None and not v.made]
    variants = [v for v in variants if v.finished not in ("", "cancelled")]
    for turn in [] if fresh else chain(comparison.turns)[1]:
        variants = [v for v in variants if turn.answer(v.key) is not None]
    prompt = dataclasses.replace(
        comparison.prompt, input_ids=torch.as_tensor(comparison.prompt.input_ids)
    )
    ids = tokens_of(model, prompt, question, fresh)
    talk = _Talk(model, prompt, comparison, variants, ids, fresh, cancel)
    talk.check_room()
    return talk.events(scored, question, asked.expected)


@called_as(ask_stream)
def ask_more(stream: Iterator[Event]) -> Comparison:
    """The run with one more turn in it; see `ask_stream`."""
    return result_of(stream)


def checked_questions(
    model: Model, prompt: Prompt, ask: Ask, given: Iterable[str | Sequence[str | None]]
) -> list[tuple[str, str | None]]:
    """(question, expected answer or None) of each, given alone or as such a pair. InputError for one that
    cannot be asked of the compressed document, before that is read."""
    asked = question_pairs(given)
    most = model.info.max_tokens
    for question, _ in asked:
        more = len(tokens_of(model, prompt, question, fresh=True))
        total = prompt.n_compressible + more + ask.max_new_tokens
        if total > most:
            raise InputError(
                f"With the question {shown(question)} the model would read {total:,} tokens; {model.id} "
                f"reads {most:,}. Shorten it."
            )
    return asked


def question_pairs(given: Iterable[str | Sequence[str | None]]) -> list[tuple[str, str | None]]:
    """Further questions, each alone or with its expected answer, as such pairs; InputError for other things
    and for a blank."""
    pairs = []
    for one in given:
        match (one, None) if isinstance(one, str) else one:
            case [str(question), (str() | None) as expected]:
                pairs.append((question, Ask(expected=expected).expected))
            case _:
                raise InputError(
                    f"A question is one text, or one with its expected answer, not {shown(one)}."
                )
        if is_blank(readable(question)[0]):
            raise InputError("One of the questions is blank.")
    return pairs


def with_questions(
    events: Iterator[Event], model: Model, questions: Sequence[tuple[str, str | None]],
    cancel: threading.Event | None,
) -> Iterator[Event]:  # fmt: skip
    """The events of a run, and of each further question to its compressed document; the last event carries
    the run with the turns."""
    last = None
    for last in events:
        if last.result is None:
            yield last
    if last is None or last.result is None:
        return
    result = last.result
    for number, (question, expected) in enumerate(questions, 1):
        if cancel is not None and cancel.is_set():
            break
        for event in ask_stream(
            model, result, question, expected=expected, fresh=True, scored=last.scored, cancel=cancel
        ):
            if event.result is None:
                message = f"Further question {number} of {len(questions)}: {event.message}"
                yield dataclasses.replace(event, message=message)
        result = event.result
    yield dataclasses.replace(last, result=result)


def tokens_of(model: Model, prompt: Prompt, question: str, fresh: bool) -> list[int]:
    """What is fed to every cache for a further question."""
    if fresh and prompt.protocol == QUESTION_AGNOSTIC:  # what the first question's tokens would have been
        again = build_prompt(
            model, prompt.document, question, prompt.system, prompt.protocol, now=prompt.now,
            framing=prompt.framing,
        )  # fmt: skip
        n = prompt.n_compressible
        if again.input_ids[:n].tolist() == prompt.input_ids[:n].tolist() and again.n_compressible == n:
            return again.input_ids[n:].tolist()
    laid = further(model.tokenizer, question, moment_of(prompt.now), prompt.framing)
    return [token.id for token in encode(model.tokenizer, laid)]


def needs_for(c: Comparison) -> frozenset[str]:
    """What a reading must carry to make the caches of a run again: what methods ask for that add to the
    output or go on evicting."""
    cutting = Ask.of_settings(c.settings).evict_every is not None
    made = {v.method: v.options for v in c.variants if not v.made}
    again = {name: used for name, used in made.items() if cutting or parse_method(name)[0].readout}
    return needs_of(again, again)


@dataclass(frozen=True)
class _Cache(Kept):
    """What one cache of the run holds, and what decides where it is cut (`rolling.Rule`)."""

    method: str = ""
    entries: int = 0
    options: dict[str, Any] = field(default_factory=dict)


class _Talk:
    """One further question on its way."""

    def __init__(
        self, model: Model, prompt: Prompt, c: Comparison, variants: list[Variant], ids: list[int],
        fresh: bool, cancel: threading.Event | None,
    ):  # fmt: skip
        self.model, self.prompt, self.c, self.cancel = model, prompt, c, cancel
        self.variants, self.ids, self.fresh = variants, ids, fresh
        self.ask = Ask.of_settings(c.settings)
        self.full_logits: list[torch.Tensor] = []  # [vocabulary] at each step of the full cache's answer

    def check_room(self) -> None:
        """InputError where the conversation grows longer than the model reads."""
        before = max(len(self._before(v)) for v in [self.c.full, *self.variants])
        total = self.prompt.n_compressible + before + len(self.ids) + self.ask.max_new_tokens
        most = self.model.info.max_tokens
        if total > most:
            raise InputError(
                f"With this question the conversation would have {total:,} tokens; {self.model.id} reads "
                f"{most:,}. Ask it of the document alone."
            )

    def _before(self, v: Variant) -> list[int]:
        """Tokens that stand in a cache after the compressed ones: earlier questions and its own answers."""
        if self.fresh:
            return []
        own, turns = chain(self.c.turns)
        ids: list[int] = []
        if own:
            ids += self.prompt.input_ids[self.prompt.n_compressible :].tolist() + self._said(v)
        for turn in turns:
            answer = turn.answer(v.key)
            assert answer is not None, "asked of another cache"
            ids += turn.input_ids + self._said(answer)
        return ids

    def _said(self, v: Variant) -> list[int]:
        """An answer's tokens without the end token, which the next turn begins with where there is one."""
        return [t for t in v.token_ids if t not in self.model.stop_ids]

    def events(
        self, scored: Scored[Trace] | None, question: str, expected: str | None
    ) -> Iterator[Event]:
        started = time.perf_counter()
        turn = Turn(question, expected, self.fresh, self.ids, _blank(self.c.full), [])
        turn.variants = [_blank(v) for v in self.variants]
        try:
            if scored is None:
                trace = yield from prefill_events(self.model, self.prompt, needs_for(self.c), self.cancel)
                scored = Scored(trace)
            answers = [turn.full, *turn.variants]
            pairs = list(zip(answers, [self.c.full, *self.variants]))
            alone = None if self.ask.evict_every is None else 1  # each is cut where its own answers end
            waves = list(batches(scored.trace, pairs, _entries, alone))
            for number, wave in enumerate(waves, 1):
                yield from self._wave(scored.trace, wave, turn.full, number, len(waves))
        except Cancelled:
            yield Event("done", "Stopped. This question was not answered.", 1, 1, 0.0, result=self.c,
                        scored=scored)  # fmt: skip
            return
        turn.seconds = time.perf_counter() - started
        more = dataclasses.replace(self.c, turns=[*self.c.turns, turn])
        yield Event("done", "Done", 1, 1, 0.0, result=more, scored=scored)

    def _kept(self, trace: Trace, v: Variant) -> _Cache:
        mask = [torch.from_numpy(row) for row in v.packed.mask]
        spec, _ = parse_method(v.method)
        readout = None if spec.readout is None else spec.readout(trace, mask, v.entries, v.options)
        return _Cache(mask, readout, v.method, v.entries, v.options)

    def _begun(self, trace: Trace, held: Sequence[Variant]) -> tuple[Wave, torch.Tensor]:
        """A wave of these caches after what was said in each and the question; the logits behind it."""
        kept = [None if v is self.c.full else self._kept(trace, v) for v in held]
        before = [self._before(v) for v in held]
        most, every = len(self.ids) + self.ask.max_new_tokens, self.ask.evict_every
        if every is not None:  # one cache: all lies in its tail, where it is cut
            (said,) = before
            wave = Wave(self.model, build_cache(trace, kept), len(said) + most, self.cancel)
            if kept != [None]:
                Rolling(trace, wave, kept, every)
            *_, logits = feed_same(wave, [*said, *self.ids], every=False)
            return wave, logits[:, -1]
        wave = Wave(self.model, build_cache(trace, kept), max(*map(len, before), most), self.cancel)
        if any(before):
            longest = max(map(len, before))
            filled = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in before])
            for piece in filled.split(_PIECE, 1):
                wave.feed(piece.to(self.model.device), 1)
            wave.remember([len(ids) for ids in before])
        *_, logits = feed_same(wave, self.ids, every=False)
        return wave, logits[:, -1]

    def _wave(
        self, trace: Trace, pairs: Sequence[tuple[Variant, Variant]], full: Variant, number: int, waves: int
    ) -> Iterator[Event]:
        """Decode some caches together, after what was said in each."""
        answers, held = zip(*pairs)
        most = self.ask.max_new_tokens
        wave, first = self._begun(trace, held)
        asked = wave.length
        for answer, size in zip(answers, wave.cache.bytes):
            answer.bytes = size
        written = [Answer() for _ in answers]
        sampling = Sampling(self.ask.temperature, self.ask.top_p, self.ask.seed)
        shown = started = time.perf_counter()
        for step, _ in enumerate(
            generate(wave, first, most, self.model.stop_ids, sampling, written), 1
        ):
            now = time.perf_counter()
            if now - shown < _EVENT_SECONDS and step > 1:
                continue
            shown = now
            at, total = (number - 1) * most + step, waves * most
            texts = {name_of(a): self._text(w.token_ids).rstrip("\ufffd") for a, w in zip(answers, written)}
            message = f"Writing {len(answers)} answers, token {step} of at most {most}"
            yield Event("decode", message, at, total, (now - started) / step * (total - at), texts)
        for answer, one in zip(answers, written):
            answer.token_ids, answer.finished = list(one.token_ids), one.finished
            answer.tokens = [self.model.tokenizer.decode([t]) for t in one.token_ids]
            answer.text = self._text(one.token_ids)
            answer.first_difference = first_difference(full.token_ids, answer.token_ids)
        if wave.watcher is not None:  # its cuts cannot be taken back: begin again
            wave, first = self._begun(trace, held)
        wave.truncate(asked)
        self._measure(wave, answers, first, full)

    def _measure(self, wave: Wave, answers: Sequence[Variant], first: torch.Tensor, full: Variant) -> None:
        """Feed the full cache's answer to every cache: KL a step."""
        leads, said = answers[0] is full, full.token_ids
        rows = []
        for step, logits in forced(wave, first, said[:-1]):
            for t in range(min(logits.shape[1], len(said) - step)):
                if leads:
                    self.full_logits.append(logits[0, t])
                rows.append(kl_divergence(self.full_logits[step + t], logits[:, t]))
        for answer, row in zip(answers, torch.stack(rows, 1)):
            answer.kl = row.float().cpu().numpy()

    def _text(self, token_ids: list[int]) -> str:
        return self.model.tokenizer.decode(token_ids, skip_special_tokens=True)


def name_of(v: Variant) -> str:
    """What an answer is called while it is written."""
    return v.label if v.method == FULL else f"{v.label} · {Budget.parse(v.budget)}"


def _entries(pair: tuple[Variant, Variant]) -> int:
    _, v = pair
    return 0 if v.selection is None else int(v.packed.kept.counts().sum())


def _blank(v: Variant) -> Variant:
    """The same cache with nothing said yet."""
    return Variant(v.method, v.label, v.budget, v.entries, v.options, None, tokens_kept=v.tokens_kept)
