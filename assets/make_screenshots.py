"""Remakes the README's pictures: `python assets/make_screenshots.py [--all FOLDER]`.

Serves the page on its stored runs and photographs it in Chromium; needs playwright and a Chromium on the
path. `--all FOLDER` writes every tab at every width in both themes there instead, for looking through.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kvviz.figures import FIGURES  # noqa: E402

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
TABS = ("kept", "why", "effect", "sweep", "try")


def visit(browser, url: str, tab: str, theme: str, width: int, height: int):
    """The page on one tab, drawn and at rest."""
    phone = width < 700
    context = browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=2 if phone else 1,
        reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    page.add_init_script("localStorage.setItem('kvviz-tour-over', '1')")
    page.goto(f"{url}?v={tab}&__theme={theme}")
    page.wait_for_selector("#kv-app[data-ready]", timeout=60_000)
    panels = sum(1 + row.sides for row in FIGURES if row.tab == tab and not row.folded)
    if panels:
        drawn = f"#kv-sheet-{tab} .kv-plot-box[data-drawn]"
        enough = "([css, n]) => document.querySelectorAll(css).length >= n"
        page.wait_for_function(enough, arg=[drawn, panels], timeout=60_000)
    page.wait_for_timeout(600)
    return page


def everything(browser, url: str, folder: Path) -> None:
    """All tabs, widths and themes, whole pages."""
    for theme in ("light", "dark"):
        for width in (1440, 390):
            for tab in TABS:
                page = visit(browser, url, tab, theme, width, 900)
                page.screenshot(path=folder / f"{tab}-{width}-{theme}.png", full_page=True)
                page.context.close()


def readme(browser, url: str, folder: Path) -> None:
    """Three pictures: the first screen, one token looked into, the phone."""
    page = visit(browser, url, "kept", "light", 1440, 1420)
    page.screenshot(path=folder / "first-screen.png")
    page.context.close()
    page = visit(browser, url, "why", "dark", 1440, 900)
    box = page.locator(".kv-work").bounding_box()
    clip = {"x": box["x"] - 20, "y": box["y"] - 12, "width": box["width"] + 40, "height": 1340}
    page.screenshot(path=folder / "why-dark.png", full_page=True, clip=clip)
    page.context.close()
    page = visit(browser, url, "kept", "light", 390, 844)
    page.screenshot(path=folder / "phone.png")
    page.context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    from kvviz.ui import app

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", type=Path, default=None, metavar="FOLDER")
    folder = parser.parse_args().all
    options = app.launch_options() | {"server_name": "127.0.0.1", "server_port": None}
    demo = app.build_app()
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, **options)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        out = folder or HERE / "screenshots"
        out.mkdir(parents=True, exist_ok=True)
        (everything if folder else readme)(browser, url, out)
        browser.close()
    demo.close()


if __name__ == "__main__":
    main()
