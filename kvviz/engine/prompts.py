"""Document and question -> token ids, with the place of every token in the document.

The user turn is `document + "\\n\\n" + question`, set in the model's chat template. A visitor's text
never becomes a control token: what merely looks like one ("<|im_end|>") is read as plain text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch

from kvviz.engine.documents import box_notice, is_blank, readable
from kvviz.errors import InputError, ModelError
from kvviz.identity import shown
from kvviz.models.adapters import Model
from kvviz.settings import Settings
from kvviz.types import PROTOCOLS, QUESTION_AGNOSTIC, QUESTION_AWARE, Prompt

_GAP = "\n\n"  # between system text (where folded in), document and question
_USER, _SYSTEM = "kvvizUserContent4c1f", "kvvizSystemContent9a7e"  # stand-ins while rendering
# Far more characters a token than any text has: what has more is refused before it is cut into tokens.
_CHARACTERS_A_TOKEN = 32
# How a prompt that ends in an open thought is closed: generation starts with the answer.
_OPEN_THOUGHTS = (("<think>", "\n</think>\n\n"), ("<|start|>assistant", "<|channel|>final<|message|>"))

# A tokenizer keeps "treat control tokens as text" as state, so two threads must not encode at once.
_encoding = threading.Lock()


def build_prompt(
    model: Model,
    document: str,
    question: str,
    system: str | None = None,
    protocol: str = QUESTION_AWARE,
    limits: Settings | None = None,
    now: datetime | str | None = None,
) -> Prompt:
    """The prompt that `model` reads for a question about a document.

    In the question-agnostic protocol `n_compressible` counts the tokens that lie wholly before the
    document's end; they are the same whatever the question. Line ends become \\n, whichever they are.

    limits  of a server; None: a prompt is as long as the model reads.
    now     time that a template may write into the prompt, as the ISO text of `Prompt.now` or a datetime;
            None: the time of this call.

    Raises InputError with one sentence for a blank document or question, a prompt too long for the
    model or an unknown protocol; ModelError for a tokenizer that cannot tell where its tokens lie.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"There is no protocol {protocol!r}; choose {' or '.join(PROTOCOLS)}.")
    document, unreadable = readable(document)
    question, more = readable(question)
    system, yet_more = readable(system)
    if is_blank(document):
        raise InputError("Paste or upload a document first.")
    if is_blank(question):
        raise InputError("Ask a question about the document.")
    if not getattr(model.tokenizer, "is_fast", False):
        raise ModelError(f"The tokenizer of {model.id} does not tell where its tokens lie in a text.")
    question = question.strip()
    system = None if is_blank(system) else system.strip()

    _check_characters(model, len(document) + len(question), limits)
    moment = _moment(now)
    frame, notes = _frame(model.tokenizer, system, moment)
    notes = [*model.notes, *notes]
    laid = frame.lay(document, question)
    tokens = _encode(model.tokenizer, laid)
    n_compressible = len(tokens)
    if protocol == QUESTION_AGNOSTIC:
        tokens, n_compressible = _question_free_prefix(model.tokenizer, frame, document, laid, tokens)
    _check_length(model, len(tokens), limits)
    if lost := unreadable + more + yet_more:
        notes.append(box_notice(lost))

    document_span = _span(tokens, *laid.document)
    shift = laid.document_lead - laid.document[0]
    return Prompt(
        input_ids=torch.tensor([token.id for token in tokens], dtype=torch.long),
        n_compressible=n_compressible,
        tokens=[laid.text[t.start : t.end] or model.tokenizer.decode([t.id]) for t in tokens],
        offsets=[
            (max(t.start, laid.document[0]) + shift, min(t.end, laid.document[1]) + shift)
            if t.overlaps(*laid.document)
            else None
            for t in tokens
        ],
        document=document,
        question=question,
        system=system,
        protocol=protocol,
        document_span=document_span,
        question_span=_span(tokens, *laid.question),
        notes=tuple(notes),
        now=moment.isoformat() if _dated(model.tokenizer) else None,
    )


def _most(model: Model, limits: Settings | None) -> tuple[str, int]:
    """(who reads, how many tokens at most)."""
    if limits is not None and limits.max_tokens < model.info.max_tokens:
        return "this installation", limits.max_tokens
    return model.id, model.info.max_tokens


def _check_characters(model: Model, count: int, limits: Settings | None) -> None:
    reader, most = _most(model, limits)
    if count > _CHARACTERS_A_TOKEN * most:
        raise InputError(
            f"This document has {count:,} characters, far more than the {most:,} tokens that {reader} reads. "
            "Give a shorter part of it."
        )


