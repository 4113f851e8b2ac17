"""Builds the page and serves it. Gradio carries events and requests; all that is seen is `static/*.js`."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import socket
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio: it reads it once

import gradio as gr
from starlette.middleware import Middleware

from kvviz.errors import InputError
from kvviz.methods.own import load_plugins
from kvviz.settings import server_port, settings
from kvviz.ui import assets
from kvviz.ui.api import compare_endpoint
from kvviz.ui.cause_desk import CauseDesk
from kvviz.ui.desk import Desk
from kvviz.ui.engine import Engine
from kvviz.ui.evidence import Evidence
from kvviz.ui.export_views import Exports
from kvviz.ui.form import form
from kvviz.ui.grid_desk import GridDesk
from kvviz.ui.guard import LOCAL, Guard, Packed
from kvviz.ui.mix_desk import MixDesk
from kvviz.ui.replies import first_replies
from kvviz.ui.runs import RunStore
from kvviz.ui.sweeps import listed
from kvviz.ui.talk_desk import TalkDesk
from kvviz.ui.views import answer, boot
from kvviz.ui.visitors import visitor

VIEW: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
# Announces each new status of a run to the page; its text never becomes markup.
BUS_JS = """
watch('value', () => document.dispatchEvent(new CustomEvent('kv:status', {detail: props.value})));
"""


def build_app(engine: Any = None, store: RunStore | None = None) -> gr.Blocks:
    """The page as Gradio Blocks. `engine` and `store` can be replaced in tests."""
    engine = Engine() if engine is None else engine
    limits = settings()
    store = RunStore(limits.runs, limits.runs_bytes) if store is None else store
    exports = Exports()
    gr.set_static_paths([str(exports.folder)])
    desk = Desk(engine, store, limits)
    causes, talk, mixes, evidence = CauseDesk(desk), TalkDesk(desk), MixDesk(desk), Evidence(store)
    grids = GridDesk(desk, evidence.sweeps)

    def ask(body: dict, request: gr.Request) -> dict:
        """One view's data, for the page's own scripts, or what its form asks."""
        for desks in (desk, evidence, grids):
            told = desks.answer(body) if isinstance(body, dict) else None
            if told is not None:
                return told
        return answer(store, exports, body, visitor(request))

    with gr.Blocks(title="kvviz", delete_cache=(3600, 3600)) as demo:
        gr.HTML(html_template='<div id="kv-head" class="kv"></div>', apply_default_css=False,
                elem_id="kv-head-block")  # fmt: skip
        page = gr.HTML(
            html_template='<div id="kv-app" class="kv" aria-busy="true"></div>',
            js_on_load=assets.script(),
            server_functions=[ask],
            boot=json.dumps({**boot({spec.id: spec.label for spec in engine.methods()}),
                             "form": form(engine, limits), "sweeps": listed()}),
            apply_default_css=False,
            elem_id="kv-page-block",
        )
        bus = gr.HTML(
            value="", html_template="<span></span>", js_on_load=BUS_JS, elem_id="kv-bus-block"
        )

        # The desk keeps its own line: it can say how long it is.
        for event, handler in (("run_form", desk.run), ("decode_more", desk.decode_more),
                               ("try_again", desk.try_again), ("open_saved", desk.open_saved),
                               ("find_cause", causes.find), ("branch", causes.branch),
                               ("ask_more", talk.ask), ("decode_mix", mixes.decode)):
            asked = getattr(page, event)(handler, None, [bus], trigger_mode="once", **VIEW)
            asked.failure(desk.broken, None, [bus], **VIEW)
        grid = page.run_grid(grids.fill, None, [bus], trigger_mode="once", **VIEW)
        grid.failure(grids.broken, None, [bus], **VIEW)
        page.calibrate(desk.calibrate, None, [bus], trigger_mode="once", **VIEW)
        page.stop_calibration(desk.stop_calibration, None, None, queue=False, api_visibility="private")
        page.stop_run(desk.stop, None, None, queue=False, api_visibility="private")
        page.stop_grid(grids.stop, None, None, queue=False, api_visibility="private")
        demo.load(desk.arrive, None, None, **VIEW)
        demo.unload(desk.leave)
        gr.api(compare_endpoint(desk), api_name="compare", concurrency_limit=None)
    demo.queue(max_size=None, default_concurrency_limit=None)
    return demo


def launch_options() -> dict[str, Any]:
    """How the page is served: nothing is recorded, nothing is fetched from elsewhere."""
    limit = settings().max_upload_bytes
    return {
        "server_name": os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        "server_port": server_port(),
        "head": assets.head() + _META,
        "app_kwargs": {"routes": assets.routes(), "openapi_url": None},  # Gradio's own page describes the API
        "theme": gr.themes.Base(primary_hue="teal", font=["system-ui", "sans-serif"],
                                font_mono=["ui-monospace", "monospace"]),
        "max_file_size": max(limit, 64 * 2**20),  # saved runs are larger than documents
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "footer_links": ["api"],
        "show_error": False,
        "mcp_server": _mcp(),
        "max_threads": 40 + settings().queue_size,  # whoever waits in the line takes one
    }  # fmt: skip


def _mcp() -> bool:
    """Whether agents are served as well: only on request, and only where the extra is installed."""
    if not settings().mcp:
        return False
    if importlib.util.find_spec("mcp") is None:
        raise InputError("KVVIZ_MCP=1 needs an extra package: pip install 'gradio[mcp]'.")
    return True


_META = '<meta name="description" content="What does a language model forget when its cache is cut?">'


def warm(store: RunStore) -> None:
    """Make in the background what the first visit fetches: what the first stored run opens with, and the
    scripts as they are sent."""
    import threading

    for make in (lambda: first_replies(store), assets.pack):
        threading.Thread(target=make, daemon=True).start()


def launch(host: str | None = None, port: int | None = None, **options: Any) -> Any:
    """Build and serve the page; `options` (of Gradio's launch) win over the defaults."""
    options |= {k: v for k, v in (("server_name", host), ("server_port", port)) if v is not None}
    options = {**launch_options(), **options}
    check_place(options["server_name"], options["server_port"])
    options = guarded(options)
    limits = settings()
    load_plugins(limits.plugins)
    store = RunStore(limits.runs, limits.runs_bytes)
    warm(store)
    return build_app(store=store).launch(**options)


def guarded(options: dict[str, Any]) -> dict[str, Any]:
    """Launch options with the guard in front of every request, and answers packed."""
    limits = settings()
    local = options["server_name"] in LOCAL and not (limits.public or options.get("share"))
    uploads, largest = Path(gr.utils.get_upload_folder()), options["max_file_size"]
    guard = Middleware(Guard, limits=limits, local=local, uploads=uploads, largest_file=largest)
    return {**options, "app_kwargs": {**options["app_kwargs"], "middleware": [guard, Middleware(Packed)]}}


def check_place(host: str, port: int) -> None:
    """InputError where the page cannot be served at this host and port."""
    if not 1 <= port <= 65535:
        raise InputError(f"A port lies between 1 and 65535, not {port}.")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as place:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(address)
    except (OSError, UnicodeError) as error:
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        why = "is in use" if taken else f"cannot be used ({getattr(error, 'strerror', None) or error})"
        other = "Choose another one: kvviz serve --port 7861, or GRADIO_SERVER_PORT."
        raise InputError(f"Port {port} at {host} {why}. {other}") from None
