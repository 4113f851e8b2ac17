"""Writes the tables of docs/DEPLOY.md: GPUs, models with the memory they need, settings. Run after a change:
`python docs/make_deploy.py`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvviz.hardware import Room
from kvviz.models.catalog import CATALOG, LENGTHS, chosen_first
from kvviz.settings import ROWS, settings

PATH = ROOT / "docs" / "DEPLOY.md"


# The Hub's GPUs: name, gigabytes of GPU memory, dollars an hour, whether they compute in bfloat16.
HARDWARE = (
    ("T4 small", 16, "0.40", False),
    ("L4", 24, "0.80", True),
    ("A10G small", 24, "1.00", True),
    ("L40S", 48, "1.80", True),
    ("A100 large", 80, "2.50", True),
    ("4x A10G large", 96, "5.00", True),
    ("4x L40S", 192, "8.30", True),
    ("4x A100", 320, "10.00", True),
)


def hardware_rows() -> list[str]:
    """A row a GPU, with the model that a public page starts with there."""
    limits = settings({"KVVIZ_PUBLIC": "1"})
    first = [chosen_first(limits, Room(True, gb * 10**9, half)).id for _, gb, _, half in HARDWARE]
    return [
        f"| {name} | {gb} GB | ${price} | `{id}` |" for (name, gb, price, _), id in zip(HARDWARE, first)
    ]


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
    """The text with its tables as they are now."""
    tables = {"hardware": hardware_rows(), "models": model_rows(), "settings": setting_rows()}
    for name, rows in tables.items():
        place = re.compile(rf"(<!-- {name} -->\n(?:.*\n){{2}})(?:\|.*\n)*(?=<!-- end of {name} -->)")
        text = place.sub(lambda found, rows=rows: found[1] + "".join(f"{row}\n" for row in rows), text)
    return text


if __name__ == "__main__":
    PATH.write_text(with_tables(PATH.read_text(encoding="utf-8")), encoding="utf-8")
