"""The page behind a reverse proxy: below a path, at another port, with a name of its own."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect
from test_page import drawn, fill_form

PATH = "/tools/kvviz"
DROPPED = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@pytest.fixture(scope="module")
def proxied(served):
    """Address of a proxy that takes PATH off and names itself in X-Forwarded-Host; the server knows PATH."""
    from fake_engine import FakeEngine

    from kvviz.ui import app

    demo = app.build_app(engine=FakeEngine(steps=4, pause=0.02, n=300, layers=6))
    options = {**app.launch_options(), "server_name": "127.0.0.1", "server_port": None, "root_path": PATH}
    demo.launch(prevent_thread_lock=True, quiet=True, **app.guarded(options))
    inner = f"http://127.0.0.1:{demo.server_port}"

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith(PATH):
                self.send_response(204 if self.path == "/favicon.ico" else 404)
                self.end_headers()
                return
            length = int(self.headers.get("content-length") or 0)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "accept-encoding")}
            headers["X-Forwarded-Host"] = self.headers["host"]
            request = urllib.request.Request(
                inner + self.path[len(PATH) :], self.rfile.read(length) or None, headers, method=self.command
            )
            try:
                reply = urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                reply = error
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                if name.lower() not in DROPPED:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            while chunk := reply.read1(65536):
                self.wfile.write(chunk)
                self.wfile.flush()

        do_POST = do_HEAD = do_GET

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}{PATH}/"
    server.shutdown()
    demo.close()


def test_everything_stays_at_the_address_of_the_proxy(visit_fresh, proxied):
    asked = []
    page = visit_fresh(url=proxied)
    page.on("request", lambda r: asked.append(r.url))
    drawn(page, "kv-kept-a")
    fill_form(page)
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    page.locator("#kv-export summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Whole run").click()
    assert download.value.path().stat().st_size > 1000
    away = [u for u in asked if u.startswith("http") and not u.startswith(proxied) and "favicon" not in u]
    assert asked and not away, away
