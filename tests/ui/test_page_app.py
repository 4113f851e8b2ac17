"""How the page is served."""

import importlib.util

import pytest

from kvviz.errors import InputError
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
