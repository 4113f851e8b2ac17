"""In a frame that is made as high as its page, as the Hub does: all of it is reachable, and growing ends."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

HOST = """<!doctype html><body style="margin:0"><iframe id="page" src="%s" style="width:100%%;border:0"
 height="400" scrolling="no"></iframe>"""
# How the resizer measures a page; a Space's host takes one of these.
HEIGHTS = {
    "body": "document.body.offsetHeight + parseInt(getComputedStyle(document.body).marginTop, 10)"
    " + parseInt(getComputedStyle(document.body).marginBottom, 10)",
    "document": "document.documentElement.offsetHeight",
}


@pytest.fixture
def host(served):
    """Address of another site that shows the page in a frame."""

    class Host(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write((HOST % served[0]).encode())

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


def fitted(page, frame, measure):
    """The frame's height once it follows the page no further, and what it was on the way."""
    seen = []
    for _ in range(12):
        frame.wait_for_timeout(150)
        height = frame.evaluate(HEIGHTS[measure])
        seen.append(height)
        if len(seen) > 2 and len(set(seen[-3:])) == 1:
            return height, seen
        page.evaluate("h => document.getElementById('page').height = h", height)
    raise AssertionError(f"the page never ends growing: {seen}")


LOWEST = (  # of what is in the flow; boxes that scroll by themselves hold more
    "Math.max(document.documentElement.scrollHeight,"
    " ...[...document.querySelectorAll('#kv-app, #kv-app > *, footer')].filter(e => e.checkVisibility())"
    ".map(e => e.getBoundingClientRect().bottom + scrollY))"
)


def assert_all_is_reachable(page, frame, measure):
    for _ in range(5):  # a plot may still come after the frame stood still
        height, _ = fitted(page, frame, measure)
        lowest = frame.evaluate(LOWEST)
        if lowest <= height + 2:
            return height
    raise AssertionError(f"{lowest} px reach below the frame of {height} px")


@pytest.mark.parametrize(("measure", "width"), [("body", 1280), ("document", 390)])
def test_the_frame_ends_where_the_page_does(visits, host, measure, width):
    context = visits.browser.new_context(viewport={"width": width, "height": 800})
    visits.own.append(context)
    page = context.new_page()
    page.set_default_timeout(45_000)
    page.goto(host)
    frame = page.frame_locator("#page").locator("#kv-app[data-ready]").element_handle().owner_frame()
    folded = assert_all_is_reachable(page, frame, measure)
    frame.locator("#kv-form-button").click()  # unfolds the form
    opened = assert_all_is_reachable(page, frame, measure)
    assert opened > folded + 200
    frame.locator("#kv-form-button").click()
    assert abs(assert_all_is_reachable(page, frame, measure) - folded) <= 40
    frame.locator("#kv-tab-sweep").click()
    assert_all_is_reachable(page, frame, measure)
    visits.done()
