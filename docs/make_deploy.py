"""Writes the tables of docs/DEPLOY.md: models with the memory they need, settings. Run after changing either:
`python docs/make_deploy.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvviz.models.catalog import CATALOG, LENGTHS
from kvviz.settings import ROWS

PATH = ROOT / "docs" / "DEPLOY.md"


def model_rows() -> list[str]:
    """A row a model: gigabytes in 16 bits."""
    rows = []
    for row in CATALOG:
        needs = [
            f"{row.needed(min(n, row.context), 'bfloat16') / 1e9:.0f}" if n <= max(row.context, 8192) else "–"
            for n in LENGTHS
        ]
        weights = f"{row.memory('bfloat16') / 1e9:.1f}"
        rows.append([f"`{row.id}`", weights, *needs, "yes" if row.gated else ""])
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def setting_rows() -> list[str]:
    """A row a variable."""
    rows = []
    for row in ROWS:
        lower = "" if row.public_default is None else f" / {_shown(row.public_default)}"
        rows.append(f"| `{row.variable}` | {_shown(row.default)}{lower} | {row.help} |")
    return rows


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "–"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value // 2**20:,}M"
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_tables(text: str) -> str:
    """The text with both tables as they are now."""
    for name, rows in (("models", model_rows()), ("settings", setting_rows())):
        place = re.compile(rf"(<!-- {name} -->\n(?:.*\n){{2}})(?:\|.*\n)*(?=<!-- end of {name} -->)")
        text = place.sub(lambda found, rows=rows: found[1] + "".join(f"{row}\n" for row in rows), text)
    return text


if __name__ == "__main__":
    PATH.write_text(with_tables(PATH.read_text(encoding="utf-8")), encoding="utf-8")
