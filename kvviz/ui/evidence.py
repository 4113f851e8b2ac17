"""Data requests of the page Evidence: a sweep and what is looked at in it, checked; JSON-ready replies."""

from __future__ import annotations

import base64
import math
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvviz.engine.ask import Ask
from kvviz.errors import InputError, KvvizError
from kvviz.figures.evidence import EVIDENCE, SweepFigure, figure_of_sweep
from kvviz.framing import Framing
from kvviz.identity import Budget
from kvviz.results import evidence as said
from kvviz.results import words as text
from kvviz.results.choose import choose
from kvviz.results.claims import claims, correction
from kvviz.results.comparison import FULL
from kvviz.results.evidence import SLICES, Pick
from kvviz.results.scoreboard import MEASURES
from kvviz.results.sweeps import Sweep, sweep_zip
from kvviz.ui import asks
from kvviz.ui.chosen import whole
from kvviz.ui.figure_views import MOST_ROWS, table_of
from kvviz.ui.runs import RunStore
from kvviz.ui.sweeps import SweepStore
from kvviz.ui.uploads import uploaded

PREFIX = "evidence"
USUAL_QUALITY = 0.9


class Evidence:
    """One per app: opened sweeps, and the runs among them that were opened in the lenses."""

    def __init__(self, runs: RunStore, sweeps: SweepStore | None = None):
        self.runs, self.sweeps = runs, SweepStore() if sweeps is None else sweeps
        self._opened: dict[tuple[str, str], str] = {}  # (sweep, name of the kept run): run id
        self._opening = threading.Lock()
        self._views: dict[str, Callable[[str, Sweep, Pick, dict[str, Any]], dict[str, Any]]] = {
            "evidence": self.meta,
            "evidence_choose": self.choose,
            "evidence_claims": self.claims,
            "evidence_apart": self.apart,
            "evidence_item": self.item,
            "evidence_file": self.file,
            **{row.id: self._figure(row) for row in EVIDENCE},
        }

    def answer(self, body: Any) -> dict[str, Any] | None:
        """The reply to {view, run: id of the sweep, sel, args}; None where the view is not of this page.
        Nothing in it is trusted."""
        body = body if isinstance(body, dict) else {}
        name = str(body.get("view"))
        args = body.get("args") if isinstance(body.get("args"), dict) else {}
        if name != "evidence_open" and name not in self._views:
            return None
        try:
            if name == "evidence_open":
                return {"id": self.sweeps.open(uploaded(args.get("path")))}
            key = str(body.get("run"))
            sweep = self.sweeps.get(key)
            return self._views[name](key, sweep, picked(sweep, body.get("sel")), args)
        except KvvizError as error:
            return {"error": str(error)}
        except Exception:  # a fault of ours: the log has it, the visitor keeps the rest of the page
            traceback.print_exc()
            return {"error": "This view could not be drawn. The rest of the page is up to date."}

    def meta(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """What can be chosen, what is chosen, and how much there is."""
        rows = sweep.of(pick.model, pick.protocol)
        names, found = said.methods(sweep), said.choices(sweep, (pick.model, pick.protocol))
        hidden = rows.depth.notna() & (rows.method == FULL) & rows.right.notna()
        return {
            "id": key,
            "title": sweep.title,
            "models": list(dict.fromkeys(m for m, _ in sweep.parts)),
            "protocols": [[p, said.protocol_words(p)] for m, p in sweep.parts if m == pick.model],
            "methods": [[m, names[m]] for m in found.methods],
            "budgets": [[name, f"{name} kept"] for name in found.budgets],
            "measures": [[m, MEASURES[m][0]] for m in found.measures],
            "slices": list(SLICES.items()),
            "sel": vars(pick),
            "values": said.values_words(sweep, pick),
            "verdict": said.verdict(sweep, pick) if pick.b else "",
            "facts": said.facts_words(sweep, pick),
            "lead": said.lead(sweep, pick),
            "many": said.how_many(sweep, pick),
            "date": str(sweep.manifest.get("date") or "")[:10],
            "command": _command(sweep.manifest.get("command")),
            "kept_runs": len(sweep.runs),
            "needles": bool(hidden.any()),
            "grid": bool(sweep.manifest.get("grid")),
        }

    def choose(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """The cheapest method and budget that keeps a quality, and every other one beside it."""
        found = choose(_part(sweep, pick), _share(args.get("quality"), USUAL_QUALITY))
        if not found:
            raise InputError("This table has no method beside the full cache.")
        names, best = said.methods(sweep), found[0]
        rows = [
            {
                "method": names[c["method"]], "budget": c["budget"],
                "still right": text.share(c["kept"]), "95 % interval": _interval(c["interval"]), "n": c["n"],
                "keeps it": _keeps(c, best["quality"]),
            }
            for c in best["candidates"]
        ]  # fmt: skip
        chosen = best["chosen"]
        sentence = best["sentence"]
        for method, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
            sentence = sentence.replace(f"{method} at ", f"{name} at ")
        return {"sentence": sentence, "rows": rows, "quality": best["quality"],
                "chosen": chosen and {"a": chosen["method"], "budget": chosen["budget"]}}  # fmt: skip

    def claims(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """The papers' headlines beside what these items give. Corrected over all of the sweep's claims."""
        found = claims(sweep.table, sweep.best_sets)
        mine = [c for c in found if (c["model"], c["protocol"]) == (pick.model, pick.protocol)]
        return {"claims": mine, "correction": correction(found), "protocol": pick.protocol}

    def apart(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """Items that say nothing about a method."""
        names = said.methods(sweep)
        found = said.apart(sweep, pick)
        first = whole(args.get("from"), 0, max(0, len(found) - 1)) or 0
        rows = [
            {**row, "right_all_the_same": [names[m] for m in row["right_all_the_same"]]}
            for row in found[first : first + MOST_ROWS]
        ]
        return {"rows": rows, "of": len(found), "from": first, "page": MOST_ROWS}

    def item(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """One item as a run to look at, where the sweep kept it, else as the fields that run it again."""
        item = str(args.get("item"))
        rows = sweep.of(pick.model, pick.protocol)
        own = rows[rows["item"] == item]
        if own.empty:
            raise InputError("This sweep has no such item.")
        run = self._kept_run(key, sweep, (pick.model, pick.protocol, item))
        chosen = {"a": pick.a, "b": pick.b, "budget": float(said.budgets(rows).get(pick.budget, 1.0))}
        if run is not None:
            return {"run": run, "sel": chosen, "item": item}
        given = sweep.items.get(item)
        if given is None:
            raise InputError(
                f"This sweep kept neither a run nor the text of {text.shortened(item, 40)}: open the whole "
                "folder (as a zip), not its table alone."
            )
        fields = asks.form_fields(_asked(sweep, pick, rows, given))
        return {"fields": fields, "sel": chosen, "item": item, "here": sweep.here}

    def file(self, key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
        """The sweep's table, texts and settings as a zip that this page opens again, in base64."""
        data = base64.b64encode(sweep_zip(sweep)).decode()
        return {"name": "kvviz-needle-grid.zip", "data": data}

    def _kept_run(self, key: str, sweep: Sweep, which: tuple[str, str, str]) -> str | None:
        """The id of an item's kept run among the page's runs; opened once."""
        name = sweep.runs.get(which)
        if name is None:
            return None
        with self._opening:
            have = self._opened.get((key, name))
            if have is not None and self.runs.holds(have):
                return have
            data = sweep.run_of(which)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "run.zip"
                path.write_bytes(data or b"")
                run = self.runs.open(path, "", f"{sweep.title}: {text.shortened(which[2], 40)}")
            self._opened[key, name] = run.id
            return run.id

    @staticmethod
    def _figure(row: SweepFigure) -> Callable[..., dict[str, Any]]:
        def show(key: str, sweep: Sweep, pick: Pick, args: dict[str, Any]) -> dict[str, Any]:
            table = row.table(sweep, pick)
            if rows := table_of(table, args):
                return rows
            return {"figure": figure_of_sweep(row, sweep, pick, table).to_json()}

        return show


def picked(sweep: Sweep, raw: Any) -> Pick:
    """What a browser says is looked at, every field forced into the sweep."""
    raw = {k: v for k, v in raw.items() if isinstance(v, str)} if isinstance(raw, dict) else {}
    parts = sweep.parts
    model, protocol = max(parts, key=lambda p: 2 * (p[0] == raw.get("model")) + (p[1] == raw.get("protocol")))
    found = said.choices(sweep, (model, protocol))
    known, usual = found.methods, found.usual
    a = raw.get("a") if raw.get("a") in known else usual.a
    b = raw.get("b") if raw.get("b") in known and raw.get("b") != a else None
    b = b or next((m for m in [usual.b, usual.a, *known] if m and m != a), None)
    budget = raw.get("budget") if raw.get("budget") in found.budgets else usual.budget
    measure = raw.get("measure") if raw.get("measure") in found.measures else usual.measure
    by = raw.get("by") if raw.get("by") in SLICES else "task"
    return Pick(model, protocol, str(measure), str(a), b, str(budget), str(by))


def _asked(sweep: Sweep, pick: Pick, rows: Any, item: dict[str, Any]) -> asks.Request:
    """What an item was asked for, of A and B at every budget; of a grid, whose texts are short, of all of its
    methods. Nothing of it is trusted: it is checked again before it is run."""
    settings = sweep.manifest.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    ask = Ask.of_settings(settings)
    methods = said.methods(sweep) if sweep.manifest.get("grid") else (pick.a, pick.b)
    new = item.get("max_new_tokens")
    model = sweep.manifest["models"][0] if sweep.here else pick.model  # tables do not say a file's place
    asked = ask.of(
        methods=[m for m in dict.fromkeys(methods) if m],
        budgets=[Budget.parse(name).value for name in said.budgets(rows)],
        max_new_tokens=new if type(new) is int and new > 0 else ask.max_new_tokens,
        expected=(item["answers"] or [None])[0],
    )
    return asks.Request(
        **vars(asked), document=item["document"], question=item["question"], model=model,
        protocol=pick.protocol, dtype=str(settings.get("dtype") or "auto"),
        framing=Framing(cue=str(item.get("cue") or "")),
    )  # fmt: skip


def _part(sweep: Sweep, pick: Pick) -> Any:
    t = sweep.table
    return t[(t.model == pick.model) & (t.protocol == pick.protocol)]


def _share(value: Any, otherwise: float) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        return otherwise
    return share if math.isfinite(share) and 0 < share <= 1 else otherwise


def _interval(found: list[float] | None) -> str:
    return said.DASH if found is None else f"{text.share(found[0])} to {text.share(found[1])}"


def _keeps(candidate: dict[str, Any], quality: float) -> str:
    if candidate["interval"] is None:
        return "no item tells"
    low, high = candidate["interval"]
    return "yes" if low >= quality else "no" if high < quality else "too few to tell"


def _command(given: Any) -> str:
    return " ".join(map(str, given))[:600] if isinstance(given, list) else ""
