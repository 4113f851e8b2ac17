"""What a notebook shows: values in a few lines, a table, every view a figure, a run's page in a frame."""

import dataclasses
import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import synthetic_comparison, with_findings

import kvviz
from kvviz.errors import InputError
from kvviz.figures import FIGURES
from kvviz.results.story import Opening, Step

SHOWN = with_findings(synthetic_comparison(evict_every=4))


def test_a_result_shows_itself_in_a_few_lines():
    table = SHOWN._repr_html_()
    assert len(repr(SHOWN)) < 4000 and len(table) < 10_000
    assert table.count("<tr>") <= 15 and "Full cache" in table and "SnapKV" in table


def parts(value, seen):
    """Every dataclass that can be reached from `value`, once."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if dataclasses.is_dataclass(value):
        yield value
        value = vars(value)
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        yield from parts(item, seen)


def test_whatever_a_run_holds_shows_itself_in_a_few_lines(tiny_llama):
    document = "The code 58213 is in the ledger. The weather was fair, the sea was calm. " * 12
    prompt = kvviz.build_prompt(tiny_llama, document=document, question="What is the code?")
    trace = kvviz.prefill(tiny_llama, prompt, methods=["dropkv"])
    selection = kvviz.select(trace, "dropkv", 0.2)
    run = kvviz.compare(tiny_llama, prompt, ["dropkv"], [0.5, 0.2], 3)
    session = kvviz.conversation(tiny_llama, run)
    turn = session.ask("Who wrote it?")
    reached = [*parts([tiny_llama, trace, selection, run, turn], {}), *parts(SHOWN, {}), session]
    kinds = {type(one).__name__ for one in reached}
    assert kinds > {"Model", "Prompt", "Trace", "Selection", "Comparison", "Variant", "Point", "KeptSet",
                    "Turn", "Causes", "WouldDo", "AnswerAttention"}  # fmt: skip
    for one in reached:
        assert len(repr(one).splitlines()) <= 20 and len(repr(one)) < 2000, type(one).__name__
    assert f"mask=[{trace.model.n_layers} x bool [{trace.model.n_kv_heads}, {trace.n}]]" in repr(selection)
    assert "entries=" in repr(selection) and "method='dropkv'" in repr(selection)
    assert "Who wrote it?" in repr(turn) and "DropKV at 20%" in repr(turn)
    assert "further questions, 1" in repr(session.comparison)


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
        ({"lens": "kept", "theme": "drak"}, "theme is one of light, dark, not 'drak'"),
        ({"lens": "effect_map", "side": "c"}, "side is one of a, b, not 'c'"),
        ({"lens": "why", "x": "nothing"}, "x is one of attention, .*dropkv, not 'nothing'"),
        ({"lens": "cause_heads", "direction": "up"}, "direction is one of put_back, taken_out, not 'up'"),
        ({"lens": "cause_scatter", "unit": "atom"}, "unit is one of head, passage, not 'atom'"),
        ({"lens": "kept", "grain": "line"}, "token, word, sentence, paragraph or section, not by 'line'"),
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
    assert page == frame.page and 'id="replies"' in page and "<script src" not in page
    monkeypatch.setattr("kvviz.notebook.MOST_FRAME", 1000)
    with pytest.raises(InputError, match="too many for a notebook"):
        SHOWN.show()


def test_the_frame_tells_the_runs_story_or_opens_on_what_is_named():
    def first(**named):
        page = told.show(**named).page
        replies = json.loads(re.search(r'id="replies">(.*?)</script>', page, re.S)[1])
        return next(one["reply"] for one in replies if one["view"] == "meta")["opening"]

    step = Step("Look.", "kept", Opening("dropkv", None, 0.2))
    told = dataclasses.replace(SHOWN, story=dataclasses.replace(SHOWN.story, steps=(step,)))
    assert (first()["a"], first()["budget"]) == ("dropkv", 0.2)
    assert (first(a="snapkv")["a"], first(budget=0.1)["budget"]) == ("snapkv", 0.1)
    with pytest.raises(InputError, match="'nothing' is not in this run"):
        told.show(b="nothing")


def test_a_stored_run_is_viewed_without_torch(tmp_path):
    SHOWN.save(tmp_path / "run.zip")
    code = (
        "import sys, kvviz\n"
        f"c = kvviz.load_comparison({str(tmp_path / 'run.zip')!r})\n"
        "c._repr_html_(), c.view('kept'), c.show()\n"
        "print(sorted({'torch', 'gradio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
def test_the_example_notebook_runs_in_a_kernel(smollm, monkeypatch):
    """As Jupyter runs it, in a kernel of its own; `smollm` puts the model where load_model finds it."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.delenv("TQDM_DISABLE", raising=False)  # a command run in this process turned bars off
    root = Path(__file__).parents[1]
    page = nbformat.read(root / "docs" / "kvviz.ipynb", as_version=4)
    nbformat.validate(page)
    NotebookClient(page, timeout=300, kernel_name="python3", resources={"metadata": {"path": root}}).execute()
    outputs = [out for cell in page.cells for out in cell.get("outputs", [])]
    streams = [out for out in outputs if out.output_type == "stream"]
    assert {out.name for out in streams} == {"stderr"}
    bars = "".join(out.text for out in streams)
    assert "Reading the document, 353 of 353 tokens 100%" in bars and bars.endswith("\r")  # the bar is gone
    result, kept, heads, frame = (out.data for out in outputs if out.output_type != "stream")
    assert "58213" in result["text/html"] and "<table>" in result["text/html"]
    assert "full cache: " in result["text/plain"] and len(result["text/plain"].splitlines()) <= 20
    for figure in (kept, heads):
        assert figure["application/vnd.plotly.v1+json"]["data"]
    assert "srcdoc=" in frame["text/html"] and len(frame["text/plain"]) < 100
