"""A made-up table of a sweep: many items, two protocols, needles at depths, items that are set apart."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np

from kvviz.results.study import COLUMNS, table_files

METHODS = {"snapkv": ("SnapKV", 0.45), "criticalkv": ("CriticalKV", 0.8), "keydiff": ("KeyDiff", 0.6)}
BUDGETS = (0.5, 0.2, 0.05)
DEPTHS = (0.1, 0.5, 0.9)
WRONG, KNEW = (0, 1), (2,)


def sweep_rows(n: int = 24, protocols=("question-aware",), seed: int = 0) -> list[dict]:
    """Rows as `kvviz sweep` writes them; the full cache is wrong on WRONG, KNEW needs no document."""
    rng = np.random.default_rng(seed)
    rows = []
    for protocol in protocols:
        for i in range(n):
            hard = rng.uniform()
            base = dict.fromkeys(COLUMNS) | {
                "model": "tiny", "protocol": protocol, "item": f"item-{i}", "document": f"doc{i // 2}",
                "task": ("needle", "documents")[i % 2], "length": (500, 1000)[i // 3 % 2],
                "depth": DEPTHS[i % 3], "n": 510 if i // 3 % 2 == 0 else 1015, "metric": "contains",
                "reason": "", "empty": False, "knew": "without the document" if i in KNEW else "",
            }  # fmt: skip
            full = i not in WRONG
            rows.append(base | _answer(full, 1.0, "100%", "full", "Full cache", 0.0, 1.0))
            for method, (label, keeps) in METHODS.items():
                for budget in BUDGETS:
                    right = full and hard < keeps + 0.5 * budget
                    kl = float(np.exp(rng.normal(-1, 0.7)) * (1.4 - keeps) / (budget + 0.1))
                    rows.append(base | _answer(right, budget, f"{budget:.0%}", method, label, kl, budget))
    return rows


def _answer(right, budget, name, method, label, kl, share) -> dict:
    return {
        "method": method, "label": label, "budget": budget, "budget_name": name, "share": share, "kl": kl,
        "verdict": "right" if right else "wrong", "score": float(right), "output_error": kl / 10,
        "answer": "The code is 58213." if right else "=1947 <b>no</b>",
    }  # fmt: skip


def sweep_folder(folder: Path, run: bytes | None = None, **how) -> Path:
    """A folder as `kvviz sweep` leaves it; `run` is the saved comparison of item-3."""
    rows = sweep_rows(**how)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in table_files(rows).items():
        (folder / name).write_bytes(data)
    (folder / "manifest.json").write_text(json.dumps({"title": "A made-up sweep", "date": "2026-12-02"}))
    items = dict.fromkeys(row["item"] for row in rows)
    lines = [
        {"id": item, "document": f"The text of {item}.", "question": "What is the code?",
         "answers": ["58213"]}
        for item in items
    ]  # fmt: skip
    (folder / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("cells", "runs"):
        (folder / name).mkdir(exist_ok=True)
    if run is not None:
        first = next(row for row in rows if row["item"] == "item-3")
        (folder / "cells" / "abc.json").write_text(json.dumps({"key": "abc", "rows": [first]}))
        (folder / "runs" / "abc.zip").write_bytes(run)
    return folder


def zipped(folder: Path) -> bytes:
    """The folder as a zip of that folder."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, Path(folder.name) / path.relative_to(folder))
    return out.getvalue()
