"""The same work on a Ray cluster: an actor a worker; cells come back one by one to whoever asked.

Needs `pip install ray`, and kvviz on every node; no folder has to be shared. RAY_ADDRESS names a cluster;
without it the actors run on this machine.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvviz.errors import InputError, KvvizError
from kvviz.evaluate.cells import Measured, Study
from kvviz.evaluate.workers import Bench, Job, Unloaded, again

STORE = 200 * 2**20  # bytes of Ray's own memory on this machine: cells are small


class Actor:
    """A worker: what `workers._serve` is on this machine."""

    def __init__(self, study: Study, device: str, threads: int):
        self.bench = Bench(study, device, threads)

    def work(self, job: Job) -> Iterator[Measured | Unloaded]:
        try:
            yield from self.bench.work(job)
        except KvvizError as error:
            yield Unloaded(job.model, str(error))


def work_on_ray(
    jobs: Sequence[Job], study: Study, workers: int, device: str, threads: int, cancel: threading.Event
) -> Iterator[Measured | Unloaded]:
    """The jobs on `workers` actors of `threads` CPUs each; what is left of a job whose actor died goes to a
    new one."""
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install ray, or use --engine local.") from None
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here = {"num_cpus": workers * threads, "object_store_memory": STORE}
        where: dict[str, Any] = {} if os.environ.get("RAY_ADDRESS") else here
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **where)
    try:
        yield from _spread(ray, jobs, study, workers, device, threads, cancel)
    finally:
        if started:
            ray.shutdown()


def _spread(
    ray: Any, jobs: Sequence[Job], study: Study, workers: int, device: str, threads: int,
    cancel: threading.Event,
) -> Iterator[Measured | Unloaded]:  # fmt: skip
    gpus = 1 if ray.cluster_resources().get("GPU") and device != "cpu" else 0
    actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(Actor)
    waiting, tries, failed = deque(jobs), Counter[str](), set[str]()
    idle = [actor.remote(study, device, threads) for _ in range(min(workers, len(jobs)))]
    at_work: dict[Any, tuple[Any, Job]] = {}  # the cells still to come -> (actor, what is left of its job)
    while (at_work or waiting) and not cancel.is_set():
        while waiting and idle:
            job = waiting.popleft()
            if job.model not in failed:
                worker = idle.pop()
                at_work[worker.work.options(num_returns="streaming").remote(job)] = worker, job
        ready, _ = ray.wait(list(at_work), timeout=0.5) if at_work else ([], [])
        for cells in ready:
            worker, job = at_work.pop(cells)
            try:
                came = ray.get(next(cells))
            except StopIteration:
                idle.append(worker)
                continue
            except ray.exceptions.RayActorError:
                rest, lost = again(job, study, tries, "its process or node was lost")
                waiting.extendleft(rest)
                idle.append(actor.remote(study, device, threads))
                yield from lost
                continue
            at_work[cells] = worker, job.after(1)
            if not isinstance(came, Unloaded):
                yield came
            elif came.model not in failed:
                failed.add(came.model)
                yield came
