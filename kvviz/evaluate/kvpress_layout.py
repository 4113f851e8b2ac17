"""The same results in the folders that kvpress's evaluation writes, for scripts that read those.

    OUT/kvpress/<dataset>[__<data_dir>]__<model>__<press>__<share removed>[__query_aware]/
        predictions.csv, metrics.json, config.yaml

As there: RULER's tasks of one length are one folder ("ruler", the length as data_dir) with a string_match a
task, a LongBench task is a folder ("longbench", the task as data_dir) with one number, of LongBench-E with
one a range of lengths; config.yaml holds all of its fields (0.5.5) and no others. Methods that it has stand
under the names of its presses, so that it reads such a configuration back; what it does not have keeps its
own name, as other tasks do. Texts in predictions.csv are as they are, for programs: unlike the tables of
kvviz it is not made safe for a spreadsheet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvviz.evaluate.items import Item
from kvviz.evaluate.metrics import LONGBENCH, RULER
from kvviz.evaluate.store import write_whole
from kvviz.results.comparison import FULL
from kvviz.results.study import read_table
from kvviz.types import QUESTION_AWARE

# Methods whose name there is another one. Its "expected_attention" lets heads compete: a preset here.
PRESSES = {
    FULL: "no_press",
    "adakv": "adakv_snapkv",
    "criticalkv": "critical_snapkv",
    "critical_adakv": "critical_adakv_snapkv",
    "expected_attention": "expected_attention_uniform",
    "expected_attention:preset=kvpress": "expected_attention",
}


def write_kvpress(out: Path, items: Sequence[Item], seed: int = 0) -> list[Path]:
    """One folder a dataset, model, method and budget of the table in `out`; returns them.

    Rows without an answer are left out of the predictions; a first line of config.yaml counts them.
    """
    known = {item.id: item for item in items}
    table = read_table(out)
    places = [_dataset(task, length) for task, length in zip(table.task, table.length.astype(object))]
    table = table.assign(dataset=[d for d, _ in places], data_dir=[d for _, d in places])
    folders: list[Path] = []
    groups = table.groupby(
        ["dataset", "data_dir", "model", "method", "budget_name", "protocol"], sort=False
    )
    for (dataset, data_dir, model, method, _, protocol), rows in groups:
        answered = rows[rows.reason == ""]
        if not len(answered):
            continue
        removed = 0.0 if method == FULL else float(1 - answered.share.mean())
        config = {
            "dataset": dataset, "data_dir": data_dir or None, "model": str(model), "device": None,
            "press_name": PRESSES.get(str(method), method),
            "compression_ratio": round(removed, 6), "key_channel_compression_ratio": None, "fraction": 1.0,
            "max_new_tokens": None, "max_context_length": None, "query_aware": protocol == QUESTION_AWARE,
            "needle_depth": None, "compression_interval": None, "target_size": None,
            "hidden_states_buffer_size": None, "output_dir": "./results", "log_level": "INFO",
            "model_kwargs": {}, "press_init_command": method, "seed": seed, "fp8": False,
        }  # fmt: skip
        parts = [dataset, data_dir, str(model).replace("/", "--"), config["press_name"], f"{removed:.2f}"]
        parts += ["query_aware"] if config["query_aware"] else []
        name = "__".join(re.sub(r"[^\w.=,-]", "-", str(part)) for part in parts if part)
        folder = place = out / "kvpress" / name
        while folder in folders:  # a budget that reads the same in two digits: numbered within, as there
            folder = place / str(sum(place in f.parents for f in folders) + 1)
        folder.mkdir(parents=True, exist_ok=True)
        column = "answers" if str(dataset).startswith("longbench") else "answer"
        said = [_prediction(known[row["item"]], row, column) for _, row in answered.iterrows()]
        predictions = pd.DataFrame(said)
        predictions["compression_ratio"] = removed
        write_whole(folder / "predictions.csv", predictions.to_csv(index=False).encode("utf-8", "replace"))
        metrics = _metrics(str(dataset), answered, known)
        write_whole(folder / "metrics.json", json.dumps(metrics, indent=4).encode())
        # JSON strings and numbers are YAML as they stand.
        lines = f"# of kvviz: {len(answered)} items, {len(rows) - len(answered)} without an answer\n"
        lines += "".join(f"{field}: {json.dumps(value)}\n" for field, value in config.items())
        write_whole(folder / "config.yaml", lines.encode())
        folders.append(folder)
    return folders


def _dataset(task: str, length: Any) -> tuple[str, str]:
    """(dataset, data_dir) of a row."""
    if task in RULER or task == "qa":
        return "ruler", "" if pd.isna(length) else str(int(length))
    if task.removesuffix("_e") in LONGBENCH:
        return "longbench-e" if task.endswith("_e") else "longbench", task
    return task or "items", ""


def _metrics(dataset: str, answered: pd.DataFrame, known: dict[str, Item]) -> Any:
    """Mean scores in percent, as that evaluation's scorer of the dataset gives them."""
    scores = answered.dropna(subset="score")
    if dataset == "longbench":
        return _percent(scores)
    if dataset == "longbench-e":  # `length` is the file's own, in words
        words = pd.to_numeric(scores["item"].map(lambda item: known[item].meta.get("length")))
        ranges = {"0-4k": words < 4000, "4-8k": words.between(4000, 7999), "8k+": words >= 8000}
        return {name: _percent(scores[inside]) for name, inside in ranges.items()}
    names = ["string_match"] * len(scores) if dataset == "ruler" else list(scores.metric)
    found: dict[str, dict[str, float | None]] = {}
    for (task, metric), rows in scores.assign(metric=names).groupby(["task", "metric"], sort=False):
        found.setdefault(str(task) or "items", {})[str(metric)] = _percent(rows)
    return found


def _percent(scores: pd.DataFrame) -> float | None:
    return round(float(scores.score.mean()) * 100, 2) if len(scores) else None


def _prediction(item: Item, row: pd.Series, answers: str) -> dict[str, Any]:
    return {
        **{name: json.dumps(value) if isinstance(value, list | dict) else value
           for name, value in item.meta.items() if name != "cue"},
        "id": item.id, "task": item.task.removesuffix("_e"), "question": item.question,
        answers: json.dumps(list(item.answers)), "answer_prefix": item.cue, "predicted_answer": row["answer"],
    }  # fmt: skip
