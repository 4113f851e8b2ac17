"""A comparison in a notebook: short in text, a table in HTML, every view a figure, the run in a frame."""

import dataclasses
import html
import subprocess
import sys

import pytest
from synthetic import synthetic_comparison, with_findings

from kvviz.errors import InputError
from kvviz.figures import FIGURES

SHOWN = with_findings(synthetic_comparison(evict_every=4))


def test_a_result_shows_itself_in_a_few_lines():
    table = SHOWN._repr_html_()
    assert len(repr(SHOWN)) < 4000 and len(table) < 10_000
    assert table.count("<tr>") <= 15 and "Full cache" in table and "SnapKV" in table


def test_texts_never_become_markup():
    full = dataclasses.replace(SHOWN.full, text="<img src=x onerror=alert(1)>")
    c = dataclasses.replace(SHOWN, full=full)
    assert "<img" not in c._repr_html_()
    assert "<img" not in c.show()._repr_html_().partition("srcdoc=")[2]


@pytest.mark.parametrize("row", FIGURES, ids=lambda row: row.id)
def test_every_view_is_a_figure_or_says_why_not(row):
    try:
        figure = SHOWN.view(row.id, a="snapkv", b="dropkv", budget=0.1, layer=2, head=1)
    except InputError as error:
        assert str(error).endswith(".")
        return
    assert figure.data or figure.layout.annotations  # or a sentence in its place
    assert "role:" not in figure.to_json()


def test_views_take_the_first_methods_and_the_smallest_budget():
    assert SHOWN.view("kept") == SHOWN.view("kept", a="snapkv", budget=0.05)
    assert SHOWN.view("kept", theme="dark") != SHOWN.view("kept")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"lens": "keept"}, "There is no view 'keept'. Views: .*kept, versus"),
        ({"lens": "kept", "laier": 1}, "no setting 'laier'. Settings: .*layer"),
        ({"lens": "kept", "a": "nothing"}, "'nothing' is not in this run. Its methods: snapkv, dropkv"),
        ({"lens": "heads", "layer": 99}, "The layer lies between 0 and 5, not 99"),
        ({"lens": "kept", "budget": 0.123}, "The kept tokens were not stored at 12%"),
    ],
)
def test_a_view_that_cannot_be_had_says_what_there_is(asked, sentence):
    with pytest.raises(InputError, match=sentence):
        SHOWN.view(**asked)


def test_the_whole_run_in_a_frame_needs_no_server(monkeypatch):
    frame = SHOWN.show(height=500)
    shown = frame._repr_html_()
    page = html.unescape(shown.partition('srcdoc="')[2].rpartition('"')[0])
    assert 'height="500"' in shown and 'sandbox="allow-scripts"' in shown and len(repr(frame)) < 100
    assert page == frame.page and "Plotly.newPlot" in page and "<script src" not in page
    monkeypatch.setattr("kvviz.notebook.MOST_FRAME", 1000)
    with pytest.raises(InputError, match="too many for a notebook"):
        SHOWN.show()


def test_a_stored_run_is_viewed_without_torch(tmp_path):
    SHOWN.save(tmp_path / "run.zip")
    code = (
        "import sys, kvviz\n"
        f"c = kvviz.load_comparison({str(tmp_path / 'run.zip')!r})\n"
        "c._repr_html_(), c.view('kept'), c.show()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_progress_is_a_bar_in_notebooks_only(monkeypatch, capsys):
    from types import SimpleNamespace

    from kvviz.engine import steps
    from kvviz.types import Event

    events = [Event("read", "Reading, 1 of 2", 1, 2), Event("done", "Done", 1, 1, 0.0, result="made")]
    assert steps.result_of(iter(events)) == "made" and capsys.readouterr().err == ""
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert steps.result_of(iter(events)) == "made"
    said = capsys.readouterr().err
    assert "Reading, 1 of 2  50%" in said and "Done 100%" in said


@pytest.mark.slow
def test_the_example_notebook_runs(smollm, monkeypatch):
    """Its cells one after the other, as plain Python: the last line of each is what a notebook shows."""
    import ast
    import json
    from pathlib import Path

    page = json.loads((Path(__file__).parents[1] / "docs" / "kvviz.ipynb").read_text(encoding="utf-8"))
    monkeypatch.setattr("kvviz.load_model", lambda name, dtype: smollm)
    names, shown = {}, []
    for cell in (cell for cell in page["cells"] if cell["cell_type"] == "code"):
        *lines, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
    result, kept, heads, frame = shown
    assert "58213" in result.full.text and "58213" in result._repr_html_()
    assert kept.data and heads.data and "srcdoc" in frame._repr_html_()
