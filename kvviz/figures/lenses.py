"""What is measured of single tokens beside the methods' scores, and at which queries.

"attention_answer" and "effect" are read at the queries of the full cache's answer, "attention" at the last
queries of what was compressed: mean attention before pooling, and the relative change of the head's output
if the token alone is removed.
"""

from __future__ import annotations

import numpy as np

from kvviz.results import words as text
from kvviz.results.comparison import Comparison
from kvviz.types import QUESTION_AGNOSTIC

LENSES = ("attention_answer", "attention", "effect")
WINDOW = 32  # queries behind "attention", whatever window a method reads itself


def lens_name(c: Comparison, name: str) -> str:
    """Short: "attention of the last 32 prompt queries"."""
    part = "document" if c.prompt.protocol == QUESTION_AGNOSTIC else "prompt"
    return {
        "attention_answer": "attention at the answer's queries",
        "attention": f"attention of the last {min(WINDOW, c.n)} {part} queries",
        "effect": "effect at the answer's queries",
    }[name]


def lens_title(c: Comparison, name: str) -> str:
    """As an axis: what is measured, and at which queries."""
    if name == "effect":
        return f"{lens_name(c, name)}: change of this head's output if this token alone is removed, relative"
    return f"{lens_name(c, name)} (mean over them and the head's query group)"


def lens_words(c: Comparison, layer: int, head: int, token: int) -> list[str]:
    """ "effect at the answer's queries 2.1%, rank 5 of 1,009" for each lens the run holds."""
    return [
        f"{lens_name(c, name)} {_value(c, name, layer, head, token)}" for name in LENSES if name in c.lenses
    ]


def _value(c: Comparison, name: str, layer: int, head: int, token: int) -> str:
    row = np.asarray(c.lenses[name][layer, head])
    if not np.isfinite(row[token]):
        return text.MISSING
    finite = row[np.isfinite(row)]
    rank = 1 + int((finite > row[token]).sum())
    shown = text.relative_error if name == "effect" else text.score
    return f"{shown(float(row[token]))}, rank {text.count(rank)} of {text.count(len(finite))}"
