"""What every view's data has in common: named columns, rows around a place."""

from __future__ import annotations

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
    ) -> list[dict[str, Any]]:
        """At most `limit` rows in table order, those nearest to `around` in column `near`.

        where  {column: value} keeps only rows with these values, for example {"layer": 7}.
        """
        columns = self.columns()
        length = len(next(iter(columns.values()), ()))
        chosen = np.arange(length)
        for name, value in (where or {}).items():
            chosen = chosen[np.asarray(columns[name])[chosen] == value]
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
