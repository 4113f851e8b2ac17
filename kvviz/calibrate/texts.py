"""Texts to calibrate on: a folder of .txt files, and ledgers generated with seeds of their own.

Nothing here is measured with: measurements use the ledgers of seed 0, the examples of the app and
`assets/calibration/held_out`. Generated texts have seeds from `FIRST_SEED` up and other needles.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch

from kvviz.errors import InputError
from kvviz.evaluate.needles import MIN_TOKENS, N_TEXTS, NEEDLE, needle_text
from kvviz.resources import asset

SHIPPED = asset("calibration")
FIRST_SEED = 1000

# (sentence, question, answer) hidden in generated texts while calibrating; none of them is measured with.
FACTS: tuple[tuple[str, str, str], ...] = (
    ("The password of the Carden observatory is 74109.", "What is the password of the Carden observatory?",
     "The password of the Carden observatory is 74109."),
    ("The name of the grey cat in the mill is Bramble.", "What is the name of the grey cat in the mill?",
     "The name of the grey cat in the mill is Bramble."),
    ("The number of the blue locker is 3382.", "What is the number of the blue locker?",
     "The number of the blue locker is 3382."),
    ("The favourite drink of Doctor Ferrow is nettle tea.", "What is the favourite drink of Doctor Ferrow?",
     "The favourite drink of Doctor Ferrow is nettle tea."),
    ("The secret word of the bakery is marzipan.", "What is the secret word of the bakery?",
     "The secret word of the bakery is marzipan."),
    ("The telephone number of the Hollin farm is 60277.", "What is the telephone number of the Hollin farm?",
     "The telephone number of the Hollin farm is 60277."),
    ("The key of the music room hangs behind the green clock.", "Where does the key of the music room hang?",
     "The key of the music room hangs behind the green clock."),
    ("The winner of the Easter race was Pernilla Hald.", "Who was the winner of the Easter race?",
     "The winner of the Easter race was Pernilla Hald."),
)  # fmt: skip


@dataclass
class Texts:
    """Files of `folder` (None: those that ship), read at once, and what was used of them."""

    folder: Path | str | None = None
    files: dict[str, str] = field(init=False)
    used: set[str] = field(default_factory=set, init=False)

    def __post_init__(self):
        folder = SHIPPED if self.folder is None else Path(self.folder)
        if not folder.is_dir():
            raise InputError(f"There is no folder {folder.name} with texts to calibrate on.")
        names = sorted(folder.glob("*.txt"))
        if not names:
            raise InputError(f"The folder {folder.name} holds no .txt file to calibrate on.")
        self.files = {name.name: name.read_text(encoding="utf-8", errors="replace") for name in names}

    @property
    def key(self) -> str:
        """Tells one set of files from another."""
        made = hashlib.sha256()
        for name, text in self.files.items():
            made.update(f"{name} {hashlib.sha256(text.encode()).hexdigest()} ".encode())
        return made.hexdigest()

    @property
    def about(self) -> list[dict[str, Any]]:
        """Provenance: every source that was read, with its hash."""
        files = [
            {"file": name, "sha256": hashlib.sha256(text.encode()).hexdigest()}
            for name, text in self.files.items()
            if name in self.used
        ]
        made = sorted(used for used in self.used if used not in self.files)
        return files + [{"generated": used} for used in made]

    def pieces(self, model, lengths: list[int], seed: int) -> list[torch.Tensor]:
        """One text of token ids a length, LongTensor [length]; every third one is generated."""
        rng = Random(f"pieces/{seed}")
        encoded = {name: _encode(model, text) for name, text in self.files.items()}
        names = [name for name, ids in encoded.items() if len(ids) >= min(lengths)]
        out = []
        for number, length in enumerate(lengths):
            fitting = [name for name in names if len(encoded[name]) >= length]
            if number % 3 < 2 and fitting:
                name = rng.choice(fitting)
                start = rng.randrange(len(encoded[name]) - length + 1)
                ids = encoded[name][start : start + length]
                self.used.add(name)
            else:
                document = self.document(model, length + length // 16 + MIN_TOKENS, number, seed)[0]
                ids = _encode(model, document)[:length]
            out.append(torch.tensor(ids, dtype=torch.long))
        return out

    def document(self, model, length: int, number: int, seed: int, depth: float | None = None):
        """(document, fact) number `number`: a generated ledger of about `length` tokens with that fact."""
        fact = FACTS[number % len(FACTS)]
        own = FIRST_SEED + 97 * seed + number
        depth = ((number * 5) % 9 + 0.5) / 9 if depth is None else depth
        # A text of few sentences cannot meet its length: where a sentence takes many tokens it grows.
        length = max(length, MIN_TOKENS, 16 * len(_encode(model, NEEDLE)))
        case = needle_text(length, depth, model.tokenizer, number % N_TEXTS, own)
        self.used.add(f"ledgers of this project, texts 0 to {N_TEXTS - 1}, seeds from {FIRST_SEED} up")
        return case.document.replace(NEEDLE, fact[0]), fact


def _encode(model, text: str) -> list[int]:
    return model.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
