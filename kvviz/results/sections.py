"""Pages and headings of a text, as the text itself has them: so they are stored, sent and edited with it.

A page ends with a form feed, as in the text that pdftotext writes; a heading is a line that begins with "#"
and stands alone, between empty lines or at a page's edge (a comment above a line of code is none).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from kvviz.types import PAGE_END, Prompt

_LINES = re.compile(r"[^\n\f]*(?:[\n\f]|\Z)")
_HEADING = re.compile(r"#{1,6} +(\S.*)")


@dataclass(frozen=True)
class Section:
    """A part of a text from character `start` on; page counts from 1, None in a text without pages."""

    start: int
    page: int | None
    heading: str

    @property
    def label(self) -> str:
        """ "page 3 · The ledger"."""
        return " · ".join(filter(None, [f"page {self.page}" if self.page else "", self.heading]))


def sections(document: str) -> list[Section]:
    """The parts of a text in order, the first at character 0; only that one where it has none of both."""
    found = [Section(0, 1 if PAGE_END in document else None, "")]
    lines = _LINES.findall(document)
    at, filled, alone = 0, False, True  # whether the part has any text; whether the line before was empty
    for line, following in zip(lines, [*lines[1:], ""]):
        heading = _HEADING.fullmatch(line.strip()) if alone else None
        if heading and (line.endswith(PAGE_END) or not following.strip()):
            _begin(found, filled, Section(at, found[-1].page, heading[1]))
            filled = True
        filled = filled or bool(line.strip())
        alone = not line.strip()
        at += len(line)
        if line.endswith(PAGE_END):
            _begin(found, filled, Section(at, (found[-1].page or 0) + 1, found[-1].heading))
            filled, alone = False, True
    return found if filled or len(found) == 1 else found[:-1]


def _begin(found: list[Section], filled: bool, new: Section) -> None:
    """One more part; empty space before it goes with the part before that."""
    if not filled:
        found.pop()
    found.append(new if found else Section(0, new.page, new.heading))


def section_starts(prompt: Prompt) -> list[tuple[int, Section]]:
    """(first token, part) of the parts of a prompt's document; a token belongs to the part in which its last
    character lies, and a part that has none is left out."""
    found = sections(prompt.document)
    out: list[tuple[int, Section]] = []
    number = -1
    for token, span in enumerate(prompt.offsets):
        if span is None:
            continue
        before = number
        while number + 1 < len(found) and found[number + 1].start < max(1, span[1]):
            number += 1
        if number != before:
            out.append((token, found[number]))
    return out


class Where:
    """Says in which part of a prompt's document a token lies."""

    def __init__(self, prompt: Prompt):
        self._parts = section_starts(prompt)
        self._starts = [token for token, _ in self._parts]

    def __call__(self, token: int) -> str:
        """ "page 3 · The ledger", "" where the text has neither."""
        at = bisect_right(self._starts, token) - 1
        return self._parts[at][1].label if at >= 0 else ""
