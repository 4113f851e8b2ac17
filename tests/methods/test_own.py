"""Own methods: from a program, from a file, from a package; then like any other, with errors in words."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from reference import prompt_of

import kvviz
from kvviz import cli
from kvviz.errors import InputError
from kvviz.exports import python_lines
from kvviz.methods import Method, Scores, get_method, list_methods, own

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "own-method.md").read_text(encoding="utf-8")
CODE = re.search(r"```python\n(.*?)```", PAGE, re.S).group(1)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(own, "_OWN", {})


@pytest.fixture
def sized(tmp_path):
    """The file that the page of the docs builds."""
    path = tmp_path / "sized.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def flat(layer, options):
    return Scores(torch.zeros(layer.n_kv_heads, layer.context))


def made(id="mine", score=flat, **fields):
    given = {"id": id, "label": f"{id} label", "idea": "An idea.", "paper": "", "score": score}
    return Method(**given | fields)


def reference(trace, window, pool):
    """Scores of the page's method from its definition: loops over heads."""
    out = []
    for index in range(trace.model.n_layers):
        attention, values = trace.window_attention(index, window), trace.values[index].float()
        rows = []
        for kv in range(trace.model.n_kv_heads):
            group = attention.unflatten(0, (trace.model.n_kv_heads, -1))[kv].mean(1)
            pooled = torch.stack(
                [torch.nn.functional.avg_pool1d(row[None], pool, 1, pool // 2)[0] for row in group]
            ).mean(0)
            rows.append(pooled * values[kv].norm(dim=-1))
        out.append(torch.stack(rows))
    return out


def test_the_page_builds_one_in_15_lines(sized, tiny_llama):
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 15
    (method,) = kvviz.load_plugin(sized)
    prompt = prompt_of(tiny_llama, 40)
    trace = kvviz.prefill(tiny_llama, prompt, methods=["sized"])
    found = kvviz.select(trace, "sized", 0.25, window=4, pool=3)
    assert [int(mask.sum()) for mask in found.mask] == [10 * tiny_llama.n_kv_heads] * tiny_llama.n_layers
    for scores, wanted in zip(found.scores, reference(trace, 4, 3)):
        there = ~scores.isnan()
        inner = there & (torch.arange(trace.n) < there.sum(-1, keepdim=True) - 2)  # not where it ends
        torch.testing.assert_close(scores[inner], wanted[inner])
    result = kvviz.compare(tiny_llama, prompt, ["sized", "snapkv", "sized:allocation=global"], [0.5], 3)
    assert [v.label for v in result.variants] == ["Sized attention", "SnapKV", "Sized attention with global"]
    assert list_methods()[-1] is method is get_method("Sized Attention")


def test_it_is_compared_on_the_command_line(sized, tmp_path, monkeypatch, capsys, tiny_llama):
    monkeypatch.setattr("kvviz.models.load_model", lambda *args, **kwargs: tiny_llama)
    document = tmp_path / "d.txt"
    document.write_text("The code of the door is 58213. " * 5)
    out, saved = tmp_path / "out.json", tmp_path / "run.zip"
    code = cli.main([
        "compare", "--plugin", str(sized), "--document", str(document), "--question", "What?", "--methods",
        "sized:pool=3,snapkv", "--budgets", "0.5", "--max-new-tokens", "2", "--quiet", "--json", str(out),
        "--save", str(saved),
    ])  # fmt: skip
    assert code == 0 and "Sized attention" in capsys.readouterr().out
    settings = json.loads(out.read_text())["settings"]
    assert settings["own"]["sized"]["from"] == "sized.py" and len(settings["own"]["sized"]["sha256"]) == 64
    assert str(tmp_path) not in json.dumps(settings)  # where it lay is nobody's business
    assert "kvviz.load_plugin('sized.py')  # the file that ran has the SHA-256" in python_lines(
        kvviz.load_comparison(saved)
    )


def test_the_commands_list_it(sized, capsys):
    assert cli.main(["methods", "--plugin", str(sized)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^sized +Attention times the size of the value. \(own, from sized.py\)$", out, re.M)
    assert cli.main(["methods", "--json", "--plugin", str(sized)]) == 0
    described = json.loads(capsys.readouterr().out)[-1]
    assert described["id"] == "sized" and [o["name"] for o in described["options"]][:2] == ["window", "pool"]


@pytest.mark.parametrize("command", ["compare", "causes", "ablate", "methods", "sweep", "niah", "serve"])
def test_every_command_that_takes_methods_takes_plugins(command, capsys):
    given = {"compare": "--document x --question y", "causes": "--document x --question y",
             "ablate": "--document x --question y", "sweep": "--items x --out y"}  # fmt: skip
    code = cli.main([command, *given.get(command, "").split(), "--plugin", "no/such.py"])
    assert code == 2 and "The plugin 'no/such.py' does not exist." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "bad.py holds no method. End it with METHOD = Method(...)."),
        (
            "x = 1\nraise RuntimeError('not today')",
            "bad.py could not be read: RuntimeError: not today (line 2 ",
        ),
        ("def f(:", "bad.py could not be read: SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit(3)", "bad.py could not be read: SystemExit: 3"),
        (
            CODE.replace('"sized"', '"snapkv"'),
            "There is a method snapkv (SnapKV) already. Give snapkv another",
        ),
        (CODE.replace('"Sized attention"', '"Snap KV"'), "There is a method snapkv (SnapKV) already."),
        (CODE.replace('"sized"', '"my:method"'), "'my:method' cannot be a method's id"),
        (CODE.replace('"sized"', '"full"'), "'full' cannot be a method's id"),
        (CODE.replace("decodes=True", 'allocation="best"'), "sized: there is no allocation 'best'"),
        (CODE.replace("decodes=True", 'needs=frozenset({"luck"})'), "sized: a trace cannot carry 'luck'"),
        (CODE.replace("decodes=True", 'presets={"p": {"pool": 0}}'), "pool is a whole number from 1"),
    ],
)
def test_a_file_that_is_none_is_one_sentence_and_leaves_nothing(tmp_path, text, sentence):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        kvviz.load_plugin(path)
    assert sentence in str(error.value) and "\n" not in str(error.value)
    assert list_methods() == list(kvviz.methods.METHODS)


def test_a_folder_or_nothing_is_no_plugin(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        kvviz.load_plugin(tmp_path)
    with pytest.raises(InputError, match="Register a kvviz.methods.Method, not"):
        kvviz.register(made)


def test_a_file_is_read_once_and_anew_where_it_was_changed(sized):
    (first,) = kvviz.load_plugin(sized)
    assert kvviz.load_plugin(sized) == [first]
    sized.write_text(CODE.replace("Sized attention", "Sized again"))
    assert [m.label for m in kvviz.load_plugin(sized)] == ["Sized again"]
    assert [m.label for m in list_methods() if m.id == "sized"] == ["Sized again"]
    sized.write_text("raise ValueError")
    with pytest.raises(InputError):
        kvviz.load_plugin(sized)
    assert get_method("sized").label == "Sized again"  # what is broken takes nothing away


def test_a_method_of_a_notebook_is_replaced_where_it_says_so(tiny_llama):
    kvviz.register(made())
    with pytest.raises(InputError, match="or register it with replace=True"):
        kvviz.register(made())
    trace = kvviz.prefill(tiny_llama, prompt_of(tiny_llama, 20))
    scored = kvviz.engine.scoring.Scored(trace)
    flat = kvviz.engine.selection.select_from(scored, "mine", 5)

    def newest(layer, options):
        return Scores(torch.arange(layer.context).float().expand(layer.n_kv_heads, -1))

    kvviz.register(made(score=newest), replace=True)
    late = kvviz.engine.selection.select_from(scored, "mine", 5)  # nothing of the old one is used again
    assert flat.mask[0][0].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert late.mask[0][0].nonzero().flatten().tolist() == [15, 16, 17, 18, 19]


def shaped(change):
    def score(layer, options):
        return change(torch.zeros(layer.n_kv_heads, layer.context), layer)

    return score


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s, layer: s, "score gives kvviz.methods.Scores, not Tensor"),
        (
            lambda s, layer: Scores(s[0]),
            r"values has the shape \[20\] instead of \[2, 20\], one number for each",
        ),
        (lambda s, layer: Scores(s.half()), r"values is torch.float16 instead of torch.float32: .float\(\)"),
        (lambda s, layer: Scores(s.numpy()), "values is a tensor, not ndarray"),
        (lambda s, layer: Scores(s / 0), "40 of 40 numbers in values are NaN; every entry needs a number"),
        (lambda s, layer: Scores(s, raw=s[:, 1:]), r"raw has the shape \[2, 19\]"),
        (lambda s, layer: Scores(s, first=s), "first is torch.float32 instead of torch.bool"),
        (lambda s, layer: Scores(s, weight=float("nan")), "weight is no number"),
        (
            lambda s, layer: 1 / 0,
            r"failed while scoring layer 0: ZeroDivisionError: .* \(line \d+ of test_own.py\)",
        ),
    ],
)
def test_scores_that_are_none_are_refused_in_words(tiny_llama, change, sentence):
    kvviz.register(made(score=shaped(change)))
    trace = kvviz.prefill(tiny_llama, prompt_of(tiny_llama, 20))
    with pytest.raises(InputError, match=f"^mine label.*{sentence}") as error:
        kvviz.select(trace, "mine", 5)
    assert str(error.value).endswith(".") and "layer 0" in str(error.value)