def _check_length(model: Model, count: int, limits: Settings | None) -> None:
    reader, most = _most(model, limits)
    if count >= most:  # one place is needed for an answer
        remove = -(-(count + 1 - most) // 100) * 100
        raise InputError(
            f"This document has {count:,} tokens; {reader} reads {most:,}. "
            f"Remove about {remove:,}, or choose another model."
        )


@dataclass(frozen=True)
class _Laid:
    """A rendered prompt. Spans are character positions in `text`.

    user           spans that hold text of the visitor.
    document_lead  characters of the document that the template stripped at its start.
    """

    text: str
    user: list[tuple[int, int]]
    document: tuple[int, int]
    document_lead: int
    question: tuple[int, int]


@dataclass(frozen=True)
class _Frame:
    """The template around the user turn: head, then the user's content, then tail.

    prefix  what stands in the user turn before the document (a system text folded in).
    system  span of the system text within head, if it has its own turn.
    strips  whether the template strips white space around the user's content.
    """

    head: str
    tail: str
    prefix: str = ""
    system: tuple[int, int] | None = None
    strips: bool = False

    def lay(self, document: str, question: str) -> _Laid:
        content = self.prefix + document + _GAP + question
        lead = len(content) - len(content.lstrip()) if self.strips else 0
        content = content[lead:]  # the question at its end has no white space to strip
        start = len(self.head)
        end = start + len(content)
        first = max(start, start + len(self.prefix) - lead)
        return _Laid(
            text=self.head + content + self.tail,
            user=([self.system] if self.system else []) + [(start, end)],
            document=(first, end - len(question) - len(_GAP)),
            document_lead=max(0, lead - len(self.prefix)),
            question=(end - len(question), end),
        )


@dataclass(frozen=True)
class _Token:
    id: int
    start: int
    end: int

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and self.end > start


# What templates ask for with strftime_now(format), written from values that are handed in: functions that
# are handed to a template arrive as text.
_DIRECTIVES = tuple(f"%{flag}{letter}" for flag in ("-", "") for letter in "aAbBcdeFHIjmMpSTuUwWxXyYZz%")
_DATE_MACRO = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f"|replace('{d}', kvviz_now['{d}'])" for d in _DIRECTIVES)
    + " }}{%- endmacro -%}"
)


def _moment(now: datetime | str | None) -> datetime:
    """A moment to the second; InputError where it is none."""
    try:
        given = datetime.fromisoformat(now) if isinstance(now, str) else now or datetime.now()
        return given.replace(microsecond=0)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"A time is written as 2026-01-31T09:30:00, not {shown(now)}.") from error


def _dated(tokenizer: Any) -> bool:
    return "strftime_now" in str(tokenizer.chat_template)


def _frame(tokenizer: Any, system: str | None, now: datetime) -> tuple[_Frame, list[str]]:
    """The frame that the tokenizer's chat template gives, and notes about it."""
    folded = system + _GAP if system else ""
    if not tokenizer.chat_template:
        note = "This model has no chat template: it reads document and question as plain text."
        return _Frame(_start(tokenizer, ""), "\n", folded), [note]
    notes: list[str] = []
    render = _renderer(tokenizer, notes, now)
    user = {"role": "user", "content": _USER}
    try:
        if system:
            turn = {"role": "system", "content": _SYSTEM}
            head, tail = _split(render([turn, user]), _USER)
            before, after = _split(head, _SYSTEM)
            strips = _strips(lambda messages: render([turn, *messages]), head)
            before = _start(tokenizer, before)
            span = (len(before), len(before) + len(system))
            return _Frame(before + system + after, tail, "", span, strips), notes
    except Exception:  # templates refuse a system turn with an error of their own making
        notes.append("This model's template has no system turn: the system text opens the user turn.")
    try:
        head, tail = _split(render([user]), _USER)
        return _Frame(_start(tokenizer, head), tail, folded, None, _strips(render, head)), notes
    except Exception:
        note = "This model's chat template failed: it reads document and question as plain text."
        return _Frame(_start(tokenizer, ""), "\n", folded), [note]


def _renderer(
    tokenizer: Any, notes: list[str], now: datetime
) -> Callable[[list[dict[str, str]]], str]:
    """How the template renders turns at a time, with thinking switched off: by its own option where
    it has one, else by closing the thought that its end opens."""
    dated: dict[str, Any] = {}
    if _dated(tokenizer):
        values = {directive: now.strftime(directive) for directive in _DIRECTIVES}
        dated = {"chat_template": _DATE_MACRO + tokenizer.get_chat_template(), "kvviz_now": values}

    def rendered(messages: list[dict[str, str]], **options: Any) -> str:
        options |= dated
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        return text + next((end for open, end in _OPEN_THOUGHTS if text.rstrip().endswith(open)), "")

    user = [{"role": "user", "content": _USER}]
    options: dict[str, Any] = {}
    try:
        plain = rendered(user)
        if plain != rendered(user, enable_thinking=False):
            options = {"enable_thinking": False}
        if options or any(plain.endswith(end) for _, end in _OPEN_THOUGHTS):
            notes.append("This model can think before it answers; that is switched off.")
    except Exception:  # the caller renders again and says that the template failed
        return rendered
    return lambda messages: rendered(messages, **options)


