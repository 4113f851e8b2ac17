"""Many documents, many models: every method at every budget, as cells that are kept one by one.

A cell that is on disk is never measured again, whoever killed the run that made it, and the same command
gives the same table on one worker or several.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from kvviz.errors import InputError
from kvviz.evaluate.cells import Measured, Study, cell_key, digest, failed_rows, shown
from kvviz.evaluate.items import Item
from kvviz.evaluate.store import Store, write_whole
from kvviz.evaluate.workers import Bench, Job, Unloaded, work_here, work_on_processes
from kvviz.hardware import cpu_threads
from kvviz.results.study import table_files
from kvviz.types import QUESTION_AGNOSTIC

Say = Callable[[int, int, float | None], None]


@dataclass
class Outcome:
    """What a sweep left behind: cells that are there, how many of them failed, and models never loaded.

    reasons  why rows of the table have no answer -> how many.
    """

    out: Path
    cells: int = 0
    of: int = 0
    failed: int = 0
    unloaded: dict[str, str] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def run_sweep(
    models: Sequence[str],
    items: Sequence[Item],
    study: Study,
    out: Path,
    *,
    workers: int = 1,
    engine: str = "local",
    shard: tuple[int, int] = (1, 1),
    device: str = "auto",
    threads: int = 0,
    retry: bool = False,
    bench: Bench | None = None,
    command: Sequence[str] = (),
    say: Say = lambda done, total, left: None,
    cancel: threading.Event | None = None,
) -> Outcome:
    """Measure what is missing in the folder `out`, then write its table, predictions and manifest.

    engine   where workers are: "local" processes, or "ray" for a cluster (`on_ray`).
    shard    (3, 16) does the third of sixteen parts; all parts may share one folder.
    threads  of torch in each worker; 0: the machine's cores shared out.
    retry    measure again what failed before.
    bench    works here, where there is one worker: its model may be loaded already.
    say      say(cells done, cells in all, seconds left or None) after every cell.
    """
    _check_told_apart(models)
    store = Store(out)
    jobs = all_jobs(models, items, study)
    mine = jobs[shard[0] - 1 :: shard[1]]
    todo = [j for j in (_undone(job, study, store, retry) for job in mine) if j.items]
    total = sum(len(job.items) for job in mine)
    left = sum(len(job.items) for job in todo)
    there = total - left
    manifest = _manifest(models, items, study, command)
    store.put_json("manifest.json", manifest)
    say(there, total, None)
    unloaded: dict[str, str] = {}
    started, done = time.monotonic(), 0
    cancel = cancel or threading.Event()
    for came in _work(engine, todo, study, workers, device, threads, bench, cancel):
        if isinstance(came, Unloaded):
            unloaded[came.model] = came.reason
            left -= sum(len(job.items) for job in todo if job.model == came.model)
            continue
        store.put(came)
        done += 1
        seconds = (time.monotonic() - started) / done * (left - done)
        say(there + done, total, seconds)
    return collect(jobs, study, store, manifest, unloaded)


@dataclass(frozen=True)
class Ahead:
    """What a sweep has before it.

    readings    texts to be read, `characters` long together.
    seconds     of one worker, by the cells that are there; None where there are none of a model to go by.
    """

    cells: int
    there: int
    readings: int
    characters: int
    seconds: float | None


def ahead(
    models: Sequence[str], items: Sequence[Item], study: Study, out: Path,
    shard: tuple[int, int] = (1, 1), retry: bool = False,
) -> Ahead:  # fmt: skip
    """What `run_sweep` would do of these arguments. Loads and writes nothing."""
    store = Store(out)
    jobs = all_jobs(models, items, study)[shard[0] - 1 :: shard[1]]
    todo = [j for j in (_undone(job, study, store, retry) for job in jobs) if j.items]
    cells = sum(len(job.items) for job in jobs)
    shared = study.protocol == QUESTION_AGNOSTIC
    read = [item.document for job in todo for item in (job.items[:1] if shared else job.items)]
    seconds: float | None = 0.0
    for model in {job.model for job in todo}:
        known = [item for job in jobs if job.model == model for item in job.items]
        found = (store.get(cell_key(model, item, study)) for item in known)
        took = [cell["seconds"] for cell in found if cell is not None]
        missing = sum(len(job.items) for job in todo if job.model == model)
        seconds = None if seconds is None or not took else seconds + missing * sum(took) / len(took)
    left = sum(len(job.items) for job in todo)
    return Ahead(cells, cells - left, len(read), sum(map(len, read)), seconds)


def _check_told_apart(models: Sequence[str]) -> None:
    """A file's name stands in the table without its place: two of one name would be one model there."""
    names = [shown(model) for model in models]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"Two models would be called {twice} in the table. Rename one, or give each a table of its own."
        )