class Point:
    """An entry point as a package that is installed has it."""

    group, value = own.ENTRY_POINTS, "my_package:METHOD"
    dist = type("Dist", (), {"name": "my-package", "version": "1.2"})

    def __init__(self, what):
        self.load = what


def raising():
    raise ImportError("libmagic is missing")


def test_packages_name_methods_and_a_broken_one_is_left_out(monkeypatch):
    points = [Point(raising), Point(lambda: made("packed"))]
    monkeypatch.setattr(own, "_installed_read", False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    with pytest.warns(
        UserWarning, match="my-package 1.2 could not be read: ImportError: libmagic is missing"
    ):
        assert get_method("packed").label == "packed label"
    assert own.source_of("packed").told() == {"from": "my-package 1.2"}


def test_another_file_is_another_study(sized, tmp_path):
    from kvviz.engine.ask import Ask
    from kvviz.evaluate.cells import Study, cell_key
    from kvviz.evaluate.items import Item

    item = Item("i", "t", "text", "Who?")
    plain = Study(Ask(["snapkv"], [0.5]))
    assert "own" not in plain.to_dict()
    kvviz.load_plugin(sized)
    before = Study(Ask(["sized:pool=3"], [0.5]))
    sized.write_text(CODE + "# changed\n")
    kvviz.load_plugin(sized)
    after = Study(Ask(["sized:pool=3"], [0.5]))
    assert cell_key("m", item, before) != cell_key("m", item, after)
    with pytest.raises(InputError, match="sized is another one there by now"):
        own.bring(before.own)


def test_a_worker_that_cannot_have_a_method_says_so(monkeypatch):
    kvviz.register(made())
    wanted = own.sources(["mine"])
    monkeypatch.setattr(own, "_OWN", {})  # as in another process
    with pytest.raises(
        InputError, match="mine was handed over by a program, so that a worker process cannot"
    ):
        own.bring(wanted)


def test_the_page_offers_it_in_a_group_of_its_own(sized):
    from kvviz.settings import settings
    from kvviz.ui.asks import form_request
    from kvviz.ui.engine import Engine
    from kvviz.ui.form import form

    kvviz.load_plugin(sized)
    offer = form(Engine(), settings({}))
    assert offer["groups"][0]["name"] == "own"
    (shown,) = offer["groups"][0]["methods"]
    assert (shown["id"], shown["label"], shown["paper"]) == ("sized", "Sized attention", "From sized.py.")
    assert [o["name"] for o in shown["options"]] == ["window", "pool", "pool_kind", "group"]
    assert "sized:allocation=global" in [v["name"] for v in offer["variants"]]
    ask = form_request(settings({}), document="d", question="q", methods=["sized"], budgets="20%", window=16)
    assert ask.options == {"sized": {"window": 16}}


def test_a_saved_run_opens_where_its_method_is_not(tiny_llama, tmp_path):
    kvviz.register(made())
    prompt = prompt_of(tiny_llama, 30)
    kvviz.compare(tiny_llama, prompt, ["mine", "snapkv"], [0.5, 0.2], 3, lenses=True).save(
        tmp_path / "run.zip"
    )
    own._OWN.clear()
    from kvviz.ui.runs import RunStore
    from kvviz.ui.views import VIEWS, answer

    store = RunStore()
    run = store.open(tmp_path / "run.zip", "me")
    assert run.comparison.methods == ["mine", "snapkv"]
    assert "# The method 'mine' was registered by a program" in python_lines(run.comparison)
    asked = {"run": run.id, "sel": {"a": "mine", "b": "snapkv"}}
    views = ("meta", "kept", "versus", "finding", "cards", "document", "sweep", "form")
    told = {name: answer(store, None, {"view": name, **asked}) for name in views}
    assert set(told) <= set(VIEWS) and not any("error" in view for view in told.values())


def test_where_a_method_comes_from_stays_text_in_python_lines(run):
    import dataclasses

    evil = {
        "own": {
            "x\nimport os": {"from": "a\nimport os", "sha256": "0" * 64},
            "y": 3,
            "z": {"from": "register"},
        }
    }
    lines = python_lines(dataclasses.replace(run, settings={**run.settings, **evil}))
    compile(lines, "lines", "exec")
    assert "\nimport os" not in lines


@pytest.mark.slow
def test_worker_processes_know_the_file(sized, tmp_path):
    from tiny import make_model

    from kvviz.results.study import read_table

    model = make_model("llama")
    model.hf.save_pretrained(tmp_path / "tiny")
    model.tokenizer.save_pretrained(tmp_path / "tiny")
    rows = [{"context": "The code is 58213. " * 4, "question": f"{n}?", "answers": ["5"]} for n in range(2)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"plugin": sized, "items": tmp_path / "items.jsonl", "model": tmp_path / "tiny"}
    command = "sweep " + " ".join(f"--{name} {path}" for name, path in files.items())
    more = f"--out {tmp_path / 'out'} --methods sized,snapkv --budgets 0.5 --workers 2"
    words = [*command.split(), *more.split(), "--max-new-tokens", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "kvviz", *words], cwd=ROOT, check=True)
    table = read_table(tmp_path / "out")
    assert (table.reason == "").all() and (table.method == "sized").sum() == 2
