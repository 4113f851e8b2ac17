"""What a visitor waits for in Chromium: the first map of a visit, and the tab Cause of each stored run. Part
of `python -m kvviz bench app`.

Chromium with an empty cache opens the page of a server in a process of its own, on this machine: no network
is in these times. `cells` is when the cells of the map are painted, `figure` when plotly.js has drawn it with
its axes. A page of Gradio's with one empty block of HTML tells how much of that is Gradio's own: nothing on a
page of ours can come earlier. Of the tab Cause, `words` is when its first sentence stands after the click,
`figures` when the last of the figures in sight is drawn.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvviz.ui.runs import STORED

LIMIT_S = 1.5  # until the cells of the first map are there
TAB_LIMIT_S = 0.5  # until the figures in sight of a stored run's tab are drawn
WIDTHS = {1440: 900, 390: 844}
FLAGS = ["--no-sandbox", "--disable-gpu"]
MARKS = """
new MutationObserver(() => {
  const seen = window.seen ??= {}, note = name => { seen[name] ??= performance.now() / 1000; };
  if (document.querySelector('.kv-sketch') && !seen.asked) {
    note('asked');
    requestAnimationFrame(() => {  // a message comes right behind the frame, a timer behind what waits for it
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => note('cells');
      port2.postMessage(0);
    });
  }
  if (document.querySelector('[data-drawn]')) note('figure');
}).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ['data-drawn']});
"""
OPEN_CAUSE = """() => new Promise(done => {
  const tab = document.querySelector('#kv-tab-cause'), began = performance.now(), seen = new Set();
  let words = 0, figures = 0;
  tab.click();
  const look = () => {
    const now = performance.now() - began;
    words ||= document.querySelector('#kv-cause-words')?.textContent ? now : 0;
    for (const box of document.querySelectorAll('#kv-sheet-cause .kv-plot-box[data-drawn]')) {
      const {top, bottom} = box.getBoundingClientRect();
      if (!seen.has(box) && top < innerHeight && bottom > 0) figures = now;
      seen.add(box);
    }
    if (now > 3000) done({words: words / 1000, figures: figures / 1000}); else setTimeout(look, 5);
  };
  look();
})"""
KVVIZ = "from kvviz.ui import app; app.launch(port={port})"
BARE = """
import os
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
import gradio as gr
with gr.Blocks() as demo:
    gr.HTML(html_template='<p id="it"></p>', js_on_load="element.querySelector('#it').dataset.drawn = '1'")
demo.launch(server_port={port}, ssr_mode=False, enable_monitoring=False)
"""


def visits(times: int) -> dict[str, Any] | str:
    """{"warm", "cold", "bare": {"cells", "figure": median s, "all": every visit}}, or why there is nothing.

    warm  the server has been visited before; cold: it has just been started, and this is its first visit.
    """
    if (found := _playwright()) is None:
        return "First visit: not measured, because there is no Chromium with playwright here."
    sync, chromium = found
    with sync.sync_playwright() as p:

        def visit(url: str) -> dict[str, float]:
            browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.add_init_script(MARKS)
            page.goto(url, wait_until="commit")
            page.wait_for_function("window.seen?.figure", timeout=60_000)
            seen = page.evaluate("window.seen")
            browser.close()
            return {name: seen[name] for name in ("cells", "figure") if name in seen}

        report = {}
        for name, code in (("warm", KVVIZ), ("bare", BARE)):
            with server(code) as url:
                visit(url)
                report[name] = _medians([visit(url) for _ in range(times)])
        report["cold"] = _medians([_first(visit) for _ in range(times)])
    return report


def cause_tabs(times: int) -> dict[str, dict[str, float]]:
    """{run at a width: {"words", "figures": median s after the click on the tab}}; empty without Chromium."""
    if (found := _playwright()) is None:
        return {}
    sync, chromium = found
    report = {}
    with sync.sync_playwright() as p, server(KVVIZ) as url:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        for run in sorted(path.stem for path in STORED.glob("*.zip")):
            for width, height in WIDTHS.items():
                seen = []
                for _ in range(times):
                    page = browser.new_page(viewport={"width": width, "height": height})
                    page.goto(f"{url}?r=stored-{run}&v=kept")
                    page.wait_for_selector("#kv-sheet-kept [data-drawn]", state="attached", timeout=60_000)
                    page.wait_for_timeout(1500)  # the visitor reads: what the page still loads is loaded
                    page.evaluate("document.querySelector('#kv-tab-cause').scrollIntoView()")
                    seen.append(page.evaluate(OPEN_CAUSE))
                    page.close()
                report[f"{run}, {width} px"] = _medians(seen)
        browser.close()
    return report


def _playwright() -> tuple[Any, str] | None:
    """playwright and the place of a Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    try:
        from playwright import sync_api as sync
    except ImportError:
        return None
    return (sync, chromium) if chromium else None


def _first(visit: Any) -> dict[str, float]:
    with server(KVVIZ) as url:
        return visit(url)


def _medians(seen: list[dict[str, float]]) -> dict[str, Any]:
    return {**{name: statistics.median(one[name] for one in seen) for name in seen[0]}, "all": seen}


@contextmanager
def server(code: str) -> Iterator[str]:
    """The address of a server that listens, of a process that ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", code.format(port=port)], env=os.environ, **quiet)
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError("The server of this measurement ended.")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def shown(report: dict[str, Any] | str) -> str:
    """The measurement as lines."""
    if isinstance(report, str):
        return report
    names = {"warm": "first visit, server warm", "cold": "first visit, server just started",
             "bare": "an empty page of Gradio"}  # fmt: skip
    lines = [f"\nfirst map of a visit with an empty cache, median of {len(report['warm']['all'])} "
             f"(limit {LIMIT_S} s)", f"{'':34} {'cells s':>9} {'figure s':>9}"]  # fmt: skip
    for name, words in names.items():
        row = report[name]
        cells = f"{row['cells']:9.2f}" if "cells" in row else " " * 9
        lines.append(f"{words:34} {cells} {row['figure']:9.2f}")
    return "\n".join(lines)


def tabs_shown(report: dict[str, dict[str, float]]) -> str:
    """The measurement of `cause_tabs` as lines."""
    if not report:
        return "Tab Cause in a browser: not measured, because there is no Chromium with playwright here."
    lines = [f"\nopening the tab Cause of a stored run (limit {TAB_LIMIT_S} s)",
             f"{'':44} {'words s':>9} {'figures s':>9}"]  # fmt: skip
    lines += [f"{run:44} {row['words']:9.2f} {row['figures']:9.2f}" for run, row in report.items()]
    return "\n".join(lines)