def all_jobs(models: Sequence[str], items: Sequence[Item], study: Study) -> list[Job]:
    """Models outermost; items that share a document go together where they can share its reading."""
    share = study.protocol == QUESTION_AGNOSTIC
    groups = [
        tuple(group)
        for _, group in groupby(enumerate(items), lambda pair: pair[1].document if share else pair[0])
    ]
    return [Job(model, tuple(item for _, item in group)) for model in models for group in groups]


def _undone(job: Job, study: Study, store: Store, retry: bool) -> Job:
    def done(item: Item) -> bool:
        cell = store.get(cell_key(job.model, item, study))
        return cell is not None and not (retry and any(row["reason"] for row in cell["rows"]))

    return replace(job, items=tuple(item for item in job.items if not done(item)))


def _work(
    engine: str, jobs: Sequence[Job], study: Study, workers: int, device: str, threads: int,
    bench: Bench | None, cancel: threading.Event,
) -> Iterator[Measured | Unloaded]:  # fmt: skip
    if not jobs:
        return iter(())
    if not threads and (workers > 1 or engine == "ray"):
        threads = max(1, cpu_threads() // workers)
    if engine == "ray":
        from kvviz.evaluate.on_ray import work_on_ray

        return work_on_ray(jobs, study, workers, device, threads, cancel)
    if workers > 1:
        return work_on_processes(jobs, study, workers, device, threads, cancel)
    return work_here(jobs, bench or Bench(study, device, threads), cancel)


def collect(
    jobs: Sequence[Job], study: Study, store: Store, manifest: dict[str, Any], unloaded: dict[str, str]
) -> Outcome:
    """The table of all cells that are there, in the order of the command, whoever measured them when."""
    outcome = Outcome(store.out, unloaded=unloaded)
    rows: list[dict[str, Any]] = []
    predictions: list[dict[str, Any]] = []
    abouts: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        for item in job.items:
            outcome.of += 1
            cell = store.get(cell_key(job.model, item, study))
            if cell is None:
                if job.model in unloaded:
                    rows += failed_rows(job.model, item, study, unloaded[job.model])
                continue
            outcome.cells += 1
            outcome.failed += all(row["reason"] for row in cell["rows"])
            rows += cell["rows"]
            predictions += [_prediction(item, row) for row in cell["rows"]]
            seen = abouts.setdefault(job.model, [])
            if cell["about"] and cell["about"] not in seen:
                seen.append(cell["about"])
    outcome.reasons = Counter(row["reason"] for row in rows if row["reason"])
    if others := store.count() - outcome.cells:
        outcome.notes.append(
            f"{others:,} cells in this folder are of other items, models or settings and not in this table: "
            "the command that measured them brings them back."
        )
    for model, seen in abouts.items():
        if len({about["weights"] for about in seen}) > 1:
            outcome.notes.append(f"{model} was measured with different weights: do not compare these rows.")
    if rows:
        for name, data in table_files(rows).items():
            write_whole(store.out / name, data)
        store.put_lines("predictions.jsonl", predictions)
    store.put_json("manifest.json", {**manifest, "measured_with": abouts, "notes": outcome.notes})
    return outcome


def _prediction(item: Item, row: dict[str, Any]) -> dict[str, Any]:
    names = ("model", "item", "task", "protocol", "method", "budget", "budget_name")
    said = {name: row.get(name) for name in (*names, "answer", "verdict", "score", "reason")}
    return {**said, "question": item.question, "answers": list(item.answers)}


def _manifest(
    models: Sequence[str], items: Sequence[Item], study: Study, command: Sequence[str]
) -> dict[str, Any]:
    return {
        "command": list(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "models": list(models),
        "items": len(items),
        "items_hash": digest([item.to_dict() for item in items]),
        "settings": study.to_dict(),
        "seed": study.ask.seed,
    }


def parse_shard(text: str) -> tuple[int, int]:
    """ "3/16" -> (3, 16)."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError(f"A shard is one part of several, such as 3/16, not {text!r}.")
    return int(number), int(count)
