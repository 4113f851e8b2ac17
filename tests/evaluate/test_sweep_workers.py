"""Workers of a sweep: several, killed ones, those of a cluster; the table stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pandas as pd
import pytest
from test_sweep_runner import ROOT, TIMES, items, study
from tiny import make_model

from kvviz.evaluate import workers
from kvviz.evaluate.items import lines_of
from kvviz.results.study import read_table


@pytest.fixture(scope="module")
def study_files(tmp_path_factory):
    """(folder of a tiny model, file of items, environment) for commands."""
    folder = tmp_path_factory.mktemp("study")
    model = make_model("llama")
    model.hf.save_pretrained(folder / "tiny")
    model.tokenizer.save_pretrained(folder / "tiny")
    (folder / "items.jsonl").write_text(lines_of(items(6)))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return folder / "tiny", folder / "items.jsonl", env


def command(files, out, *more):
    model, what, _ = files
    base = f"-m kvviz sweep --items {what} --model {model} --methods snapkv,random --budgets 0.5,8"
    return [sys.executable, *base.split(), "--max-new-tokens", "3", "--out", str(out), *more]


@pytest.fixture(scope="module")
def one_worker(study_files, tmp_path_factory):
    """The folder that one worker leaves, undisturbed."""
    out = tmp_path_factory.mktemp("one")
    subprocess.run(command(study_files, out), env=study_files[2], check=True)
    return out


def children(process):
    """Worker processes: those that hold a model."""
    import psutil

    return [p for p in psutil.Process(process.pid).children(recursive=True) if p.is_running()]


def same(a, b):
    a, b = (read_table(where).drop(columns=TIMES) for where in (a, b))
    pd.testing.assert_frame_equal(a, b, rtol=1e-4)
    return a


def wait_for(what, seconds=120):
    for _ in range(seconds * 20):
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


@pytest.mark.slow
def test_one_worker_or_two_or_a_killed_run_give_the_same_table(study_files, one_worker, tmp_path):
    env = study_files[2]
    subprocess.run(command(study_files, tmp_path / "two", "--workers", "2"), env=env, check=True)
    table = same(one_worker, tmp_path / "two")
    assert len(table) == 6 * 5 and (table.reason == "").all()
    # killed after its first cell, with its workers left to themselves
    cut = tmp_path / "cut"
    with subprocess.Popen(command(study_files, cut, "--workers", "2"), env=env) as run:
        wait_for(lambda: list(cut.glob("cells/*.json")))
        run.kill()
    kept = {path.name: path.stat().st_mtime_ns for path in cut.glob("cells/*.json")}
    subprocess.run(command(study_files, cut), env=env, check=True)
    assert {name: (cut / "cells" / name).stat().st_mtime_ns for name in kept} == kept
    same(one_worker, cut)


DYING = """
import os, runpy, signal, sys
import kvviz.evaluate.cells as cells
where, count, sys.argv = sys.argv[1], int(sys.argv[2]), ["kvviz", *sys.argv[3:]]
holder, name = (cells, "build_prompt") if where == "cell" else (os, "replace")
real = getattr(holder, name)
def dying(*args, **kwargs):
    global count
    if where == "cell" or os.path.basename(os.path.dirname(args[1])) == "cells":
        count -= 1
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(holder, name, dying)
runpy.run_module("kvviz", run_name="__main__")
"""


@pytest.mark.slow
def test_killed_within_a_cell_or_while_it_is_written_a_sweep_goes_on(study_files, one_worker, tmp_path):
    out, env = tmp_path / "out", study_files[2]
    python, _, _, *rest = command(study_files, out)
    # within the second item; then, of those that go on, with the second cell written but not yet in its place
    for where, count, cells in (("cell", 4, 1), ("write", 2, 2)):
        killed = subprocess.run([python, "-c", DYING, where, str(count), *rest], env=env)
        assert killed.returncode == -9 and len(list(out.glob("cells/*.json"))) == cells
    subprocess.run([python, "-m", "kvviz", *rest], env=env, check=True)
    table = same(one_worker, out)
    assert len(table) == 6 * 5 and not table.duplicated(["item", "method", "budget_name"]).any()


def kill_a_worker(study_files, one_worker, out, is_worker, *engine):
    """Two workers, one of them killed after the first cell: the table is that of one worker all the same."""
    more = [*engine, "--workers", "2", "--threads", "1"]
    with subprocess.Popen(command(study_files, out, *more), env=study_files[2]) as run:
        wait_for(lambda: list(out.glob("cells/*.json")))
        workers = [p for p in children(run) if is_worker(" ".join(p.cmdline()))]
        assert workers
        workers[0].kill()
        assert run.wait(300) == 0
    table = read_table(out)
    assert len(table) == 6 * 5 and (table.reason == "").all()
    same(one_worker, out)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_cell(study_files, one_worker, tmp_path):
    kill_a_worker(study_files, one_worker, tmp_path / "out", lambda line: "spawn_main" in line)


@pytest.mark.slow
def test_on_ray_a_worker_that_is_killed_costs_no_cell(study_files, one_worker, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "out"
    kill_a_worker(study_files, one_worker, out, lambda line: line.startswith("ray::Actor"), "--engine", "ray")


@pytest.mark.slow
def test_an_item_that_kills_its_worker_twice_is_a_failure(study_files, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_serve", serve_and_die)
    what = items(3)
    jobs = [workers.Job(str(study_files[0]), (item,)) for item in what]
    came = list(workers.work_on_processes(jobs, study(), 2, "cpu", 1, threading.Event()))
    reasons = {m.cell["rows"][0]["item"]: m.cell["rows"][0]["reason"] for m in came}
    assert reasons.pop("i1-0") == "The worker process died on this item 2 times (exit code 7)."
    assert reasons == {"i0-0": "", "i2-0": ""}


def serve_and_die(pipe, done, device, threads):
    """A worker that dies of one item."""
    real = workers.Bench.work

    def work(self, job):
        if job.items[0].id == "i1-0":
            os._exit(7)
        return real(self, job)

    workers.Bench.work = work
    serve(pipe, done, device, threads)


serve = workers._serve
