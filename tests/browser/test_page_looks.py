"""What can be read and seen: contrast of every text, and every kept cell of a map."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import expect
from test_page import drawn

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


PANELS = {"kept": "kv-heads-a", "why": "kv-why", "effect": "kv-effect-dots", "sweep": "kv-sweep", "try": "",
          "steps": "kv-steps"}  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_contrast(visit_fresh, theme):
    page = visit_fresh(f"?__theme={theme}&r=stored-b-cutting-run")
    drawn(page, "kv-kept-a")
    page.locator("#kv-form-button").click()
    for summary in page.locator("#kv-form summary").all():
        summary.click()
    page.locator("#kv-all-button").click()
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-run .kv-failed")).to_contain_text("Paste or upload a document first.")
    for tab, panel in PANELS.items():
        page.locator(f"#kv-tab-{tab}").click()
        if panel:
            drawn(page, panel)
        assert page.evaluate(f"({CONTRAST})(4.5)") == [], tab
    slider = page.locator("#kv-budget")
    slider.focus()
    slider.press("Home")  # an answer of another budget is shown greyed
    expect(page.locator(".kv-card-a")).to_contain_text("Not decoded")
    assert page.evaluate(f"({CONTRAST})(4.5)") == []


GEOMETRY = """() => { const gd = document.querySelector('#kv-kept-a .kv-plot'), f = gd._fullLayout;
  const r = gd.getBoundingClientRect(), cells = f.meta.cells;
  return {top: r.top + f.yaxis._offset + scrollY, wide: f.xaxis._length, rows: f.yaxis._length / 30,
    columns: Math.ceil((cells.x1 - cells.x0) / cells.size), size: cells.size,
    from: r.left + f.xaxis._offset + f.xaxis.d2p(cells.x0 - 0.5),
    step: f.xaxis.d2p(cells.size) - f.xaxis.d2p(0)}; }"""


def test_every_kept_cell_of_a_map_is_on_the_screen(visit_fresh):
    from PIL import Image

    import kvviz

    page = visit_fresh("?r=stored-c-lighthouse-ledger&a=keydiff&b=dropkv&k=0.05", bypass_csp=True)
    drawn(page, "kv-kept-a")
    page.evaluate("getSelection().removeAllRanges()")
    page.locator("#kv-clear").click()  # no frame over the map
    page.locator("#kv-versus").wait_for()
    page.wait_for_function("!document.querySelector('.kv-slow')")
    page.wait_for_timeout(500)
    g = page.evaluate(GEOMETRY)
    assert g["columns"] <= g["wide"]
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    pixels = np.asarray(image).astype(int)
    stored = Path(__file__).parents[2] / "assets" / "runs" / "1-lighthouse-ledger.zip"
    c = kvviz.load_comparison(stored)
    kept = c.at("keydiff", 0.05).kept.mask().any(axis=1)  # [L, n]
    evicted = np.array([0xE6, 0xE9, 0xED])
    lost = []
    for layer in range(kept.shape[0]):
        y = int(g["top"] + (layer + 0.5) * g["rows"])
        for cell in range(g["columns"]):
            held = kept[layer, cell * g["size"] : (cell + 1) * g["size"]].any()
            x0 = math.floor(g["from"] + cell * g["step"])
            x1 = math.ceil(g["from"] + (cell + 1) * g["step"])
            seen = (np.abs(pixels[y, x0:x1] - evicted).sum(axis=-1) > 8).any()
            if held and not seen:
                lost.append((layer, cell))
    assert kept.any() and not lost, (len(lost), lost[:5])
