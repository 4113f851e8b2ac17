"""One option of a method or of an allocation: what it may be, what it is by default, what it does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from kvviz.errors import InputError
from kvviz.identity import shown

WHOLE, NUMBER, SWITCH, CHOICE, LIST = "whole number", "number", "true or false", "choice", "list of numbers"
LARGEST = 2**63 - 1
MOST_NUMBERS = 1024  # of a list


@dataclass(frozen=True)
class Option:
    """A row beside the code that reads it.

    kind      WHOLE, NUMBER, SWITCH, CHOICE or LIST (of numbers).
    low, high  what a number, or every number of a list, lies between; both belong to it.
    choices   the words of a CHOICE.
    optional  None is allowed as well.
    scoring   it is read while scoring: scores made with one value do not serve another.
    formerly  the name it had in runs that were saved before.
    """

    name: str
    default: Any
    kind: str
    help: str
    low: float = 0
    high: float = LARGEST
    choices: tuple[str, ...] = ()
    optional: bool = False
    scoring: bool = True
    formerly: str = ""

    def having(self, default: Any, **changes: Any) -> Option:
        """The same row with another default."""
        return replace(self, default=default, **changes)

    @property
    def allowed(self) -> str:
        """What it may be, in words: "a whole number from 1 to 1,023"."""
        between = f"from {_number(self.low)} to {_number(self.high)}"
        words = {
            WHOLE: f"a whole number {between}",
            NUMBER: f"a number {between}",
            SWITCH: "true or false",
            CHOICE: f"one of {', '.join(self.choices)}",
            LIST: f"a list of numbers {between}",
        }[self.kind]
        return f"{words}, or none" if self.optional else words

    def check(self, value: Any, owner: str) -> Any:
        """The value as plain Python (numpy's numbers are welcome); InputError says what is allowed."""
        if self.kind in (SWITCH, LIST) and hasattr(value, "tolist"):
            value = value.tolist()
        if value is None and self.kind == CHOICE and "none" in self.choices:
            value = "none"  # "pool_kind=none" on the command line reads as None
        if value is None and self.optional:
            return None
        if self.kind == LIST:
            checked = self._list(value)
        else:
            checked = self._one(value)
        if checked is None:
            raise InputError(f"{owner}: {self.name} is {self.allowed}, not {shown(value)}.")
        return checked

    def _one(self, value: Any) -> Any:
        """The value where it is allowed, else None."""
        if self.kind == SWITCH:
            return value if isinstance(value, bool) else None
        if self.kind == CHOICE:
            return value if isinstance(value, str) and value in self.choices else None
        if isinstance(value, bool) or not isinstance(value, Integral if self.kind == WHOLE else Real):
            return None
        # A float32 of 0.2 means 0.2, not 0.20000000298.
        number = int(value) if isinstance(value, Integral) else float(str(value))
        if not self.low <= number <= self.high:  # no comparison holds for NaN
            return None
        return number if self.kind == WHOLE else float(number)

    def _list(self, value: Any) -> list[float] | None:
        if isinstance(value, str):  # "0.5 0.3 0.2": a comma would begin the next option
            try:
                value = [float(part) for part in value.split()]
            except ValueError:
                return None
        if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_NUMBERS:
            return None
        numbers = [self._one(v) for v in value]
        return None if None in numbers else numbers

    def describe(self) -> dict[str, Any]:
        """What a person needs to know, as plain values."""
        return {
            "name": self.name,
            "default": self.default,
            "kind": self.kind,
            "allowed": self.allowed,
            "help": self.help,
        }


def _number(value: float) -> str:
    if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
        return f"{int(value):,}"
    return f"{value:g}"


def known(rows: tuple[Option, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the names that options have now."""
    now = {row.formerly: row.name for row in rows if row.formerly}
    return {now.get(name, name): value for name, value in given.items()}
