"""What the page needs besides Python: its modules in one file, its styles, and plotly.js.

They are served below an address that names their content, so a browser keeps them for good and a new
version is fetched at once. Every address is relative to the page: a proxy may add a path or a port.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import brotli
from starlette.responses import Response
from starlette.routing import Route

from kvviz.ui import ahead
from kvviz.ui.bundle import bundled
from kvviz.ui.replies import first_replies

STATIC = Path(__file__).with_name("static")
VENDOR = Path(__file__).with_name("vendor")
ROUTE = "kvviz-page"
FIRST = f"{ROUTE}/first-run.json"
# What the page's modules may trigger: Gradio knows an event by its name in the component's script.
EVENTS = ("run_form", "run_grid", "open_saved", "decode_more", "try_again", "find_cause", "branch",
          "ask_more", "decode_mix", "calibrate", "stop_calibration", "stop_run", "stop_grid")
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
WHOLE_ONLY = "scattergl"  # the one kind of trace that a figure of ours has and the small plotly.js lacks


@cache
def modules() -> dict[str, str]:
    """The page's modules: {path below STATIC: source}."""
    paths = sorted(STATIC.rglob("*.js"))
    return {path.relative_to(STATIC).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def page_js() -> str:
    """All modules as one, which exports `start` and, by their paths, the `modules`."""
    return bundled(modules(), "main.js", "start")


@cache
def small_plotly_js() -> str:
    """plotly.js without maps, 3D and WebGL: a third of the whole, and of the time a browser needs for it.

    As published for plotly.js 4.1.1 (npm: plotly.js-cartesian-dist-min), MIT licence.
    """
    return (VENDOR / "plotly-cartesian.min.js").read_text(encoding="utf-8")


@cache
def plotly_js() -> str:
    """The whole plotly.js as shipped with the installed plotly package."""
    return (Path(str(files("plotly"))) / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _module(library: str) -> str:
    """plotly.js as a module of its own, so no other plotly.js on the page can interfere."""
    return f"const module = {{exports: {{}}}};\n{library}\nexport default module.exports;\n"


@cache
def _served() -> dict[str, str]:
    """{address relative to the page: source} of all scripts."""
    sources = {"page": page_js(), "plotly": _module(small_plotly_js()), "plotly-whole": _module(plotly_js())}
    digest = {name: hashlib.sha256(source.encode()).hexdigest()[:12] for name, source in sources.items()}
    return {f"{ROUTE}/{name}-{digest[name]}.js": source for name, source in sources.items()}


def addresses() -> list[str]:
    """Where the page's modules, the small and the whole plotly.js are, relative to the page."""
    return list(_served())


@cache
def early() -> str:
    """The page's `Link` header: what a browser fetches while Gradio's own scripts put the page together."""
    page, small, _ = addresses()
    own = [f"assets/{name}" for name in ahead.needed()]
    kinds = {True: "rel=preload; as=style; crossorigin", False: "rel=modulepreload"}
    links = [f"<{name}>; {kinds[name.endswith('.css')]}" for name in (*own, page)]
    links.append(f"<{FIRST}>; rel=preload; as=fetch; crossorigin=anonymous")
    return ", ".join([*links, f"<{small}>; rel=modulepreload"])  # plotly.js is read behind the first picture


def routes() -> list[Any]:
    """Routes that serve the scripts and what the first run opens with, for Gradio's `app_kwargs`."""

    def script_at(address: str) -> Any:
        def serve(request: Any) -> Response:
            headers = {**FOREVER, "Vary": "Accept-Encoding"}
            if "br" not in request.headers.get("accept-encoding", ""):
                return Response(_served()[address], media_type="text/javascript", headers=headers)
            headers["Content-Encoding"] = "br"
            return Response(_compressed(address), media_type="text/javascript", headers=headers)

        return serve

    def first(request: Any) -> Response:
        return Response(first_replies(), media_type="application/json", headers={"Cache-Control": "no-cache"})

    # Routes, no mounted folder: that would look for its files below a proxy's path.
    scripts = [Route(f"/{address}", script_at(address)) for address in addresses()]
    return [*scripts, Route(f"/{FIRST}", first)]


def pack() -> None:
    """Compress what every first visit fetches, before anybody asks for it."""
    for address in addresses()[:2]:
        _compressed(address)


@cache
def _compressed(address: str) -> bytes:
    """A script as it is sent: compressed once, not for each visitor again."""
    return brotli.compress(_served()[address].encode(), quality=9)


@cache
def script() -> str:
    """The body of `js_on_load`: it starts the page's modules with what Gradio hands over."""
    page, small, whole = addresses()
    return f"""
const at = path => new URL(path, document.baseURI).href;
const events = {json.dumps(EVENTS)};
import(at({json.dumps(page)})).then(page => page.start({{
  element, props, server, plotly: {{small: at({json.dumps(small)}), whole: at({json.dumps(whole)})}},
  first: at({json.dumps(FIRST)}),
  trigger: (event, data) => {{ if (events.includes(event)) trigger(event, data); }},
}}));
"""


def head() -> str:
    """The page's styles, for its head."""
    return f"<style>{style()}</style>"


@cache
def style() -> str:
    """The page's style sheet, colours of the figures included."""
    from kvviz.figures.palette import css

    sheets = ("kvviz.css", "cause.css", "story.css", "evidence.css")  # later rules go before earlier ones
    return "\n".join([css(), *((STATIC / name).read_text(encoding="utf-8") for name in sheets)])
