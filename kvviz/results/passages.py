"""A prompt in pieces a reader would point at: sentences, lines or paragraphs, the question, the template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from kvviz.errors import InputError
from kvviz.results.sections import sections
from kvviz.types import Prompt

UNITS = ("sentence", "line", "paragraph")
GRAINS = ("token", "word", "sentence", "paragraph", "section")  # what a text is seen by
KINDS = ("document", "question", "template")
# Where a piece ends: behind a full stop that is followed by a space, or at a line's end that no editor made
# (see `_wraps`); scripts that are written without spaces have full stops of their own.
_ENDS = {
    "sentence": re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)\s*|[。！？｡]+[」』”]*\s*|\n\s*"),
    "line": re.compile(r"\n\s*"),
    "paragraph": re.compile(r"\n[^\S\n]*\n\s*"),
    "word": re.compile(r"\s+|[。！？｡、，；：]+"),
}

_FILLED = 40  # characters of a line from which on its end may be there for the width's sake
_GOES_ON = re.compile(r"[\w,]\s*$")
_ITEM = re.compile(r"\s*([-*•]|\(?\w{1,3}[.)])\s")
_CODE = re.compile(r"[_={}\[\]<>\\|]")  # lines of programs end where they end


@dataclass(frozen=True)
class Passage:
    """Tokens start to end (exclusive). kind is "document", "question" or "template"."""

    kind: str
    start: int
    end: int
    text: str


def passages(prompt: Prompt, unit: str = "sentence") -> list[Passage]:
    """The tokens under compression in order, each in exactly one passage."""
    if unit not in UNITS:
        raise InputError(f"A passage is a sentence, a line or a paragraph, not {unit!r}.")
    starts = passage_starts(prompt, unit)
    ends = [*starts[1:], prompt.n_compressible]
    return [passage_of(prompt, _kind(prompt, start), start, end) for start, end in zip(starts, ends)]


def _kind(prompt: Prompt, token: int) -> str:
    if prompt.offsets[token] is not None:
        return "document"
    return "question" if prompt.question_span[0] <= token < prompt.question_span[1] else "template"


def passage_starts(prompt: Prompt, unit: str) -> list[int]:
    """First token of each passage among the tokens under compression; `unit` also "word" or "section"."""
    starts = pieces(prompt.document, unit)
    found: list[int] = []
    before: object = None
    piece = 0
    question = range(*prompt.question_span)
    for token, span in enumerate(prompt.offsets[: prompt.n_compressible]):
        if span is None:
            label: object = "question" if token in question else "template"
        else:
            # It belongs to the piece in which its last character lies: "‹line end›The" opens the new one.
            while piece + 1 < len(starts) and starts[piece + 1] < span[1]:
                piece += 1
            label = piece
        if label != before:
            found.append(token)
            before = label
    return found


def pieces(document: str, unit: str) -> list[int]:
    """First character of each piece of the document; a section is a page, or what one heading stands over."""
    if unit == "section":
        return [part.start for part in sections(document)]
    wraps = _wraps(document) if unit == "sentence" else ()
    ends = [m.end() for m in _ENDS[unit].finditer(document) if m.start() not in wraps]
    return [0, *(end for end in ends if end < len(document))]


def _wraps(document: str) -> set[int]:
    """Line ends at which a sentence goes on, for the text was filled to a width: behind a long line of prose
    whose next word would not have fitted into the widest line of its paragraph, or which goes on in lower
    case."""
    found: set[int] = set()
    at = 0
    for written, paragraph in groupby(document.split("\n"), key=lambda line: bool(line.strip())):
        lines = list(paragraph)
        width = max(map(len, lines))
        for line, following in zip(lines, [*lines[1:], ""]):
            at += len(line)
            new = _ITEM.match(following) or _CODE.search(line + following)
            if written and following and len(line) >= _FILLED and not new:
                word = following.split()[0]
                fits = len(line.rstrip()) + 1 + len(word) <= width
                if not fits or (word[0].islower() and _GOES_ON.search(line)):
                    found.add(at)
            at += 1
    return found


def passage_of(prompt: Prompt, kind: str, start: int, end: int) -> Passage:
    """The tokens start to end as a passage of this kind, with their text."""
    first, last = prompt.offsets[start], prompt.offsets[end - 1]
    if first is not None and last is not None:  # tokens of the document
        text = prompt.document[first[0] : last[1]].strip()
    else:
        text = "".join(prompt.tokens[start:end]).strip()
    return Passage(kind, start, end, text)
