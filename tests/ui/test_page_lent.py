"""A GPU that is lent by the call: a forked process, everything pickled, no CUDA in the main process."""

import importlib.util
import pickle
import sys
import threading

import gradio as gr
import pytest
import torch
from lent_stub import stand_in
from tiny import make_model

import kvviz.engine.run
from kvviz.errors import Cancelled, InputError, ModelError
from kvviz.ui import asks, lent, worker

TEXT = "The keeper wrote the code 58213 in the ledger. " * 4
GOOD = {"document": TEXT, "question": "What code?", "methods": ["snapkv", "keydiff"],
        "budgets": ["50%", "20%"], "model": "tiny", "max_new_tokens": 6}  # fmt: skip


def loaded(name):
    """A copy of a module as it is imported where a GPU is lent."""
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def space(monkeypatch):
    """(engine, log) of a page on ZeroGPU: whoever touches CUDA in this process fails."""
    spaces, log = stand_in()
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    here = torch.get_num_threads()
    monkeypatch.setitem(lent.MODELS, ("tiny", "auto"), make_model("llama"))

    def touched(*args):
        import os

        if "LENT_WORKER" not in os.environ:
            raise AssertionError("CUDA was touched in the main process")
        return False

    for name in ("is_available", "_lazy_init", "init", "device_count"):
        monkeypatch.setattr(torch.cuda, name, touched)
    engines = loaded("kvviz.ui.engine")
    yield engines.Engine(), log
    for one in log.workers:
        one.process.terminate()
    torch.set_num_threads(here)


def run(engine, cancel=None, **change):
    cancel = threading.Event() if cancel is None else cancel
    return list(engine.stream(asks.request(**{**GOOD, **change}), cancel, print))


def test_a_run_is_what_it_is_without_a_lender(space):
    engine, log = space
    assert set(log.decorated) >= {"_compare", "_try", "_find", "_branch"}
    events = run(engine)
    result = events[-1].result
    assert events[0].stage == "prefill" and any(event.answers for event in events)
    assert engine.traces is None and all(event.scored is None for event in events)
    here = kvviz.engine.run.compare(
        lent.MODELS["tiny", "auto"], result.prompt, GOOD["methods"], [0.5, 0.2], 6, lenses=True
    )
    assert [v.token_ids for v in result.variants] == [v.token_ids for v in here.variants]
    assert result.settings["weights"] == here.settings["weights"]
    assert 15 <= log.durations[0] <= 120


def test_more_work_on_a_run_crosses_as_well(space):
    engine, log = space
    c = run(engine)[-1].result
    ask, variant = asks.request(**GOOD), c.variant("snapkv", 0.2)
    more = list(engine.stream(ask.of(budgets=[0.1]), threading.Event(), print, c))[-1].result
    assert {v.budget for v in more.variants} == {0.1}
    found = list(engine.find_cause(ask, c, variant, threading.Event(), print))[-1].result
    assert variant.key in found.causes and found.fork is not None
    branch = list(engine.branch(ask, found, "full", 1, 1, threading.Event(), print))[-1].result
    assert branch.settings["branches"]
    assert len(log.durations) == 4


def test_a_process_is_used_again_and_gets_models_it_is_older_than(space, monkeypatch):
    engine, log = space
    monkeypatch.setattr("kvviz.load_model", lambda name, dtype: make_model("qwen2"))  # before the fork
    first = run(engine)[-1].result
    later = make_model("qwen2")
    monkeypatch.setitem(lent.MODELS, ("other", "auto"), later)
    second = run(engine, model="other")[-1].result
    assert len(log.workers) == 1
    assert second.settings["weights"] == later.weights_hash != first.settings["weights"]


def test_a_grid_borrows_a_gpu_text_by_text(space, monkeypatch):
    engine, log = space
    from kvviz.evaluate.items import Item
    from kvviz.settings import settings
    from kvviz.ui.grids import Growing, grid_of

    def texts(tokenizer, lengths, depths, *rest):
        return [Item(f"at {d}", "needle", TEXT, "What code?", ("58213",), meta={"depth": d}) for d in depths]

    monkeypatch.setattr("kvviz.evaluate.grid.grid_items", texts)  # a tiny tokenizer counts too coarsely

    given = {"lengths": "120", "depths": "20 80", "methods": ["snapkv"], "budgets": "20", "model": "tiny"}
    grid = grid_of(settings({}), **given)
    growing = Growing(grid)
    first, *cells = engine.grid(grid, threading.Event(), print)
    growing.plan(first.result["items"])
    for event in cells:
        growing.add(event.result)
    assert growing.done == len(log.durations) == 2 and not growing.reason
    assert sorted(growing.sweep().table.depth.unique()) == [0.2, 0.8]
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(Cancelled):
        list(engine.grid(grid, stopped, print))


def test_errors_come_back_as_they_are(space):
    engine, log = space
    with pytest.raises(InputError, match="tiny-llama reads 4,096"):
        run(engine, document=TEXT * 400)
    assert run(engine)[-1].result is not None  # and the process goes on
    log.refuse = gr.Error('You have exceeded your GPU quota. <a href="x">Sign up</a> &amp; wait.')
    with pytest.raises(InputError, match=r"could not be had: You have exceeded .* Sign up & wait\.$"):
        run(engine)


def test_stop_keeps_what_is_finished(space, monkeypatch):
    engine, log = space
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    cancel, statuses = threading.Event(), []
    ask = asks.request(**{**GOOD, "max_new_tokens": 200})

    def work(stop, progress):
        return engine.stream(ask, stop, progress)

    for status in worker.stream(work, cancel):
        statuses.append(status)
        if status.get("answers"):
            cancel.set()
    assert statuses[-1]["state"] == "stopped"
    assert run(engine)[-1].result is not None


def test_a_page_that_goes_stops_the_process(space, monkeypatch):
    engine, log = space
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    events = engine.stream(asks.request(**{**GOOD, "max_new_tokens": 400}), threading.Event(), print)
    next(events)
    events.close()
    assert log.workers[0].stop.is_set()


def test_nothing_of_a_gpu_crosses():
    class Away(torch.Tensor):
        """A tensor that says it lies on a GPU."""

        device = torch.device("cuda:0")

        def cpu(self):
            return torch.ones(3)

    Away.__module__ = "torch"
    back = pickle.loads(lent.packed({"x": [torch.zeros(3).as_subclass(Away)]}))
    assert torch.equal(back["x"][0], torch.ones(3))
    assert isinstance(pickle.loads(lent.packed(ModelError("a sentence"))), ModelError)


def test_more_is_asked_for_larger_models_and_longer_texts():
    small = lent.seconds_for(135_000_000, 2, 8000, 64)
    assert 15 <= small < lent.seconds_for(8_000_000_000, 2, 8000, 64) < lent.seconds_for(
        8_000_000_000, 2, 100_000, 128
    ) <= 120


def test_without_a_lender_work_is_itself():
    def work(key, cancel, traces):
        yield Cancelled("x")

    assert lent.on_gpu(lambda key: 1)(work) is work
