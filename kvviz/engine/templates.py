"""The frame around document and question: a chat template, plain text, or a prompt written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kvviz.engine.tokens import Laid, with_start
from kvviz.errors import InputError
from kvviz.framing import DOCUMENT, QUESTION, Framing
from kvviz.identity import shown

GAP = "\n\n"  # between system text (where folded in), document and question
_USER, _SYSTEM, _TURN = "kvvizUserContent4c1f", "kvvizSystemContent9a7e", "kvvizTurnContent2d8b"  # stand-ins
# How a prompt that ends in an open thought is closed: generation starts with the answer.
_OPEN_THOUGHTS = (("<think>", "\n</think>\n\n"), ("<|start|>assistant", "<|channel|>final<|message|>"))

Turn = dict[str, str]  # {"role", "content"}


@dataclass(frozen=True)
class Frame:
    """What stands around the user's content: head, then the content, then tail.

    prefix  what stands in the user turn before the document (a system text folded in).
    given   spans of the visitor's own texts within head: system text, earlier turns.
    strips  whether the template strips white space around the user's content.
    gap     between document and question.
    cue     beginning of the answer, after the tail.
    """

    head: str
    tail: str
    prefix: str = ""
    given: tuple[tuple[int, int], ...] = ()
    strips: bool = False
    gap: str = GAP
    cue: str = ""

    def lay(self, document: str, question: str) -> Laid:
        content = self.prefix + document + self.gap + question
        lead = len(content) - len(content.lstrip()) if self.strips else 0
        content = content[lead:]  # the question at its end has no white space to strip
        start = len(self.head)
        end = start + len(content)
        first = max(start, start + len(self.prefix) - lead)
        last = end - len(question) - len(self.gap)
        text = self.head + content + self.tail
        cue = (len(text), len(text) + len(self.cue))
        # The gap of a raw prompt may hold control tokens; that of a user turn is plain anyway.
        return Laid(
            text=text + self.cue,
            user=[*self.given, (start, last), (end - len(question), end), cue],
            document=(first, last),
            document_lead=max(0, lead - len(self.prefix)),
            question=(end - len(question), end),
            cue=cue,
        )


# What templates ask for with strftime_now(format), written from values that are handed in: functions that
# are handed to a template arrive as text.
_DIRECTIVES = tuple(f"%{flag}{letter}" for flag in ("-", "") for letter in "aAbBcdeFHIjmMpSTuUwWxXyYZz%")
_DATE_MACRO = (
    "{%- macro strftime_now(format) -%}{{ format"
    + "".join(f"|replace('{d}', kvviz_now['{d}'])" for d in _DIRECTIVES)
    + " }}{%- endmacro -%}"
)


def moment_of(now: datetime | str | None) -> datetime:
    """A moment to the second; InputError where it is none."""
    try:
        given = datetime.fromisoformat(now) if isinstance(now, str) else now or datetime.now()
        return given.replace(microsecond=0)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"A time is written as 2026-01-31T09:30:00, not {shown(now)}.") from error


def dated(tokenizer: Any) -> bool:
    return "strftime_now" in str(tokenizer.chat_template)


def frame_of(
    tokenizer: Any, system: str | None, now: datetime, framing: Framing
) -> tuple[Frame, list[str]]:
    """The frame that is asked for, and notes about it. InputError where the model's template has no such."""
    if framing.raw is not None:
        if system:
            raise InputError("A raw prompt is everything the model reads: leave out the system message.")
        head, rest = framing.raw.split(DOCUMENT)
        gap, tail = rest.split(QUESTION)
        return Frame(with_start(tokenizer, head), tail, gap=gap, cue=framing.cue), []
    frame, notes = _of_template(tokenizer, system, now, framing)
    return replace(frame, cue=framing.cue), notes


