"""The store of runs: bounded, isolated, forgiving to a reload."""

import threading
import time
from dataclasses import replace

import pytest

from kvviz.errors import InputError
from kvviz.ui import runs
from kvviz.ui.runs import RunStore


def test_a_stored_run_opens_by_its_id(store):
    run = store.get("stored-example")
    assert run.origin == "stored" and run.comparison.n == 200


@pytest.mark.parametrize("run_id", [None, 3, "", "x" * 500, "stored-../../etc/passwd", "other"])
def test_an_unknown_run_is_refused_with_a_sentence(store, run_id):
    with pytest.raises(InputError, match="no longer kept here"):
        store.get(run_id)


def test_ids_differ_and_cannot_be_counted(store, comparison):
    ids = {store.add(comparison, "own", "t").id for _ in range(5)}
    assert len(ids) == 5 and all(len(i) >= 16 for i in ids)


def test_the_oldest_run_goes_first(comparison):
    store = RunStore(max_runs=2)
    first, second = store.add(comparison, "own", "1"), store.add(comparison, "own", "2")
    store.get(first.id)
    store.add(comparison, "own", "3")
    assert store.get(first.id) is first
    with pytest.raises(InputError):
        store.get(second.id)


def test_a_reload_finds_the_run_until_the_grace_time_is_over(comparison):
    store = RunStore(keep_left_s=100)
    run = store.add(comparison, "own", "1", owner="visitor")
    store.left("visitor")
    assert store.get(run.id) is run
    store.keep_left_s = -1
    store.left("visitor")
    with pytest.raises(InputError):
        store.get(run.id)


class Hours:
    """A clock that is moved by hand, and what is to be called at a time of it."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def later(self, seconds, call):
        self.calls.append((self.now + seconds, call))

    def move(self, seconds):
        self.now += seconds
        due = [item for item in self.calls if item[0] <= self.now]
        self.calls = [item for item in self.calls if item[0] > self.now]
        for _, call in due:
            call()


def test_a_run_left_behind_goes_when_its_time_is_over_though_nobody_comes(comparison):
    hours = Hours()
    store = RunStore(keep_left_s=900, clock=lambda: hours.now, later=hours.later)
    gone = store.add(comparison, "own", "1", owner="who left")
    stays = store.add(comparison, "own", "2", owner="who stayed")
    store.left("who left")
    hours.move(800)
    assert len(store._runs) == 2 and store.get(gone.id) is gone  # read by someone with the link: 900 more
    hours.move(200)
    assert len(store._runs) == 2
    hours.move(702)
    assert list(store._runs) == [stays.id]
    assert not hours.calls, "nothing is left to look for"


def test_a_visitor_who_is_back_keeps_the_runs(comparison):
    hours = Hours()
    store = RunStore(keep_left_s=900, clock=lambda: hours.now, later=hours.later)
    run = store.add(comparison, "own", "1", owner="visitor")
    store.left("visitor")
    hours.move(100)
    store.back("visitor")
    hours.move(10_000)
    assert store.get(run.id) is run and not hours.calls


def test_a_run_without_answers_is_refused_in_a_sentence(comparison, tmp_path):
    replace(comparison, variants=[]).save(tmp_path / "run.zip")
    with pytest.raises(InputError, match="^This run was stopped before its first answer"):
        RunStore().open(tmp_path / "run.zip", "visitor")


def test_one_visitor_with_many_runs_does_not_push_out_the_others(comparison):
    store = RunStore(max_runs=4)
    kept = store.add(comparison, "own", "1", owner="quiet")
    many = [store.add(comparison, "own", "n", owner="busy") for _ in range(25)]
    assert store.get(kept.id) is kept and store.get(many[-1].id) is many[-1]


def test_a_file_heavier_than_the_store_is_refused_and_pushes_nothing_out(comparison, tmp_path):
    comparison.save(tmp_path / "run.zip")
    store = RunStore(max_bytes=1000)
    kept = store.add(comparison, "own", "1", owner="a")
    with pytest.raises(InputError, match="are kept here"):
        store.open(tmp_path / "run.zip", "b")
    assert store.get(kept.id) is kept


def test_files_are_opened_one_at_a_time(comparison, tmp_path, monkeypatch):
    """What a file unpacks to takes memory; the stored examples wait in the same line."""
    inside, most, reading = [], [], threading.Lock()

    def slowly(path):
        with reading:
            inside.append(path)
            most.append(len(inside))
        time.sleep(0.05)
        with reading:
            inside.remove(path)
        return comparison

    monkeypatch.setattr(runs, "load_comparison", slowly)
    monkeypatch.setattr(runs, "stored_runs", lambda: {"stored-example": tmp_path / "stored.zip"})
    store = RunStore()
    calls = [lambda name=name: store.open(tmp_path / name, "visitor") for name in ("a.zip", "b.zip")]
    threads = [threading.Thread(target=call) for call in [*calls, lambda: store.get("stored-example")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
