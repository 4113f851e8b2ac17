"""A served page and a real Chromium for the tests marked `browser`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from kvviz.ui import assets

for name in dir(anyio):  # read here, as pytest rewrites it: a server's threads would do so at the same time
    getattr(anyio, name)
sys.path.insert(0, str(Path(__file__).parents[1] / "ui"))
PATIENCE = 45_000  # ms, for a state to come: a busy machine with two cores is slow, not wrong
OFFLINE = "ERR_INTERNET_DISCONNECTED"  # a test that takes the network away
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium_path():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    found = found or shutil.which("google-chrome")
    if found is None:
        reason = "no chromium on this machine (apt-get install chromium)"
        if os.environ.get("KVVIZ_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def browser(chromium_path):
    try:
        from playwright import sync_api as sync
    except ImportError:
        if os.environ.get("KVVIZ_REQUIRE_BROWSER") == "1":
            pytest.fail("playwright is not installed")
        pytest.skip("playwright is not installed")
    sync.expect.set_options(timeout=PATIENCE)
    with sync.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium_path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def serve():
    """serve(engine, folder): a page over the stored runs in `folder`; returns (url, close)."""
    from kvviz.ui import app, runs

    def start(engine, folder):
        runs.STORED = folder
        demo = app.build_app(engine=engine)
        options = {**app.launch_options(), "server_name": "127.0.0.1", "server_port": None}
        _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, **app.guarded(options))
        return url, demo.close

    return start


@pytest.fixture(scope="session")
def served(chromium_path, serve):
    """(url, engine) of a page with one stored run and an engine without a model."""
    from fake_engine import FakeEngine
    from synthetic import synthetic_comparison, with_findings

    from kvviz.ui import runs, sweeps

    old, engine = runs.STORED, FakeEngine(steps=12, pause=0.05, n=300, layers=6)
    with tempfile.TemporaryDirectory() as folder:
        comparison = synthetic_comparison(n=300, L=6)
        comparison.settings.update(title="A stored run", date="2026-11-30")
        comparison.save(Path(folder) / "a-stored-run.zip")
        cutting = synthetic_comparison(n=300, L=6, evict_every=4)
        for record in (record for v in cutting.variants for record in v.evictions):
            record["tokens"] = [[10, 20 + layer] for layer in range(6)]
        cutting.settings.update(title="A run that evicts while generating", date="2026-11-30")
        cutting.save(Path(folder) / "b-cutting-run.zip")
        stored = Path(__file__).parents[2] / "assets" / "runs" / "1-lighthouse-ledger.zip"
        shutil.copy(stored, Path(folder) / "c-lighthouse-ledger.zip")
        from several_scripts import scripts_comparison

        scripts_comparison().save(Path(folder) / "d-scripts.zip")
        findings = with_findings(synthetic_comparison(n=300, L=6))
        findings.settings.update(title="A run with causes", date="2026-12-02")
        findings.save(Path(folder) / "e-findings.zip")
        from many import sweep_folder

        run = (Path(folder) / "a-stored-run.zip").read_bytes()
        sweep_folder(Path(folder) / "sweeps" / "made-up", run=run)
        sweep_folder(Path(folder) / "sweeps" / "small", n=12)
        old_sweeps, sweeps.STORED = sweeps.STORED, Path(folder) / "sweeps"
        url, close = serve(engine, Path(folder))
        yield url, engine
        close()
    runs.STORED, sweeps.STORED = old, old_sweeps


# Opens the page at another address without loading it, once what was asked for before has come.
OPEN_AGAIN = r"""async ([address, query]) => {
  const {modules} = await import(new URL(address, document.baseURI).href);
  const {openRun} = modules['views/opening.js'], {readLink} = modules['lib/link.js'];
  const {page} = modules['lib/page.js'];
  if (!page.server.counted) {
    const ask = page.server.ask;
    page.server = {counted: true, open: 0, async ask(...args) {
      this.open += 1;
      try { return await ask(...args); } finally { this.open -= 1; }
    }};
  }
  for (let quiet = 0; quiet < 3; quiet += 1) {
    await new Promise(done => setTimeout(done, 30));
    if (page.server.open) quiet = 0;
  }
  for (const one of document.querySelectorAll('[data-drawn]')) delete one.dataset.drawn;
  const opened = '#kv-all-button[aria-expanded=true], #kv-fold:checked';
  for (const one of document.querySelectorAll(opened)) one.click();
  for (const field of document.querySelectorAll('#kv-app input[type=search]')) field.value = '';
  history.replaceState(null, '', location.pathname + query);
  document.activeElement?.blur();
  scrollTo(0, 0);
  delete page.app.dataset.ready;
  const {run, sel, tab} = readLink();
  await openRun(run || page.boot.stored[0].id, sel, tab || 'kept');
}"""


class Visits:
    """Pages of one browser. Loading one takes seconds, so tests that need no page of their own share one."""

    def __init__(self, browser, url):
        self.browser, self.url, self.errors, self.own = browser, url, [], []
        self.shared = None

    def fresh(self, query="", url=None, **options):
        """A page in a context of its own, closed after the test."""
        context = self.browser.new_context(
            **{"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options}
        )
        self.own.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto((url or self.url) + query)
        page.wait_for_selector("#kv-app[data-ready]")
        return page

    def again(self, query=""):
        """The shared page, opened anew at an address without loading it."""
        if self.shared is None:
            self.shared = self.fresh(query)
            self.own.pop()  # it stays
            return self.shared
        self.shared.evaluate(OPEN_AGAIN, [assets.addresses()[0], query])
        self.shared.wait_for_selector("#kv-app[data-ready]")
        return self.shared

    def done(self):
        """Close what was opened for one test; errors on a page fail it."""
        for context in self.own:
            context.close()
        self.own, errors = [], [e for e in self.errors if OFFLINE not in e]
        self.errors.clear()
        if errors and self.shared is not None:
            self.shared.context.close()
            self.shared = None
        assert not errors, errors


@pytest.fixture(scope="session")
def visits(browser, served):
    return Visits(browser, served[0])


@pytest.fixture
def visit(visits):
    """visit(query="") opens the shared page at an address."""
    yield visits.again
    visits.done()


@pytest.fixture
def visit_fresh(visits):
    """visit_fresh(query="", **context) loads a page of a visitor of its own."""
    yield visits.fresh
    visits.done()