def _of_template(
    tokenizer: Any, system: str | None, now: datetime, framing: Framing
) -> tuple[Frame, list[str]]:
    folded = system + GAP if system else ""
    plain = Frame(with_start(tokenizer, ""), "\n", folded)
    if not framing.template:
        return plain, []
    if not tokenizer.chat_template:
        if framing.turns or framing.thinking:
            raise InputError("This model has no chat template, so it takes neither turns nor thinking.")
        note = "This model has no chat template: it reads document and question as plain text."
        return plain, [note]
    notes: list[str] = []
    render = renderer(tokenizer, notes, now, framing.thinking)
    texts = [(f"{_TURN}{i}x", role, text) for i, (role, text) in enumerate(framing.turns)]
    earlier = [{"role": role, "content": stand_in} for stand_in, role, _ in texts]
    given = [(stand_in, text) for stand_in, _, text in texts]
    try:
        if system:
            before = [{"role": "system", "content": _SYSTEM}, *earlier]
            return _rendered(tokenizer, render, before, [(_SYSTEM, system), *given]), notes
    except Exception:  # templates refuse a system turn with an error of their own making
        notes.append("This model's template has no system turn: the system text opens the user turn.")
    try:
        return replace(_rendered(tokenizer, render, earlier, given), prefix=folded), notes
    except Exception:
        if framing.turns:
            raise InputError(
                "This model's chat template does not take these turns. Give user and assistant in turn, "
                "the user first."
            ) from None
        note = "This model's chat template failed: it reads document and question as plain text."
        return plain, [note]


def _rendered(
    tokenizer: Any, render: Callable[[list[Turn]], str], before: list[Turn], given: list[tuple[str, str]]
) -> Frame:
    """The frame after these turns, whose stand-ins are replaced by the texts they stand for."""
    head, tail = _split(render([*before, {"role": "user", "content": _USER}]), _USER)
    strips = _strips(lambda messages: render([*before, *messages]), head)
    rest, filled, spans = with_start(tokenizer, head), "", []
    for stand_in, text in given:
        lead, rest = _split(rest, stand_in)
        filled += lead
        spans.append((len(filled), len(filled) + len(text)))
        filled += text
    return Frame(filled + rest, tail, given=tuple(spans), strips=strips)


def further(tokenizer: Any, question: str, now: datetime, framing: Framing) -> Laid:
    """What stands between the end of an answer and that of the next one: the turn of a further question.
    InputError where the template takes none."""
    if framing.raw is not None or not framing.template or not tokenizer.chat_template:
        tail = "\n" if framing.raw is None else framing.raw.split(QUESTION)[1]
        text = GAP + question + tail
        return Laid(text, [(len(GAP), len(GAP) + len(question))])
    render = renderer(tokenizer, [], now, framing.thinking)
    roles = zip(("user", "assistant", "user"), (_USER, _SYSTEM, _TURN))
    try:
        text = _split(render([{"role": role, "content": text} for role, text in roles]), _SYSTEM)[1]
        before, after = _split(text, _TURN)
    except Exception:
        raise InputError("This model's chat template takes no further turns.") from None
    end = len(before) + len(question)
    return Laid(before + question + after, [(len(before), end)], question=(len(before), end))


def renderer(
    tokenizer: Any, notes: list[str], now: datetime, thinking: bool = False
) -> Callable[[list[Turn]], str]:
    """How the template renders turns at a time. Thinking is switched by its own option where it has one;
    elsewhere it is switched off by closing the thought that its end opens. InputError where it cannot be on.
    """
    own: dict[str, Any] = {}
    if dated(tokenizer):
        values = {directive: now.strftime(directive) for directive in _DIRECTIVES}
        own = {"chat_template": _DATE_MACRO + tokenizer.get_chat_template(), "kvviz_now": values}

    def rendered(messages: list[Turn], **options: Any) -> str:
        options |= own
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        if thinking:
            return text
        return text + next((end for open, end in _OPEN_THOUGHTS if text.rstrip().endswith(open)), "")

    user = [{"role": "user", "content": _USER}]
    options: dict[str, Any] = {}
    try:
        plain, off = rendered(user), rendered(user, enable_thinking=False)
        if thinking:
            options = {"enable_thinking": True}
            opens = any(plain.rstrip().endswith(start) for start, _ in _OPEN_THOUGHTS)
            can = opens or rendered(user, **options) != off
        else:
            options = {"enable_thinking": False} if plain != off else {}
            can = bool(options) or any(plain.endswith(end) for _, end in _OPEN_THOUGHTS)
    except Exception:  # the caller renders again and says that the template failed
        return rendered
    if thinking and not can:
        raise InputError("This model's template has no thinking to switch on: leave thinking off.")
    if can:
        state = "on" if thinking else "off"
        notes.append(f"This model can think before it answers; that is switched {state}.")
    return lambda messages: rendered(messages, **options)


def _split(text: str, stand_in: str) -> tuple[str, str]:
    before, after = text.split(stand_in)  # exactly one: else ValueError, and the caller falls back
    return before, after


def _strips(render: Callable[[list[Turn]], str], head: str) -> bool:
    """Whether the template drops white space at the start of the user's content."""
    spaced = render([{"role": "user", "content": " " + _USER}])
    return not spaced.startswith(head + " ")
