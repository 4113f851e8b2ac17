"""What a budget and a method are called: read once where they come in, compared as values from there on."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from kvviz.errors import InputError

BUDGET_WORDS = (
    "A budget is a share above 0 and up to 1 (0.2 or 20%), or a whole number of tokens per KV head from 1 up"
)
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LONGEST = 40  # characters of a bad value that a sentence repeats


def shown(value: Any) -> str:
    """A bad value as a sentence repeats it: short, on one line, a backslash as the one that was written."""
    text = repr(value)
    if isinstance(value, str):
        said = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in value[:_LONGEST])
        text = f"'{''.join(said)}'"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


_MODEL_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:[/?#].*)?", re.IGNORECASE
)


def model_name(name: str) -> str:
    """The name of a model as it is meant: without blanks and quotes around it; the hub id of its page."""
    name = name.strip().strip("\"'`").strip()
    page = _MODEL_PAGE.fullmatch(name)
    return page[1] if page else name


@dataclass(frozen=True)
class Budget:
    """How much of the cache is kept: `entries` per KV head, or a `share` of n. One of the two is None.

    One token (`1`) and everything (`1.0`) are different budgets.
    """

    entries: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, value: Any) -> Budget:
        """From a whole number (tokens per KV head), a number in (0, 1] (a share), or either as text:
        "128", "128 tokens", "128t", "0.2", "20%". Numbers of numpy are welcome. InputError otherwise."""
        if isinstance(value, cls):
            return value
        if type(value) is float and 0 < value <= 1:  # the usual ones at once: a page asks for thousands
            return cls(None, value)
        if type(value) is int and value >= 1:
            return cls(value)
        if isinstance(value, str):
            return cls._read(value)
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return cls._checked(int(value), None, value)
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            # A float32 of 0.2 means 0.2, not 0.20000000298.
            exact = isinstance(value, float | numbers.Rational)
            return cls._checked(None, float(value) if exact else float(str(value)), value)
        raise InputError(f"{BUDGET_WORDS}, not {shown(value)}.")

    @classmethod
    def _read(cls, text: str) -> Budget:
        plain = text.strip()
        if whole := re.fullmatch(r"([+-]?\d+)\s*(?:t|tokens?)?", plain, re.ASCII | re.IGNORECASE):
            digits = whole[1]
            return cls._checked(int(digits) if len(digits) < 20 else 0, None, text)
        if found := re.fullmatch(rf"({_NUMBER})\s*(%?)", plain, re.ASCII):
            number = float(found[1])
            if found[2] and math.isfinite(number):
                number = float(Decimal(found[1]).scaleb(-2))  # 0.7% is 0.007, where 0.7 / 100 is not
            return cls._checked(None, number, text)
        raise InputError(f"{BUDGET_WORDS}, not {shown(text)}.")

    @classmethod
    def _checked(cls, entries: int | None, share: float | None, given: Any) -> Budget:
        if share is not None:
            right = math.isfinite(share) and 0 < share <= 1
        else:
            right = entries is not None and entries >= 1
        if not right:
            raise InputError(f"{BUDGET_WORDS}, not {shown(given)}.")
        return cls(entries, share)

    @property
    def value(self) -> int | float:
        """The number as the public API has it: an int counts entries, a float is a share."""
        given = self.share if self.entries is None else self.entries
        assert given is not None
        return given

    def of(self, n: int) -> int:
        """b, entries per KV head among n tokens. Exact: 0.29 of 100 is 29. From 1 to n."""
        if self.entries is not None:
            return min(self.entries, n)
        return max(1, min(n, math.floor(Fraction(str(self.share)) * n)))

    def share_of(self, n: int) -> float:
        """The share of n tokens that this budget is, at most 1."""
        return self.value if self.entries is None else min(1.0, self.entries / n)

    def __str__(self) -> str:
        """ "20%", "0.5%", "128 tokens": what `parse` reads back."""
        if self.entries is not None:
            return f"{self.entries} token" + "s" * (self.entries != 1)
        percent = f"{Decimal(str(self.share)).scaleb(2):f}"
        return (percent.rstrip("0").rstrip(".") if "." in percent else percent) + "%"


def parse_budgets(given: Any) -> tuple[Budget, ...]:
    """One budget or several ("0.5, 20%" is two), in their order. InputError where one is bad or stands
    there twice."""
    if isinstance(given, str):
        given = filter(None, (part.strip() for part in given.split(",")))
    elif not isinstance(given, Iterable):
        given = [given]
    budgets = tuple(map(Budget.parse, given))
    for index, budget in enumerate(budgets):
        if budget in budgets[:index]:
            raise InputError(f"The budget {budget} is chosen twice. Choose each budget once.")
    return budgets


@dataclass(frozen=True)
class MethodRef:
    """A method with the options it was given by name; equal where method and options are the same.

    options  ((name, value), ...), sorted by name.
    made     "edit1" for a kept set that was changed by hand, "control0" for a control, "mix1" for a mix of
             stored numbers (`kvviz.results.mix`), else ""; "edit1+edit2" in runs that were saved with an edit
             of an edited set.
    """

    id: str
    options: tuple[tuple[str, Any], ...] = ()
    made: str = ""

    @classmethod
    def parse(cls, name: Any) -> MethodRef:
        """From "snapkv", "snapkv:window=16,allocation=global", "snapkv:window=16+edit1"."""
        if isinstance(name, cls):
            return name
        if not isinstance(name, str):
            raise InputError(
                f'A method is named by its id, such as "snapkv" or "snapkv:window=16", not {shown(name)}.'
            )
        made = re.search(r"(\+(edit\d*|control\d+|mix\d+))+\Z", name)
        given = name[: made.start()] if made else name
        method_id, _, text = given.partition(":")
        options: dict[str, Any] = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            key, equals, value = (side.strip() for side in part.partition("="))
            if not equals or not key:
                raise InputError(f"Write options as name=value: {shown(part)} in {shown(name)} is not.")
            if key in options:
                raise InputError(f"{shown(name)} gives {key} twice. Give each option once.")
            options[key] = option_value(value)
        return cls(method_id.strip(), tuple(sorted(options.items())), made[0][1:] if made else "")

    @property
    def given(self) -> dict[str, Any]:
        """The options it was given."""
        return dict(self.options)

    @property
    def base(self) -> MethodRef:
        """The method whose kept set was changed by hand; itself where nothing was."""
        return self.changed("")

    def changed(self, made: str) -> MethodRef:
        """A kept set of this method that was changed by hand, or changed once more: "snapkv+edit2"."""
        return replace(self, made=made)

    @property
    def options_words(self) -> str:
        """ "allocation=global, window=16"; "" without options."""
        return ", ".join(f"{name}={option_text(value)}" for name, value in self.options)

    def __str__(self) -> str:
        """What `parse` reads back."""
        options = ",".join(f"{name}={option_text(value)}" for name, value in self.options)
        return self.id + (f":{options}" if options else "") + (f"+{self.made}" if self.made else "")


_WORDS = {"true": True, "false": False, "none": None}


def option_value(text: str) -> Any:
    """ "16" -> 16, "0.5" -> 0.5, "true" -> True, "none" -> None, anything else stays text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def option_text(value: Any) -> str:
    """The other way round."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def split_methods(text: str) -> list[str]:
    """ "a:x=1,y=2,b" -> ["a:x=1,y=2", "b"]: a part with "=" and no ":" belongs to the method before it."""
    names: list[str] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        if names and "=" in part and ":" not in part:
            names[-1] += f",{part}"
        else:
            names.append(part)
    return names
