"""Document and question -> token ids, with the place of every token in the document.

The user turn is `document + "\\n\\n" + question`, set in the model's chat template, unless a `Framing` says
otherwise. A visitor's text never becomes a control token: what merely looks like one ("<|im_end|>") is read
as plain text.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import torch

from kvviz.engine.documents import box_notice, is_blank, readable
from kvviz.engine.templates import Frame, dated, frame_of, moment_of
from kvviz.engine.tokens import Laid, Token, encode
from kvviz.errors import InputError, ModelError
from kvviz.framing import Framing
from kvviz.models.adapters import Model
from kvviz.settings import Settings
from kvviz.types import PROTOCOLS, QUESTION_AGNOSTIC, QUESTION_AWARE, Prompt

# Far more characters a token than any text has: what has more is refused before it is cut into tokens.
_CHARACTERS_A_TOKEN = 32


def build_prompt(
    model: Model,
    document: str,
    question: str,
    system: str | None = None,
    protocol: str = QUESTION_AWARE,
    limits: Settings | None = None,
    now: datetime | str | None = None,
    framing: Framing | None = None,
    **framed: Any,
) -> Prompt:
    """The prompt that `model` reads for a question about a document.

    In the question-agnostic protocol `n_compressible` counts the tokens that lie wholly before the
    document's end; they are the same whatever the question. Line ends become \\n, whichever they are.

    limits  of a server; None: a prompt is as long as the model reads.
    now     time that a template may write into the prompt, as the ISO text of `Prompt.now` or a datetime;
            None: the time of this call.
    framed  what stands around document and question, by the names of `kvviz.framing.Framing`: earlier
            `turns`, a `raw` prompt, `template` off, a `cue` that the answer begins with, `thinking`;
            `framing` holds them all in one value, in their place.

    Raises InputError with one sentence for a blank document or question, a prompt too long for the
    model or an unknown protocol; ModelError for a tokenizer that cannot tell where its tokens lie.
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"There is no protocol {protocol!r}; choose {' or '.join(PROTOCOLS)}.")
    framing = Framing(**framed) if framing is None else framing
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
    moment = moment_of(now)
    frame, notes = frame_of(model.tokenizer, system, moment, framing)
    notes = [*model.notes, *notes]
    laid = frame.lay(document, question)
    tokens = encode(model.tokenizer, laid)
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
        now=moment.isoformat() if dated(model.tokenizer) else None,
        framing=framing,
        cue_span=_span(tokens, *laid.cue),
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


def _question_free_prefix(
    tokenizer: Any, frame: Frame, document: str, laid: Laid, tokens: list[Token]
) -> tuple[list[Token], int]:
    """(tokens, n): the first n are those that end with the document, and depend on it alone.

    They are taken from the same document with another question. Where the real question changes
    them, or the document's only token reaches past its end, the text is encoded in two parts.
    """
    neutral = encode(tokenizer, frame.lay(document, "x"))
    prefix = neutral[: _count_before(neutral, laid.document[1])]
    if not any(token.overlaps(*laid.document) for token in prefix):
        prefix = encode(tokenizer, _part(laid, 0, laid.document[1]))
    if prefix == tokens[: len(prefix)]:
        return tokens, len(prefix)
    cut = prefix[-1].end
    rest = encode(tokenizer, _part(laid, cut, len(laid.text)))
    return prefix + [Token(t.id, t.start + cut, t.end + cut) for t in rest], len(prefix)


def _part(laid: Laid, start: int, end: int) -> Laid:
    clipped = [(max(a, start) - start, min(b, end) - start) for a, b in laid.user]
    return Laid(laid.text[start:end], [s for s in clipped if s[0] < s[1]])


def _count_before(tokens: list[Token], end: int) -> int:
    """How many leading tokens end at or before the character `end`."""
    return next((n for n, token in enumerate(tokens) if token.end > end), len(tokens))


def _span(tokens: list[Token], start: int, end: int) -> tuple[int, int]:
    inside = [position for position, token in enumerate(tokens) if token.overlaps(start, end)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)
