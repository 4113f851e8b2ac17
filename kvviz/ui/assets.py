"""What the page needs besides Python: its modules and styles, and plotly.js of the plotly package.

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

from starlette.responses import FileResponse, Response
from starlette.routing import Route

STATIC = Path(__file__).with_name("static")
ROUTE = "kvviz-page"
# What the page's modules may trigger: Gradio knows an event by its name in the component's script.
EVENTS = ("run_form", "run_grid", "open_saved", "decode_more", "try_again", "find_cause", "branch",
          "ask_more", "calibrate", "stop_calibration", "stop_run")
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


@cache
def modules() -> list[str]:
    """The page's modules, as paths below STATIC."""
    return sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js"))


@cache
def base() -> str:
    """The address of the modules, relative to the page."""
    content = hashlib.sha256(b"".join((STATIC / name).read_bytes() for name in modules()))
    return f"{ROUTE}/{content.hexdigest()[:12]}"


@cache
def plotly_address() -> str:
    """The address of plotly.js, relative to the page."""
    import plotly

    return f"{ROUTE}/plotly-{plotly.__version__}.js"


def routes() -> list[Any]:
    """Routes that serve modules and plotly.js, for Gradio's `app_kwargs`."""

    async def plotly(request: Any) -> FileResponse:
        return FileResponse(plotly_js(), media_type="text/javascript", headers=FOREVER)

    async def module(request: Any) -> Response:
        name = request.path_params["name"]
        if name not in modules():
            return Response(status_code=404)
        return FileResponse(STATIC / name, media_type="text/javascript", headers=FOREVER)

    # Routes, no mounted folder: that would look for its files below a proxy's path.
    return [Route(f"/{plotly_address()}", plotly), Route(f"/{base()}/{{name:path}}", module)]


@cache
def script() -> str:
    """The body of `js_on_load`: it starts the page's modules with what Gradio hands over."""
    return f"""
const at = path => new URL(path, document.baseURI).href;
const events = {json.dumps(EVENTS)};
import(at({json.dumps(base() + "/main.js")})).then(page => page.start({{
  element, props, server, plotlyUrl: at({json.dumps(plotly_address())}),
  trigger: (event, data) => {{ if (events.includes(event)) trigger(event, data); }},
}}));
"""


@cache
def head() -> str:
    """Styles, and what is fetched early: every module at once, and plotly.js, the largest file."""
    links = "".join(f'<link rel="modulepreload" href="{base()}/{name}">' for name in modules())
    early = f"window.kvPlotly = fetch('{plotly_address()}').then(r => r.ok ? r.text() : '').catch(() => '');"
    return f"<style>{style()}</style>{links}<script>{early}</script>"


@cache
def style() -> str:
    """The page's style sheet, colours of the figures included."""
    from kvviz.figures.palette import css

    sheets = ("kvviz.css", "cause.css", "story.css", "evidence.css")  # later rules go before earlier ones
    return "\n".join([css(), *((STATIC / name).read_text(encoding="utf-8") for name in sheets)])


def plotly_js() -> Path:
    """plotly.js as shipped with the installed plotly package: nothing is fetched from elsewhere."""
    return Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
