"""The documents the app offers as examples, with questions and expected answers.

They lie in assets/examples; index.json lists them in the order shown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvviz.errors import KvvizError
from kvviz.resources import asset
from kvviz.types import PROTOCOLS

FOLDER = asset("examples")


@dataclass(frozen=True)
class Question:
    """A question about an example.

    full_cache_answers says whether the model named in `Example.checked_with` answered it with
    nothing evicted: where it did not, a wrong answer of a method says nothing about the method.
    """

    question: str
    expected: str
    full_cache_answers: bool


@dataclass(frozen=True)
class Example:
    """One document; `note` says where it comes from, `protocol` how it is best compressed."""

    id: str
    title: str
    file: str
    document: str
    questions: tuple[Question, ...]
    protocol: str
    note: str
    checked_with: str


def examples() -> tuple[Example, ...]:
    """All example documents. Raises KvvizError where the folder is missing or damaged."""
    return read_examples(FOLDER)


@cache
def read_examples(folder: Path) -> tuple[Example, ...]:
    """The examples that `folder`/index.json lists. A failed reading is tried again next time."""
    index = folder / "index.json"
    try:
        entries = json.loads(index.read_text(encoding="utf-8"))
        return tuple(_example(folder, entry) for entry in entries)
    except OSError as error:
        raise KvvizError(
            f"The example documents are not there ({error.filename or index}): install kvviz again, or "
            "run it from a whole checkout."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise KvvizError(f"The list of example documents is damaged ({index}): {error}") from error


def _example(folder: Path, entry: dict) -> Example:
    if entry["protocol"] not in PROTOCOLS:
        raise ValueError(f"example {entry['id']!r} has no protocol {entry['protocol']!r}")
    questions = tuple(Question(**question) for question in entry["questions"])
    document = (folder / entry["file"]).read_text(encoding="utf-8").strip()
    return Example(**{**entry, "document": document, "questions": questions})
