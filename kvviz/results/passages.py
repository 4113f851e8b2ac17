"""A prompt in pieces a reader would point at: sentences, lines or paragraphs, the question, the template."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvviz.errors import InputError
from kvviz.types import Prompt

UNITS = ("sentence", "line", "paragraph")
KINDS = ("document", "question", "template")
# Where a piece ends: behind a full stop that is followed by a space, or at a line's end; scripts that are
# written without spaces have full stops of their own.
_ENDS = {
    "sentence": re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)\s*|[。！？｡]+[」』”]*\s*|\n\s*"),
    "line": re.compile(r"\n\s*"),
    "paragraph": re.compile(r"\n[^\S\n]*\n\s*"),
}


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
    n = prompt.n_compressible
    starts = _starts(prompt.document, unit)
    labels: list[tuple[str, int]] = []
    piece = 0
    question = range(*prompt.question_span)
    for token, span in enumerate(prompt.offsets[:n]):
        if span is None:
            labels.append(("question" if token in question else "template", 0))
            continue
        # A token belongs to the piece in which its last character lies: "‹line end›The" opens the new one.
        while piece + 1 < len(starts) and starts[piece + 1] < span[1]:
            piece += 1
        labels.append(("document", piece))
    found: list[Passage] = []
    begin = 0
    for token in range(1, n + 1):
        if token == n or labels[token] != labels[begin]:
            found.append(passage_of(prompt, labels[begin][0], begin, token))
            begin = token
    return found


def _starts(document: str, unit: str) -> list[int]:
    """First character of each piece of the document."""
    ends = [m.end() for m in _ENDS[unit].finditer(document)]
    return [0, *(end for end in ends if end < len(document))]


def passage_of(prompt: Prompt, kind: str, start: int, end: int) -> Passage:
    """The tokens start to end as a passage of this kind, with their text."""
    first, last = prompt.offsets[start], prompt.offsets[end - 1]
    if first is not None and last is not None:  # tokens of the document
        text = prompt.document[first[0] : last[1]].strip()
    else:
        text = "".join(prompt.tokens[start:end]).strip()
    return Passage(kind, start, end, text)
