"""How document and question are set into what a model reads, where the usual way is not wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvviz.errors import InputError
from kvviz.identity import shown

DOCUMENT, QUESTION = "{document}", "{question}"  # their places in a raw prompt
_ROLES = ("user", "assistant")
_MOST = 100_000  # characters of a raw prompt or of a turn


@dataclass(frozen=True)
class Framing:
    """What stands around document and question. InputError where a part is unusable.

    turns     (role, text) of turns that come before the document's, as [{"role", "content"}] or pairs.
    raw       the whole prompt as one text with {document} and, after it, {question}; control tokens that it
              writes count as such. No chat template.
    template  False: document and question as plain text.
    cue       beginning of the answer, which the model reads and goes on from. An answer is what follows it:
              that alone is shown and judged, as RULER does.
    thinking  let a model that can think before it answers.
    """

    turns: tuple[tuple[str, str], ...] = ()
    raw: str | None = None
    template: bool = True
    cue: str = ""
    thinking: bool = False

    def __post_init__(self):
        checked = {
            "turns": _turns(self.turns),
            "raw": _raw(self.raw),
            "template": bool(self.template),
            "cue": _text(self.cue, "The beginning of the answer"),
            "thinking": bool(self.thinking),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.raw is not None and (self.turns or self.thinking):
            raise InputError("A raw prompt is everything the model reads: leave out turns and thinking.")
        if not self.template and (self.turns or self.thinking):
            raise InputError("Turns and thinking are written by the chat template: leave it on.")
        if self.thinking and self.cue:
            raise InputError("A model that thinks does so before its answer: give no beginning of it.")

    def changes(self) -> dict[str, Any]:
        """What is not as usual, by name: arguments of `build_prompt`."""
        usual = Framing()
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {name: value for name, value in given.items() if value != getattr(usual, name)}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are stored with a prompt."""
        return {**dataclasses.asdict(self), "turns": [list(turn) for turn in self.turns]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any] | None) -> Framing:
        """The other way round; older files have none."""
        known = [f.name for f in dataclasses.fields(cls)]
        return cls(**{name: plain[name] for name in known if name in plain}) if plain else cls()


def _text(given: Any, what: str) -> str:
    if given is not None and not isinstance(given, str):
        raise InputError(f"{what} is one text, not {shown(given)}.")
    text = given or ""
    if len(text) > _MOST:
        raise InputError(f"{what} has {len(text):,} characters; up to {_MOST:,} are read. Shorten it.")
    return text if text.strip() else ""


def _raw(given: Any) -> str | None:
    text = _text(given, "A raw prompt")
    if not text:
        return None
    if text.count(DOCUMENT) != 1 or text.count(QUESTION) != 1 or text.index(DOCUMENT) > text.index(QUESTION):
        raise InputError(f"A raw prompt holds {DOCUMENT} and, after it, {QUESTION}, each once.")
    return text


def _turns(given: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError('Turns are a list of {"role": "user" or "assistant", "content": text}.')
    found = []
    for turn in given:
        if isinstance(turn, Mapping):
            turn = (turn.get("role"), turn.get("content"))
        pair = list(turn) if isinstance(turn, Sequence) and not isinstance(turn, str) else []
        if len(pair) != 2 or pair[0] not in _ROLES or not isinstance(pair[1], str) or not pair[1].strip():
            raise InputError(
                f'A turn before the document\'s is {{"role": "user" or "assistant", "content": text}}, '
                f"not {shown(turn)}."
            )
        found.append((pair[0], _text(pair[1], "A turn").strip()))
    return tuple(found)
