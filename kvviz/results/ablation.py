"""Formula or setting? Answers of every method with every window and pooling, as plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.brief import brief

if TYPE_CHECKING:
    import pandas as pd

AXES = ("method", "window", "pooling")


@dataclass(frozen=True)
class AblationRow:
    """One answer: pool_kind "avg", "max" or "none"; verdict "" where none is expected; KL in nats a step."""

    method: str
    window: int
    pool_kind: str
    pool: int
    budget: float | int
    verdict: str
    mean_kl: float | None
    text: str

    @property
    def pooling(self) -> str:
        """ "avg7", "max11", "none"."""
        return self.pool_kind if self.pool_kind == "none" else f"{self.pool_kind}{self.pool}"


@dataclass(frozen=True)
class Ablation:
    """All rows, with the full cache's text and verdict beside them."""

    rows: Sequence[AblationRow]
    full_text: str
    full_verdict: str

    __repr__ = brief

    def spread(self) -> dict[str, float]:
        """How much mean KL moves when one thing alone changes: {"method", "window", "pooling"}: nats a step.

        The mean, over all combinations of the others, of the range between its values.
        """
        out = {}
        for axis in AXES:
            groups: dict[tuple, list[float]] = {}
            for row in self.rows:
                others = (row.budget, *(getattr(row, a) for a in AXES if a != axis))
                groups.setdefault(others, []).append(np.nan if row.mean_kl is None else row.mean_kl)
            out[axis] = float(np.mean([max(kl) - min(kl) for kl in groups.values()]))
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "full_text": self.full_text,
            "full_verdict": self.full_verdict,
        }

    def to_frame(self) -> pd.DataFrame:
        """One row an answer, the full cache's first."""
        import pandas as pd

        full = {"method": "full", "budget": 1.0, "verdict": self.full_verdict, "text": self.full_text}
        return pd.DataFrame([full, *(asdict(row) for row in self.rows)])
