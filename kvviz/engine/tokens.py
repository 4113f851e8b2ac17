"""Text -> tokens with their places, whatever a visitor writes: it never becomes a control token."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

# A tokenizer keeps "treat control tokens as text" as state, so two threads must not encode at once.
_encoding = threading.Lock()


@dataclass(frozen=True)
class Laid:
    """A rendered prompt. Spans are character positions in `text`.

    user           spans that hold text of the visitor.
    document_lead  characters of the document that the template stripped at its start.
    """

    text: str
    user: list[tuple[int, int]]
    document: tuple[int, int] = (0, 0)
    document_lead: int = 0
    question: tuple[int, int] = (0, 0)
    cue: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Token:
    id: int
    start: int
    end: int

    def overlaps(self, start: int, end: int) -> bool:
        return self.start < end and self.end > start


def encode(tokenizer: Any, laid: Laid) -> list[Token]:
    """Tokens of the whole text at once, as the template's own encoding would give them. Where the
    visitor's text holds a look-alike of a control token, the stretches between the template's own
    control tokens are encoded one by one instead, with control tokens read as text."""
    whole = _plain_encode(tokenizer, laid.text, 0, split=False)
    controls = {id: added.content for id, added in tokenizer.added_tokens_decoder.items() if added.special}
    at_control = [t for t in whole if laid.text[t.start : t.end].strip() == controls.get(t.id)]
    own = [t for t in at_control if not any(t.overlaps(*span) for span in laid.user)]
    if len(own) == len(at_control):
        return _close_gaps(whole, laid.text)
    tokens: list[Token] = []
    at = 0
    for control in [*own, Token(-1, len(laid.text), len(laid.text))]:
        tokens += _plain_encode(tokenizer, laid.text[at : control.start], at, split=True)
        tokens.append(control)
        at = control.end
    return _close_gaps(tokens[:-1], laid.text)


def _plain_encode(tokenizer: Any, text: str, shift: int, split: bool) -> list[Token]:
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
        Token(id, start + shift, end + shift)
        for id, (start, end) in zip(found["input_ids"], found["offset_mapping"])
    ]


def _close_gaps(tokens: list[Token], text: str) -> list[Token]:
    """Give every character that no token claims to one: white space to the token after it (some leave the
    space that a token starts with out of its span), others to the token before (a normaliser composed
    them with its last character, as with a letter and its accent)."""
    closed: list[Token] = []
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
                    closed[at] = Token(closed[at].id, closed[at].start, reached + own)
                reached += own
            if reached < start and text[reached:start].isspace():
                start = reached
        closed.append(Token(token.id, start, token.end))
        reached = max(reached, token.end)
    return closed


def with_start(tokenizer: Any, head: str) -> str:
    """`head` with the begin-of-text token in front, if the tokenizer adds one and head has none."""
    bos = tokenizer.bos_token
    with _encoding:
        adds = bos and tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    return bos + head if adds and not head.startswith(bos) else head
