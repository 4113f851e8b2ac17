"""How a server answers while it computes: light controls beside a run of the embedded model, and Stop.
Part of `python -m kvviz bench app`.

The server is a process of its own, asked over the loopback as the page asks it.
"""

from __future__ import annotations

import statistics
import threading
import time
from types import SimpleNamespace
from typing import Any

from benchmarks.peers import METHODS
from benchmarks.visit import server
from kvviz.settings import settings

SERVE = "from kvviz.cli import main; main(['serve', '--port', '{port}'])"
TEXT = "The keeper of the tower wrote down the wind, the tide and every ship that passed. " * 120
QUESTION = "What did the keeper write down?"
STORED = "stored-1-lighthouse-ledger"
LIMIT_S = 1.0  # of a light control while a run is on, and of Stop


def beside_a_run() -> dict[str, Any]:
    """{"run_s": seconds of the run, view: {"median_s", "worst_s", "asked"}}."""
    import httpx
    from gradio_client import Client

    took: dict[str, list[float]] = {"cards": [], "document": [], "why_card": []}
    with server(SERVE) as url, httpx.Client(timeout=60) as client:
        config = client.get(f"{url}config").json()
        part = next(c for c in config["components"] if "ask" in str(c.get("props", {}).get("server_fns")))

        def ask(view: str, token: int) -> None:
            body = {"view": view, "run": STORED, "sel": {"tok": [token, token + 1]}, "args": {}}
            sent = {"data": body, "component_id": part["id"], "fn_name": "ask", "session_hash": "x"}
            client.post(f"{url}gradio_api/component_server", json=sent).raise_for_status()

        for view in took:  # read from disk once
            ask(view, 0)
        peer = Client(url, verbose=False)
        peer.predict("A short text.", "Short?", ["snapkv"], ["50%"], api_name="/compare")  # loads the model
        began = time.perf_counter()
        job = peer.submit(TEXT, QUESTION, list(METHODS), ["50%", "20%", "5%"], api_name="/compare")
        turn = 0
        while not job.done():
            for view, seconds in took.items():
                started = time.perf_counter()
                ask(view, turn)
                seconds.append(time.perf_counter() - started)
            turn += 1
            time.sleep(0.2)  # somebody who clicks fast
        run_s = time.perf_counter() - began
        if error := job.outputs()[-1].get("error"):
            raise RuntimeError(error)
    rows = {
        view: {"median_s": statistics.median(all_), "worst_s": max(all_), "asked": len(all_)}
        for view, all_ in took.items()
    }
    return {"run_s": run_s, **rows}


def stops(times: int) -> dict[str, float]:
    """{stage: longest seconds from Stop until the run has ended}, the embedded model at work."""
    from kvviz.ui.desk import Desk
    from kvviz.ui.engine import Engine
    from kvviz.ui.runs import RunStore

    desk = Desk(Engine(), RunStore(), settings({}))
    return {
        stage: max(_stopped(desk, stage, number) for number in range(times))
        for stage in ("prefill", "decode")
    }


def _stopped(desk, stage: str, number: int) -> float:
    visitor = SimpleNamespace(session_hash=f"{stage}{number}", cookies={}, client=None)
    asked = {"document": f"{number}. {TEXT}", "question": QUESTION, "methods": list(METHODS)}
    run = desk.run(SimpleNamespace(_data={**asked, "budgets": "20%"}), visitor)
    while f'"stage": "{stage}"' not in next(run):
        pass
    at: list[float] = []

    def stop() -> None:
        at.append(time.perf_counter())
        desk.stop(visitor)

    threading.Timer(0.1, stop).start()  # in the middle of a step
    last = list(run)[-1]
    if '"state": "stopped"' not in last:
        raise RuntimeError(f"not stopped: {last[:200]}")
    return time.perf_counter() - at[0]


def shown(beside: dict[str, Any], stop: dict[str, float]) -> str:
    """Both as lines of text."""
    lines = [f"\nbeside a run of {beside['run_s']:.1f} s (limit {LIMIT_S} s a control, and of Stop)"]
    for view, row in beside.items():
        if view != "run_s":
            said = f"median {row['median_s']:.3f} s  worst {row['worst_s']:.3f} s  asked {row['asked']} times"
            lines.append(f"{view:22} {said}")
    lines += [f"{'Stop while ' + stage:22} longest {seconds:.3f} s" for stage, seconds in stop.items()]
    return "\n".join(lines)
