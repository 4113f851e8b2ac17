"""Work on several processes of this machine, one model each. A worker that dies costs nothing but time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from kvviz.errors import Cancelled, KvvizError
from kvviz.evaluate.cells import Measured, Study, cell_key, failed_rows, measure
from kvviz.evaluate.items import Item

if TYPE_CHECKING:  # torch is loaded where work is done
    from kvviz.models import Model
    from kvviz.models.load import Progress

_TRIES = 2  # a cell that kills its worker this often is a failure


@dataclass(frozen=True)
class Job:
    """Items that share a document, for one model: they are measured one after the other."""

    model: str
    items: tuple[Item, ...]

    def after(self, done: int) -> Job:
        """The same without its first items."""
        return Job(self.model, self.items[done:])


@dataclass(frozen=True)
class Unloaded:
    """A model that could not be loaded, and why."""

    model: str
    reason: str


class Bench:
    """What a worker holds: one model at a time."""

    def __init__(self, study: Study, device: str = "auto", threads: int = 0):
        self.study, self.device, self.threads = study, device, threads
        self.name = ""
        self.model: Model | None = None

    def load(self, name: str, progress: Progress | None = None) -> Model:
        """The model of this name, which takes the place of the last. KvvizError where it cannot be loaded."""
        from kvviz.models import load_model

        if self.model is None or self.name != name:
            self.name, self.model = "", None  # the memory of one model must do
            self.model = load_model(name, dtype=self.study.dtype, device=self.device, progress=progress)
            self.name = name
        return self.model

    def work(self, job: Job, cancel: threading.Event | None = None) -> Iterator[Measured]:
        """The cells of a job. KvvizError where its model or an own method cannot be loaded.

        cancel  stops within a cell, which is not handed out then: raises Cancelled.
        """
        import torch

        from kvviz.methods.own import bring

        bring(self.study.own)
        model = self.load(job.model)
        if self.threads:
            torch.set_num_threads(self.threads)
        yield from measure(model, job.model, job.items, self.study, cancel)


def again(job: Job, study: Study, tries: Counter, death: str) -> tuple[list[Job], list[Measured]]:
    """What to do with a job whose worker died: (what is left of it, cells of items given up).

    An item that took its worker with it a second time is a failure; `tries` counts.
    """
    if not job.items:
        return [], []
    item = job.items[0]
    key = cell_key(job.model, item, study)
    tries[key] += 1
    if tries[key] < _TRIES:
        return [job], []
    reason = f"The worker process died on this item {_TRIES} times ({death})."
    rows = failed_rows(job.model, item, study, reason)
    lost = Measured({"key": key, "seconds": 0.0, "about": {}, "rows": rows})
    return [rest] if (rest := job.after(1)).items else [], [lost]


def work_here(jobs: Sequence[Job], bench: Bench, cancel: threading.Event) -> Iterator[Measured | Unloaded]:
    """The jobs one by one in this process."""
    failed: set[str] = set()
    for job in jobs:
        if job.model in failed:
            continue
        try:
            for cell in bench.work(job, cancel):
                yield cell
                if cancel.is_set():
                    return
        except Cancelled:
            return
        except KvvizError as error:  # of loading: whatever is wrong with an item is a row of its cell
            failed.add(job.model)
            yield Unloaded(job.model, str(error))


def work_on_processes(
    jobs: Sequence[Job], study: Study, workers: int, device: str, threads: int, cancel: threading.Event
) -> Iterator[Measured | Unloaded]:
    """The jobs on worker processes; cells come back as they are finished."""
    waiting, tries, failed = deque(jobs), Counter[str](), set[str]()
    context = multiprocessing.get_context("spawn")
    desks: dict[Connection, _Desk] = {}
    for number in range(min(workers, len(jobs))):
        desk = _Desk(context, study, _device(device, number), threads)
        desks[desk.pipe] = desk
    try:
        while any(desk.job for desk in desks.values()) or (waiting and not cancel.is_set()):
            for desk in desks.values():
                while desk.job is None and waiting and not cancel.is_set():
                    following = waiting.popleft()
                    if following.model not in failed:
                        desk.give(following)
            ready = wait([d.pipe for d in desks.values() if d.job], timeout=0.5)
            for pipe, desk in list(desks.items()):
                job = desk.job
                if job is None or pipe not in ready:
                    continue
                try:
                    said = pipe.recv()
                except (EOFError, OSError):
                    code = desk.end()
                    del desks[pipe]
                    rest, lost = again(job, study, tries, _death(code))
                    yield from lost
                    waiting.extendleft(rest)
                    fresh = _Desk(context, study, desk.device, threads)
                    desks[fresh.pipe] = fresh
                    continue
                if said is None:
                    desk.job = None
                elif isinstance(said, Unloaded):
                    desk.job = None
                    if said.model not in failed:
                        failed.add(said.model)
                        yield said
                else:
                    desk.job = job.after(1)
                    yield said
            if cancel.is_set():
                return
    finally:
        for desk in desks.values():
            desk.end()


class _Desk:
    """One worker process, the pipe to it and the job it is at."""

    def __init__(self, context: Any, study: Study, device: str, threads: int):
        self.device = device
        self.job: Job | None = None
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, study, device, threads), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen here when the process dies

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # it died: reading from the pipe says so
            self.pipe.send(job)

    def end(self) -> int | None:
        """Its exit code; a process that still runs is ended."""
        self.pipe.close()
        self.process.join(timeout=1)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(timeout=5)
        return self.process.exitcode


def _serve(pipe: Connection, study: Study, device: str, threads: int) -> None:
    """A worker's life: jobs come in, cells go out, until nobody is there any more."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    os.environ.setdefault("TQDM_DISABLE", "1")
    bench = Bench(study, device, threads)
    try:
        while True:
            job = pipe.recv()
            try:
                for cell in bench.work(job):
                    pipe.send(cell)
                pipe.send(None)
            except KvvizError as error:
                pipe.send(Unloaded(job.model, str(error)))
    except (EOFError, OSError):
        return


def _device(device: str, number: int) -> str:
    """A worker's device: several GPUs are shared out."""
    import torch

    if device in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{number % torch.cuda.device_count()}"
    return device


def _death(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
