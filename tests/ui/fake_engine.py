"""An engine without a model: the page's handlers and browser tests run on it."""

from __future__ import annotations

import dataclasses
import time

from synthetic import LABELS, synthetic_comparison, with_findings, with_turn

from kvviz.errors import Cancelled, InputError
from kvviz.methods import ArtefactSpec, get_method
from kvviz.results.kept import KeptSet
from kvviz.results.points import Point
from kvviz.types import Event


class FakeEngine:
    """Streams the events of a run over `steps` steps of `pause` seconds, stops when asked. A question with
    "slow" in it takes six times as long."""

    def __init__(self, steps: int = 4, pause: float = 0.02, n: int = 160, layers: int = 4):
        self.steps, self.pause, self.n, self.layers = steps, pause, n, layers
        self.asked = []
        self.ended = []

    def methods(self):
        """Real rows, but for one that needs a calibrated file."""
        ids = ("snapkv", "criticalkv", "adakv", "dropkv", "keydiff", "streaming_llm")
        rows = [get_method(m) for m in ids]
        needs_file = ArtefactSpec("dropkv", lambda info: {}, 1, "text")
        return [dataclasses.replace(m, artefact=needs_file) if m.id == "dropkv" else m for m in rows]

    def unavailable(self, model_id, dtype):
        return {"dropkv": "DropKV was not calibrated for tiny."} if model_id == "tiny" else {}

    def calibrate(self, model, dtype, name, cancel, progress):
        for step in range(self.steps):
            if cancel.is_set():
                raise Cancelled("Stopped.")
            progress(f"step {step}", step / self.steps)
            time.sleep(self.pause)

    def experiment(self, ask, comparison, variant, edits, same_size, cancel, progress):
        from kvviz.engine.experiment import SEEDS, edited_masks

        yield Event("decode", "Writing 5 answers", 1, 2)
        masks = edited_masks(variant, edits, same_size, comparison.model)
        tried = []
        for name, mask in zip(("edit", *SEEDS), masks):
            point = variant.packed
            kept = KeptSet.pack(mask, point.kept.protected(), point.entries)
            selection = dataclasses.replace(point, kept=kept)
            text = comparison.full.text if name == "edit" else variant.text
            tried.append(dataclasses.replace(variant, method=f"x+{name}", selection=selection, text=text))
        result = dataclasses.replace(comparison, variants=tried)
        yield Event("done", "Done", 1, 1, 0.0, result=result)

    def mix(self, ask, comparison, mix, budget, cancel, progress):
        from kvviz.engine.mix import mixed
        from kvviz.results.mix import label_of, name_in

        name = name_in(comparison, mix)
        for step in range(self.steps):
            time.sleep(self.pause)
            yield Event("decode", f"Step {step}", step, self.steps)
        kept = Point.pack(mixed(comparison, mix, budget))
        like = comparison.variants[0]
        said = dataclasses.replace(
            like, method=name, label=label_of(name), budget=budget, options=kept.options, selection=kept,
            text="cancelled" if cancel.is_set() else "It is 58213.",
            finished="cancelled" if cancel.is_set() else like.finished,
        )  # fmt: skip
        result = dataclasses.replace(comparison, variants=[said])
        yield Event("done", "Stopped." if cancel.is_set() else "Done", 1, 1, 0.0, result=result)

    def find_cause(self, ask, comparison, variant, cancel, progress):
        found = with_findings(comparison, variant.method, variant.budget).causes[variant.key]
        for step in range(self.steps):
            if cancel.is_set():
                found = dataclasses.replace(found, taken_out=[], rescue=None, stopped=True)
                break
            time.sleep(4 * self.pause)
            yield Event("cause", f"Putting back head by head, {step}", step, self.steps, 30.0)
        yield Event("done", "Done", 1, 1, 0.0, result=comparison.with_causes(found))

    def branch(self, ask, comparison, answer, step, index, cancel, progress):
        token = comparison.fork.paths[answer].steps[step].likeliest[index][0]
        row = {"key": answer, "step": step, "token": token, "text": "It is elsewhere", "verdict": "wrong"}
        settings = {**comparison.settings, "branches": [row]}
        yield Event("done", "Done", 1, 1, 0.0, result=dataclasses.replace(comparison, settings=settings))

    def ask_more(self, ask, comparison, question, expected, fresh, cancel, progress):
        c = comparison
        for step in range(self.steps * (6 if "slow" in question else 1)):
            if cancel.is_set():
                yield Event("done", "Stopped.", 1, 1, 0.0, result=c)
                return
            time.sleep(self.pause)
            yield Event("decode", f"Step {step}", step, self.steps, None, {"full@1.0": f"It is {step}"})
        yield Event("done", "Done", 1, 1, 0.0, result=with_turn(c, question, expected, fresh))

    def grid(self, grid, cancel, progress):
        from many import sweep_rows

        lengths, depths = grid.lengths, grid.depths
        places = [(n, d) for n in lengths for d in depths]
        items = [
            {"id": f"item-{i}", "document": "A text.", "question": "What?", "answers": ["58213"],
             "task": "needle", "asked_tokens": n, "depth": d, "reached": d + 0.01}
            for i, (n, d) in enumerate(places)
        ]  # fmt: skip
        yield Event("prefill", "Reading the first text", 0, len(items), result={"items": items})
        for done, item in enumerate(items, 1):
            time.sleep(4 * self.pause)
            if cancel.is_set():
                raise Cancelled("Stopped.")
            rows = [r for r in sweep_rows(n=len(items)) if r["item"] == item["id"]]
            rows = [{**r, "length": item["asked_tokens"], "depth": item["depth"], "knew": ""} for r in rows]
            cell = {"rows": rows, "about": {"weights": "abc", "machine": "secret"}}
            yield Event("prefill", f"{done} of {len(items)} texts", done, len(items), result=cell)

    def stream(self, ask, cancel, progress, into=None):
        self.asked.append(ask)
        progress("Loading the model", 0.5)
        if "fail" in ask.question:
            raise InputError("This document has 9,310 tokens; tiny reads 8,192.")
        if "break" in ask.question:
            raise RuntimeError("a fault")
        try:
            yield Event("prefill", "Reading the document, 10 of 20 tokens", 10, 20, 1.0)
            for step in range(self.steps * (6 if "slow" in ask.question else 1)):
                if cancel.is_set():
                    break
                time.sleep(self.pause)
                texts = {f"{m}@{b}": f"The {step}" for m in ask.methods for b in ask.budgets}
                yield Event("decode", f"Step {step}", step, self.steps, None, texts)
            result = synthetic_comparison(
                n=self.n, L=self.layers, budgets=tuple(ask.budgets),
                methods=tuple(m for m in ask.methods if m in LABELS),
            )  # fmt: skip
            for question, expected in ask.questions if into is None else ():
                result = with_turn(result, question, expected, True)
            yield Event("done", "Done", 1, 1, 0.0, result=result)
        finally:
            self.ended.append(cancel.is_set())
