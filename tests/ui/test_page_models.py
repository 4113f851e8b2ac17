"""Loading in the background: Stop is heard, a failure costs nobody the model that was there."""

import threading
import time
from types import SimpleNamespace

import pytest

import kvviz
from kvviz.errors import Cancelled, ModelError
from kvviz.ui import models
from kvviz.ui.models import Models

OLD, NEW = ("old", "auto"), ("new", "auto")


@pytest.fixture
def gone():
    return []


@pytest.fixture
def shelf(gone):
    weights = SimpleNamespace(parameters=list)
    old = SimpleNamespace(name="old", device=SimpleNamespace(type="cpu"), hf=weights)
    return Models({OLD: old}, 1, lambda model: gone.append(model.name))


def said(message, fraction):
    pass


def load_with(monkeypatch, fn):
    monkeypatch.setattr(kvviz, "load_model", lambda name, dtype, progress: fn(name, progress), raising=False)


def until(true):
    end = time.monotonic() + 5
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def test_a_model_that_cannot_be_had_leaves_the_old_one(monkeypatch, shelf, gone):
    def refuse(name, progress):
        raise ModelError("no network")

    load_with(monkeypatch, refuse)
    with pytest.raises(ModelError, match="no network"):
        shelf.get(NEW, threading.Event(), said)
    assert list(shelf.loaded) == [OLD] and gone == []


def test_the_old_model_goes_when_the_new_one_is_there(monkeypatch, shelf, gone):
    seen = []

    def load(name, progress):
        seen.append(list(shelf.loaded))
        return SimpleNamespace(name=name)

    load_with(monkeypatch, load)
    assert shelf.get(NEW, threading.Event(), said).name == "new"
    assert seen == [[OLD]] and list(shelf.loaded) == [NEW] and gone == ["old"]


def test_where_memory_holds_one_the_old_model_is_loaded_again_after_a_failure(monkeypatch, shelf, gone):
    monkeypatch.setattr(models, "_free", lambda model: 0)

    def only_old(name, progress):
        if name == "new":
            raise ModelError("no network")
        return SimpleNamespace(name=name)

    load_with(monkeypatch, only_old)
    with pytest.raises(ModelError):
        shelf.get(NEW, threading.Event(), said)
    assert gone == ["old"] and until(lambda: list(shelf.loaded) == [OLD])


def test_stop_is_heard_while_a_model_loads_and_ends_a_load_nobody_waits_for(monkeypatch, shelf):
    ended, started, cancel = threading.Event(), threading.Event(), threading.Event()

    def slow(name, progress):
        started.set()
        try:
            while True:
                progress("fetching", 0.5)
                time.sleep(0.01)
        finally:
            ended.set()

    load_with(monkeypatch, slow)
    threading.Thread(target=lambda: (started.wait(5), cancel.set()), daemon=True).start()
    before = time.monotonic()
    with pytest.raises(Cancelled):
        shelf.get(NEW, cancel, said)
    assert time.monotonic() - before < 3 and ended.wait(3) and list(shelf.loaded) == [OLD]


def test_two_who_want_one_model_load_it_once(monkeypatch, shelf):
    loads = []

    def load(name, progress):
        loads.append(name)
        time.sleep(0.2)
        return SimpleNamespace(name=name)

    load_with(monkeypatch, load)
    got = []

    def ask():
        got.append(shelf.get(NEW, threading.Event(), said))

    threads = [threading.Thread(target=ask) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert loads == ["new"] and got[0] is got[1]


def test_a_gguf_file_is_weighed_by_what_it_unpacks_to(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(1000))
    assert models._weights((str(path), "float32")) == 8000
    assert models._weights((str(path), "bfloat16")) == 4000
