"""How the page is served."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine

from kvviz.errors import InputError
from kvviz.ui import app
from kvviz.ui.app import launch_options


def test_nothing_is_recorded_and_agents_are_not_served_by_default():
    options = launch_options()
    assert options["mcp_server"] is False
    assert options["run_history"] is False and options["enable_monitoring"] is False


def test_agents_are_served_on_request_where_the_extra_is(monkeypatch):
    monkeypatch.setenv("KVVIZ_MCP", "1")
    find, extra = importlib.util.find_spec, {"mcp": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: extra[name] if name in extra else find(name)
    )
    with pytest.raises(InputError, match="pip install"):
        launch_options()
    extra["mcp"] = object()
    assert launch_options()["mcp_server"] is True


@pytest.fixture
def built(monkeypatch):
    """(page, its desk) with room for three runs, as the environment says."""
    desks = []
    monkeypatch.setenv("KVVIZ_RUNS", "3")
    monkeypatch.setenv("KVVIZ_RUNS_BYTES", "5M")
    desk = app.Desk
    monkeypatch.setattr(app, "Desk", lambda *given: desks.append(desk(*given)) or desks[0])
    return app.build_app(FakeEngine()), desks[0]


def test_the_settings_say_how_many_runs_are_kept(built, monkeypatch):
    store = built[1].store
    assert (store.max_runs, store.max_bytes) == (3, 5 * 2**20)
    given = []
    monkeypatch.setattr(app, "build_app", lambda store: given.append(store) or SimpleNamespace(launch=dict))
    monkeypatch.setattr(app, "warm", lambda store: None)
    monkeypatch.setattr(app, "check_place", lambda host, port: None)
    app.launch()
    assert (given[0].max_runs, given[0].max_bytes) == (3, 5 * 2**20)


def test_whatever_starts_work_says_so_when_it_broke(built):
    """Gradio refuses a field before any handler of ours runs; the page is told by the one for failures."""
    page, desk = built
    told = json.loads(desk.broken())
    assert told["state"] == "failed" and told["message"].startswith("This was not started: a field holds")
    handlers = {fn.name: number for number, fn in page.fns.items() if fn.name != "broken"}
    started = {"run", "decode_more", "try_again", "open_saved", "find", "branch", "ask", "fill", "decode"}
    broken = [fn for fn in page.fns.values() if fn.name == "broken" and fn.trigger_only_on_failure]
    assert started <= set(handlers)
    assert {fn.trigger_after for fn in broken} == {handlers[name] for name in started}
