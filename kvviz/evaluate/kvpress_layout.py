"""The same results in the folders that kvpress's evaluation writes, for scripts that read those.

    OUT/kvpress/<dataset>__<model>__<method>__<share removed>[__query_aware]/predictions.csv, metrics.json,
    config.yaml
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvviz.evaluate.items import Item
from kvviz.evaluate.store import write_whole
from kvviz.results.study import read_table
from kvviz.types import QUESTION_AWARE


def write_kvpress(out: Path, items: Sequence[Item]) -> list[Path]:
    """One folder a task, model, method and budget of the table in `out`; returns them.

    metrics.json holds, for each task, the mean score in percent. Rows without an answer are left out of the
    predictions and counted in the configuration.
    """
    known = {item.id: item for item in items}
    table = read_table(out)
    folders = []
    groups = table.groupby(["task", "model", "method", "budget_name", "protocol"], sort=False)
    for (task, model, method, budget, protocol), rows in groups:
        answered = rows[rows.reason == ""]
        removed = 0.0 if method == "full" else 1 - answered.share.mean()
        if not len(answered):
            continue
        aware = ["query_aware"] if protocol == QUESTION_AWARE else []
        press = "no_press" if method == "full" else method
        parts = [task or "items", str(model).replace("/", "--"), press, f"{removed:.2f}", *aware]
        folder = out / "kvpress" / "__".join(re.sub(r"[^\w.=,-]", "-", str(part)) for part in parts)
        folder.mkdir(parents=True, exist_ok=True)
        predictions = pd.DataFrame([_prediction(known[row["item"]], row) for _, row in answered.iterrows()])
        predictions["compression_ratio"] = removed
        write_whole(folder / "predictions.csv", predictions.to_csv(index=False).encode("utf-8", "replace"))
        scores = answered.score.dropna()
        by_metric = scores.groupby(answered.metric).mean() * 100
        metrics = {task or "items": {name: round(float(v), 2) for name, v in by_metric.items()}}
        write_whole(folder / "metrics.json", json.dumps(metrics, indent=2).encode())
        config = {
            "dataset": task or "items", "data_dir": None, "model": model, "press_name": press,
            "compression_ratio": round(float(removed), 6), "query_aware": protocol == QUESTION_AWARE,
            "kept": budget, "items": len(answered), "items_without_answer": len(rows) - len(answered),
            "written_by": "kvviz",
        }  # fmt: skip
        # JSON strings and numbers are YAML as they stand.
        lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())
        write_whole(folder / "config.yaml", lines.encode())
        folders.append(folder)
    return folders


def _prediction(item: Item, row: pd.Series) -> dict[str, Any]:
    return {
        **{name: json.dumps(value) if isinstance(value, list | dict) else value
           for name, value in item.meta.items()},
        "id": item.id, "task": item.task, "question": item.question, "answer": json.dumps(list(item.answers)),
        "predicted_answer": row["answer"],
    }  # fmt: skip
