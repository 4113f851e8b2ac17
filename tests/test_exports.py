"""CSV, JSON, masks, Python lines, report."""

import ast
import csv as csv_format
import dataclasses
import io
import json as json_format

import numpy as np
import pytest
from synthetic import synthetic_comparison

import kvviz
from kvviz import exports
from kvviz.figures.all_methods import all_methods_table
from kvviz.figures.document import document_tokens
from kvviz.figures.effect import effect_table
from kvviz.figures.heads import heads_table
from kvviz.figures.kept import kept_table
from kvviz.figures.per_layer import per_layer_table
from kvviz.figures.sweep_table import sweep_table
from kvviz.figures.versus import versus_table
from kvviz.figures.why_minimap import why_minimap_table
from kvviz.figures.why_table import why_table
from kvviz.results.answers import all_answers_table
from kvviz.results.measures import MEASURE
from kvviz.results.table import Table, csv_text, formula_text


def every_table(c):
    yield all_answers_table(c)
    yield document_tokens(c, "snapkv", "dropkv", 0.2, "ab")
    yield kept_table(c, "snapkv", 0.2, columns=40)
    yield versus_table(c, "snapkv", "dropkv", 0.2, columns=40)
    yield heads_table(c, "snapkv", 0.2, 1)
    yield per_layer_table(c, "snapkv", 0.2)
    yield all_methods_table(c, 0.2, columns=10)
    yield why_table(c, 1, 1, "snapkv", "dropkv", 0.2)
    yield why_minimap_table(c, (50, 51), "snapkv", "dropkv", 0.2)
    yield effect_table(c, "snapkv", "dropkv", 0.1)
    for measure in MEASURE:
        yield sweep_table(c, measure, "snapkv", "dropkv", 0.2)


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json_format.loads(text, parse_constant=refuse)


def test_csv_and_json_hold_the_rows_of_the_table():
    c = synthetic_comparison()
    c.variant("snapkv", 0.1).output_error[0, 0] = np.nan
    for table in every_table(c):
        rows = table.rows(None)
        lines = list(csv_format.reader(io.StringIO(exports.csv(table).removeprefix("\ufeff"))))
        assert len(lines) == len(rows) + 1
        assert lines[0] == list(table.columns())
        content = strict(exports.json(table))
        assert [dict(zip(content["columns"], row)) for row in content["rows"]] == rows
        assert table.rows(200) == rows[:200]
        assert "nan" not in exports.csv(table).lower().split(",")


def test_csv_runs_no_formula():
    c = synthetic_comparison()
    c.prompt.tokens[40:44] = ["=cmd()", "+1", "-1", "@x"]
    lines = exports.csv(document_tokens(c, "snapkv", None, 0.2)).splitlines()
    for start in ("=", "+", "-", "@"):
        assert not any(line.split(",")[1].startswith(start) for line in lines)
    assert "'=cmd()" in lines[41]


def test_csv_is_told_apart_from_other_encodings_where_it_holds_text():
    c = synthetic_comparison()
    assert exports.csv(document_tokens(c, "snapkv", None, 0.2)).encode().startswith(b"\xef\xbb\xbf")
    assert not exports.csv(per_layer_table(c, "snapkv", 0.2)).startswith("\ufeff")


def test_csv_keeps_blanks_and_line_ends_readable_and_guards_behind_them():
    @dataclasses.dataclass(frozen=True)
    class Texts(Table):
        def columns(self):
            return {"text": [" a b ", "one\ntwo\r\nthree", " =1+1", "\u200b@x", "＝1", "-", "a=b", -1, 0.5]}

    cells = [row[0] for row in csv_format.reader(io.StringIO(exports.csv(Texts()).removeprefix("\ufeff")))]
    assert cells[1:3] == [" a b ", "one⏎two⏎three"]
    assert cells[3:] == ["' =1+1", "'\u200b@x", "'＝1", "'-", "a=b", "-1", "0.5"]
    c = synthetic_comparison()
    c.prompt.tokens[60:62] = ["\n", " "]
    rows = kept_table(c, "snapkv", 0.2).rows(None)
    assert [rows[60]["text"], rows[61]["text"]] == ["⏎", "·"]


