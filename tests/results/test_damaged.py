"""Saved runs from a stranger: a lie about a size or a type is one sentence, told before it costs memory."""

from __future__ import annotations

import json
import resource
import zipfile

import numpy as np
import pytest
from synthetic import synthetic_comparison

from kvviz.errors import InputError
from kvviz.results import arrays
from kvviz.results.archive import FORMAT, load_comparison
from kvviz.results.story import Opening, Story

DAMAGED = "not a comparison saved by kvviz, or it is damaged"


def changed(c, path, change, form="zip"):
    """A saved run whose manifest was changed by hand."""
    if form == "json":
        manifest = json.loads(c.to_json())
        change(manifest)
        path.write_text(json.dumps(manifest))
        return path
    c.save(path)
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    files["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in files.items():
            new.writestr(name, content)
    return path


def put(*where, value):
    """A change of one value of the manifest: put("prompt", "n_compressible", value=5)."""

    def change(manifest):
        for key in where[:-1]:
            manifest = manifest[key]
        manifest[where[-1]] = value

    return change


@pytest.fixture(scope="module")
def c():
    made = synthetic_comparison(n=64, L=2, methods=("snapkv", "criticalkv"), budgets=(0.5, 0.2))
    made.story = Story(opening=Opening("snapkv", None, 0.2, (20, 25)))
    made.settings["edits"] = [
        {"method": "snapkv", "budget": 0.2, "same_size": True, "name": "snapkv+edit1",
         "edits": [{"kind": "pin", "start": 1, "end": 3, "layer": None, "head": 0}]}
    ]  # fmt: skip
    return made


EDIT = ("settings", "edits", 0, "edits", 0)
LIES = {
    "more tokens than there are": put("prompt", "n_compressible", value=50_000_000),
    "fewer tokens": put("prompt", "n_compressible", value=40),
    "no tokens": put("prompt", "n_compressible", value=-5),
    "tokens in words": put("prompt", "n_compressible", value="64"),
    "true tokens": put("prompt", "n_compressible", value=True),
    "a billion layers": put("model", "n_layers", value=10**9),
    "another layer": put("model", "n_layers", value=3),
    "another head": put("model", "n_kv_heads", value=6),
    "heads that do not divide": put("model", "n_query_heads", value=7),
    "windows of other layers": put("model", "windows", value=[None]),
    "a token less": lambda m: m["prompt"]["tokens"].pop(),
    "an offset less": lambda m: m["prompt"]["offsets"].pop(),
    "offsets beyond the document": put("prompt", "offsets", 5, value=[0, 10**9]),
    "a token that is no text": put("prompt", "tokens", 5, value=5),
    "a document that is none": put("prompt", "document", value=None),
    "a span beyond the prompt": put("prompt", "document_span", value=[0, 10**6]),
    "a time that is none": put("prompt", "now", value="'); import os; ('"),
    "another protocol": put("prompt", "protocol", value="none"),
    "a hundred thousand stops": put("stops", value=[i / 100_000 for i in range(1, 100_000)]),
    "stops out of order": put("stops", value=[0.5, 0.1]),
    "no such twin": lambda m: m["same"].update(input_ids="nothing"),
    "a budget that is none": put("variants", 0, "budget", value="0.2; import os"),
    "a budget of nothing": put("variants", 0, "budget", value=0),
    "a text that is none": put("variants", 0, "text", value={"html": "<b>"}),
    "evictions that are none": put("variants", 0, "evictions", value="many"),
    "options that are none": put("variants", 0, "options", value=[1]),
    "a mark without a name": put("marks", 0, "name", value=None),
    "a mark beyond the text": put("marks", 0, "end", value=10**9),
    "an opening with marks": put("settings", "opening", "marks", value="abc"),
    "an opening elsewhere": put("settings", "opening", "tok", value=[5]),
    "an opening that is none": put("settings", "opening", value=[1, 2]),
    "code for a start": put(*EDIT, "start", value="__import__('os').system('true')"),
    "code for a layer": put(*EDIT, "layer", value="0); import os; ("),
    "an edit of another kind": put(*EDIT, "kind", value="pin'"),
    "an edit past the last layer": put(*EDIT, "layer", value=2),
    "methods that are none": put("settings", "methods", value=["snapkv"]),
    "a temperature in words": put("settings", "temperature", value="hot"),
    "an experiment of numbers": put("settings", "experiment", value={"rows": [{"name": 1}]}),
    "places that are none": put("settings", "places", value={"found": {"snapkv": {"0.1": "yes"}}}),
    "an ask that is none": put("settings", "ask", value=["snapkv"]),
    "an ask without end": put("settings", "ask", value={"max_new_tokens": "many"}),
    "notes that are none": put("notes", value=None),
    "a list": lambda m: m.clear(),
}


@pytest.mark.parametrize("form", ["zip", "json"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_the_manifest_is_one_sentence(c, lie, form, tmp_path):
    path = changed(c, tmp_path / f"run.{form}", LIES[lie], form)
    with pytest.raises(InputError, match=DAMAGED):
        load_comparison(path)


@pytest.mark.parametrize("form", ["zip", "json"])
def test_the_same_run_unchanged_opens(c, form, tmp_path):
    again = load_comparison(changed(c, tmp_path / f"run.{form}", lambda m: None, form))
    assert again.settings == c.settings and again.n == 64


@pytest.mark.parametrize("form", ["zip", "json"])
def test_a_newer_format_is_said_first(c, form, tmp_path):
    def newer(manifest):
        manifest["format"] = FORMAT + 1
        manifest["prompt"] = manifest["arrays"] = "written another way"

    with pytest.raises(InputError, match=r"saved by a newer kvviz .* Update kvviz"):
        load_comparison(changed(c, tmp_path / f"run.{form}", newer, form))


def test_a_large_claim_takes_no_memory(c, tmp_path):
    path = changed(c, tmp_path / "run.zip", put("prompt", "n_compressible", value=500_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=DAMAGED):
        load_comparison(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes


def test_an_array_of_another_shape_is_not_unpacked(c, tmp_path):
    """A kilobyte of zeros that says it is a gigabyte."""
    c.save(path := tmp_path / "run.zip")
    with zipfile.ZipFile(path) as old:
        files = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in files.items():
            if name != "arrays/variant0_stage.npy":
                new.writestr(name, content)
        with new.open("arrays/variant0_stage.npy", "w") as stream:
            header = {"descr": "|i1", "fortran_order": False, "shape": (2, 3, 10**8)}
            np.lib.format.write_array_header_1_0(stream, header)
            for _ in range(100):
                stream.write(bytes(10**6))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=DAMAGED):
        load_comparison(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_manifest_without_end_is_not_read(c, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_MAX_MANIFEST", 1000)
    with pytest.raises(InputError, match="manifest of this comparison is larger"):
        load_comparison(c.save(tmp_path / "run.zip"))


def test_all_arrays_together_are_bounded(c, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_MAX_BYTES", 5000)
    with pytest.raises(InputError, match="unpacks to more than"):
        load_comparison(c.save(tmp_path / "run.zip"))
