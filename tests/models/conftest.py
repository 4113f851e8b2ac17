import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache of its own for each test, on a machine that is no public server."""
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPACE_ID", raising=False)
    monkeypatch.delenv("KVVIZ_PUBLIC", raising=False)
