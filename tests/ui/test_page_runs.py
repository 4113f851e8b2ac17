"""The store of runs: bounded, isolated, forgiving to a reload."""

import pytest

from kvviz.errors import InputError
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