FORMULAS = ["=1+1", "\x0b=1+1", "\u2009\u00ad =1+1", "\x00@a", "\u202e+1", "'=1+1", "a;=1+1;b", "; \u200f-2",
            "''@x"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_cell_is_no_formula_wherever_a_spreadsheet_splits_and_reads_back_as_it_was(text):
    """Semicolons separate cells in many countries; what is not seen before a sign may be skipped."""
    _, cell = csv_format.reader(io.StringIO(csv_text({"x": [text]}).removeprefix("\ufeff")))
    for part in cell[0].split(";"):
        seen = "".join(sign for sign in part if sign.isprintable()).strip()
        assert not seen.startswith(("=", "+", "-", "@")), cell
    assert formula_text(cell[0]) == text


def test_tabs_part_no_cells_and_names_of_columns_are_text_too():
    table = csv_text({"=1+1": ["a\t=1+1", "\t=2"]}).removeprefix("\ufeff")
    assert table.splitlines() == ["'=1+1", "a⇥=1+1", "⇥=2"]


def test_masks_unpack_as_the_manifest_says():
    c = synthetic_comparison()
    archive = np.load(io.BytesIO(exports.masks_npz(c)), allow_pickle=False)
    manifest = strict(str(archive["manifest"]))
    assert manifest["kvviz"] == kvviz.__version__
    assert manifest["model"]["id"] == "test/tiny"
    assert manifest["seed"] == 0
    assert len(manifest["variants"]) == len(c.variants)
    for one in manifest["variants"]:
        mask = archive[one["array"]]
        kept = eval(manifest["unpack"], {"np": np, "mask": mask, "n": manifest["n"]})
        assert np.array_equal(kept, c.at(one["method"], one["budget"]).kept.mask())


def test_python_lines_rebuild_every_argument():
    c = synthetic_comparison(budgets=(0.5, 30))
    c.prompt.tokens[3] = "'''"
    object.__setattr__(c.prompt, "document", "quote \" and \\ and \u202e and ''' \n{x}")
    c.settings["methods"] = {"snapkv": {"own": {"window": 16}, "used": {}}}
    c.settings["measures"] = ["kl"]
    c.settings["temperature"] = 0.5
    lines = exports.python_lines(c)
    lines.encode("ascii")
    tree = ast.parse(lines)
    calls = {}
    values = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            calls[node.func.attr] = {k.arg: k.value for k in node.keywords}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            values[node.targets[0].id] = node.value.value
    assert values["document"] == c.prompt.document
    given = {k: ast.literal_eval(v) for k, v in calls["compare"].items()}
    assert given == {
        "methods": ["snapkv", "dropkv", "streaming_llm"],
        "budgets": [0.5, 30],
        "max_new_tokens": 24,
        "measures": ("kl",),
        "options": {"snapkv": {"window": 16}},
        "expected": "58213",
        "temperature": 0.5,
        "lenses": True,
    }
    assert ast.literal_eval(calls["build_prompt"]["protocol"]) == "question-aware"


def test_python_lines_say_the_time_that_the_template_wrote(tmp_path):
    c = synthetic_comparison()
    assert "now=" not in exports.python_lines(c)
    object.__setattr__(c.prompt, "now", "2026-12-02T18:30:00")
    again = kvviz.load_comparison(c.save(tmp_path / "run.zip"))
    (call,) = [n for n in ast.walk(ast.parse(exports.python_lines(again)))
               if isinstance(n, ast.Call) and ast.unparse(n.func) == "kvviz.build_prompt"]  # fmt: skip
    assert {k.arg: ast.unparse(k.value) for k in call.keywords}["now"] == "'2026-12-02T18:30:00'"


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (None, "model = kvviz.load_model('tiny', dtype='float32')"),  # runs of older versions do not say
        ("../models/q.gguf", "model = kvviz.load_model('../models/q.gguf', dtype='float32')"),
        ("", "model = kvviz.wrap_model(hf_model, tokenizer, 'tiny')"),
    ],
)
def test_python_lines_load_the_model_as_it_was_loaded(source, line):
    c = synthetic_comparison()
    object.__setattr__(c.model, "id", "tiny")
    c.settings.pop("source", None)
    if source is not None:
        c.settings["source"] = source
    lines = exports.python_lines(c)
    assert line in lines.splitlines() and "print(result.to_frame().to_string())" in lines


@pytest.mark.parametrize("place", ["start", "end", "layer", "head", "kind", "method", "budget"])
def test_python_lines_hold_no_code_of_a_stranger(place):
    c = synthetic_comparison()
    evil = "__import__('os').system('touch x')"
    edit = {"kind": "pin", "start": 1, "end": 2, "layer": None, "head": None}
    item = {"method": "snapkv", "budget": 0.5, "same_size": True, "edits": [edit]}
    (edit if place in edit else item)[place] = evil
    c.settings["edits"] = [item]
    c.settings["source"] = evil
    names = {n.id for n in ast.walk(ast.parse(exports.python_lines(c))) if isinstance(n, ast.Name)}
    assert "__import__" not in names


def test_python_lines_repeat_an_edit():
    c = synthetic_comparison()
    edit = {"kind": "pin", "start": 1, "end": 2, "layer": 3, "head": None}
    c.settings["edits"] = [{"method": "snapkv", "budget": 30, "same_size": False, "edits": [edit]}]
    lines = exports.python_lines(c)
    assert "model, result, 'snapkv', 30, [Edit('pin', 1, 2, 3, None)], same_size=False" in lines


def test_report_is_self_contained_and_inert():
    c = synthetic_comparison()
    c.variant("snapkv", 0.05).text = "<script>alert(1)</script>"
    object.__setattr__(c.prompt, "document", "</pre><script>alert(2)</script>")
    report = exports.report_html(c, "window.Plotly={};/* </script> */")
    assert "<script>alert" not in report
    assert report.count("<script>") == report.count("</script>") == 2
    assert "src=" not in report
    assert "http" not in report
    assert report.count("<figure>") == report.count("draw('plot") >= 6
    assert "role:" not in report.split("function draw")[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_exported_figures_have_real_colours(run, theme):
    from kvviz.figures.kept import kept_figure

    text = exports.figure_json(kept_figure(kept_table(run, "snapkv", 0.2)), theme)
    figure = strict(text)
    assert "role:" not in text
    assert "<" not in text
    assert figure["layout"]["paper_bgcolor"] == ("#FFFFFF" if theme == "light" else "#0F151C")