def _split(text: str, stand_in: str) -> tuple[str, str]:
    before, after = text.split(stand_in)  # exactly one: else ValueError, and the caller falls back
    return before, after


def _strips(render: Callable[[list[dict[str, str]]], str], head: str) -> bool:
    """Whether the template drops white space at the start of the user's content."""
    spaced = render([{"role": "user", "content": " " + _USER}])
    return not spaced.startswith(head + " ")


def _start(tokenizer: Any, head: str) -> str:
    """`head` with the begin-of-text token in front, if the tokenizer adds one and head has none."""
    bos = tokenizer.bos_token
    with _encoding:
        adds = bos and tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return bos + head if adds and not head.startswith(bos) else head


def _encode(tokenizer: Any, laid: _Laid) -> list[_Token]:
    """Tokens of the whole text at once, as the template's own encoding would give them. Where the
    visitor's text holds a look-alike of a control token, the stretches between the template's own
    control tokens are encoded one by one instead, with control tokens read as text."""
    whole = _plain_encode(tokenizer, laid.text, 0, split=False)
    controls = {id: added.content for id, added in tokenizer.added_tokens_decoder.items() if added.special}
    at_control = [t for t in whole if laid.text[t.start : t.end].strip() == controls.get(t.id)]
    own = [t for t in at_control if not any(t.overlaps(*span) for span in laid.user)]
    if len(own) == len(at_control):
        return _close_gaps(whole, laid.text)
    tokens: list[_Token] = []
    at = 0
    for control in [*own, _Token(-1, len(laid.text), len(laid.text))]:
        tokens += _plain_encode(tokenizer, laid.text[at : control.start], at, split=True)
        tokens.append(control)
        at = control.end
    return _close_gaps(tokens[:-1], laid.text)


def _plain_encode(tokenizer: Any, text: str, shift: int, split: bool) -> list[_Token]:
    if not text:
        return []
    with _encoding:
        found = tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            split_special_tokens=split,
            verbose=False,
        )
    return [
        _Token(id, start + shift, end + shift)
        for id, (start, end) in zip(found["input_ids"], found["offset_mapping"])
    ]


def _close_gaps(tokens: list[_Token], text: str) -> list[_Token]:
    """Give every character that no token claims to one: white space to the token after it (some leave the
    space that a token starts with out of its span), others to the token before (a normaliser composed
    them with its last character, as with a letter and its accent)."""
    closed: list[_Token] = []
    reached = 0
    for token in tokens:
        start = token.start
        if reached < start:
            gap = text[reached:start]
            own = next((i for i, character in enumerate(gap) if character.isspace()), len(gap))
            if own and closed:
                for at in range(len(closed) - 1, -1, -1):  # several tokens may make one character
                    if closed[at].end != reached:
                        break
                    closed[at] = _Token(closed[at].id, closed[at].start, reached + own)
                reached += own
            if reached < start and text[reached:start].isspace():
                start = reached
        closed.append(_Token(token.id, start, token.end))
        reached = max(reached, token.end)
    return closed


def _question_free_prefix(
    tokenizer: Any, frame: _Frame, document: str, laid: _Laid, tokens: list[_Token]
) -> tuple[list[_Token], int]:
    """(tokens, n): the first n are those that end with the document, and depend on it alone.

    They are taken from the same document with another question. Where the real question changes
    them, or the document's only token reaches past its end, the text is encoded in two parts.
    """
    neutral = _encode(tokenizer, frame.lay(document, "x"))
    prefix = neutral[: _count_before(neutral, laid.document[1])]
    if not any(token.overlaps(*laid.document) for token in prefix):
        prefix = _encode(tokenizer, _part(laid, 0, laid.document[1]))
    if prefix == tokens[: len(prefix)]:
        return tokens, len(prefix)
    cut = prefix[-1].end
    rest = _encode(tokenizer, _part(laid, cut, len(laid.text)))
    return prefix + [_Token(t.id, t.start + cut, t.end + cut) for t in rest], len(prefix)


def _part(laid: _Laid, start: int, end: int) -> _Laid:
    clipped = [(max(a, start) - start, min(b, end) - start) for a, b in laid.user]
    nowhere = (0, 0)
    return _Laid(laid.text[start:end], [s for s in clipped if s[0] < s[1]], nowhere, 0, nowhere)


def _count_before(tokens: list[_Token], end: int) -> int:
    """How many leading tokens end at or before the character `end`."""
    return next((n for n, token in enumerate(tokens) if token.end > end), len(tokens))


def _span(tokens: list[_Token], start: int, end: int) -> tuple[int, int]:
    inside = [position for position, token in enumerate(tokens) if token.overlaps(start, end)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)
