"""What every view's data has in common: named columns, rows around a place."""

from __future__ import annotations

import csv as csv_format
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvviz.results.words import finite_or_none


@dataclass(frozen=True)
class Table:
    """Base of the data behind a view.

    near  name of the column that `around` refers to (mostly the token), None = row number.
    """

    near: ClassVar[str | None] = None

    def columns(self) -> Mapping[str, Sequence[Any] | np.ndarray]:
        """Column name -> values, all of one length: the rows of "Show as table", CSV and JSON."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(next(iter(self.columns().values()), ()))

    def rows(
        self,
        limit: int | None = 200,
        around: int | None = None,
        where: Mapping[str, Any] | None = None,
        first: int | None = None,
    ) -> list[dict[str, Any]]:
        """At most `limit` rows in table order, those nearest to `around` in column `near`.

        where  {column: value} keeps only rows with these values, for example {"layer": 7}.
        first  number of the row to begin with, from 0; then `around` does not count.
        """
        columns = self.columns()
        length = len(next(iter(columns.values()), ()))
        chosen = np.arange(length)
        for name, value in (where or {}).items():
            chosen = chosen[np.asarray(columns[name])[chosen] == value]
        if first is not None:
            chosen, around = chosen[first:], None
        if limit is not None and len(chosen) > limit:
            if around is None:
                chosen = chosen[:limit]
            else:
                places = chosen if self.near is None else np.asarray(columns[self.near])[chosen]
                distance = np.abs(places.astype(np.float64) - around)
                chosen = np.sort(chosen[np.argsort(distance, kind="stable")[:limit]])
        picked = {name: _take(values, chosen) for name, values in columns.items()}
        return [dict(zip(picked, row)) for row in zip(*picked.values())]


def _take(values: Sequence[Any] | np.ndarray, chosen: np.ndarray) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [finite_or_none(v) for v in values[chosen].tolist()]
    return [finite_or_none(values[i]) for i in chosen]


# Line ends and tabs as the signs they have elsewhere: a cell stays a cell for programs that split at them.
_SIGNS = {"\r\n": "⏎", "\n": "⏎", "\r": "␍", "\t": "⇥"}
_BREAK = re.compile("\r\n|[\n\r\t]")
# A formula begins a cell, or what follows a semicolon, at which the spreadsheets of many countries split;
# blanks and what cannot be seen before it are skipped by some programs. An apostrophe already there is
# doubled, so that taking one away gives the text back.
_HIDDEN = r"[\s\x00-\x1f\x7f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
_FORMULA = rf"'*{_HIDDEN}*[=+\-@＝＋－＠]"
_BARE = re.compile(rf"(^|;)(?={_FORMULA})")
_GUARDED = re.compile(rf"(^|;)'(?={_FORMULA})")


def csv_text(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> str:
    """Columns as CSV. Where there is text it starts with a byte-order mark, by which a spreadsheet knows
    the encoding; line ends and tabs in text are written as "⏎" and "⇥", and text that a spreadsheet would run
    as a formula gets an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    lists = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    has_text = any(isinstance(value, str) for values in lists for value in values)
    for row in zip(*lists):
        writer.writerow([_cell(value) for value in row])
    return ("\ufeff" if has_text else "") + out.getvalue()


def _cell(value: Any) -> Any:
    value = finite_or_none(value)
    if isinstance(value, str):
        return _BARE.sub(r"\1'", _BREAK.sub(lambda found: _SIGNS[found[0]], value))
    return "" if value is None else value


def formula_text(cell: str) -> str:
    """A cell's text as it was before `csv_text` made it harmless to a spreadsheet."""
    return _GUARDED.sub(r"\1", cell)
