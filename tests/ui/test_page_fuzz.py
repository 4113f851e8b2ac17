"""Whatever arrives, a visitor gets an answer or one sentence: no traceback, no hang."""

import base64
import copy
import json
import time
from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import synthetic_comparison, with_findings

from kvviz.errors import KvvizError
from kvviz.settings import settings as limits_of
from kvviz.ui import views
from kvviz.ui.api import compare_endpoint
from kvviz.ui.cause_desk import CauseDesk
from kvviz.ui.desk import Desk
from kvviz.ui.evidence import Evidence
from kvviz.ui.export_views import Exports
from kvviz.ui.form import NAMES
from kvviz.ui.grid_desk import GridDesk
from kvviz.ui.mix_desk import MixDesk
from kvviz.ui.runs import RunStore
from kvviz.ui.talk_desk import TalkDesk

SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["__proto__", "NaN", "-1", "1e999", "50%", "128t", "snapkv", "snapkv:window=", "stored-x",
                     "../../etc/passwd", "<script>", "\x00", "a" * 300, "full", "all", "9" * 40]),
)  # fmt: skip
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), TEXTS)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)
FAULT = "This view could not be drawn. The rest of the page is up to date."
PUBLIC = limits_of({"KVVIZ_PUBLIC": "1"})
REQUEST = SimpleNamespace(session_hash="s", cookies={}, client=SimpleNamespace(host="h"))


def one_sentence(message):
    assert isinstance(message, str) and message.rstrip().endswith((".", "?")) and len(message) < 700, message
    assert "Traceback" not in message and "Error(" not in message


@pytest.fixture(scope="module")
def shown():
    """(store, run id, exports) with one run that has everything to show."""
    store = RunStore()
    c = with_findings(synthetic_comparison(n=80, L=3, evict_every=2))
    return store, store.add(c, "own", "A run", "me").id, Exports()


PLACE = st.integers(-5, 400)
ARGS = dict.fromkeys(("layer", "head", "token", "start", "end", "step"), PLACE)
ARGS |= dict.fromkeys(("a", "b", "role", "x", "y", "kind"), TEXTS)
ARGS |= {"budget": st.floats(), "width": st.integers(-1, 10**6)}


@SOME
@given(data=st.data())
def test_views_answer_junk(shown, data, capfd):
    store, run, exports = shown
    views.answer(store, exports, {})  # registers them
    name = data.draw(st.sampled_from([*views.VIEWS, "export"]))
    fields = st.dictionaries(st.one_of(st.sampled_from(list(ARGS)), TEXTS), JUNK, max_size=5)
    places = {
        "tok": st.one_of(st.lists(PLACE, max_size=3), JUNK),
        "marks": st.one_of(st.lists(st.lists(PLACE, max_size=3), max_size=4), JUNK),
    }
    chosen = st.fixed_dictionaries({}, optional={n: s | JUNK for n, s in ARGS.items()} | places)
    body = {
        "view": name,
        "run": run,
        "sel": data.draw(chosen | JUNK),
        "args": data.draw(chosen | fields | JUNK),
    }
    reply = views.answer(store, exports, body, "me")
    assert isinstance(reply, dict) and reply.get("error") != FAULT, body
    json.dumps(reply)
    if "error" in reply:
        one_sentence(reply["error"])


@SOME
@given(body=JUNK)
def test_the_page_asks_junk(shown, body):
    store, _, exports = shown
    reply = views.answer(store, exports, body, "me")
    one_sentence(reply["error"])


GOOD = {
    "document": "A text.",
    "question": "What?",
    "methods": ["snapkv"],
    "budgets": "50%",
    "max_new_tokens": 4,
}


@SOME
@given(change=st.dictionaries(st.sampled_from(NAMES), JUNK, max_size=4), event=st.one_of(st.none(), JUNK))
def test_the_form_takes_junk(shown, change, event):
    desk = Desk(FakeEngine(steps=1, pause=0.0, n=20, layers=2), shown[0], PUBLIC)
    for data in ({**GOOD, **change}, event):
        last = json.loads(list(desk.run(SimpleNamespace(_data=data), REQUEST))[-1])
        assert last["state"] in ("done", "failed"), data
        if last["state"] == "failed":
            one_sentence(last["message"])
            assert "inside kvviz" not in last["message"], data
        told = desk.estimate(data if isinstance(data, dict) else {})
        assert told["answers"] >= 0


@SOME
@given(name=st.sampled_from(["decode_more", "try_again", "open_saved"]), data=JUNK, sel=JUNK, more=JUNK)
def test_other_buttons_take_junk(shown, name, data, sel, more):
    store, run, _ = shown
    desk = Desk(FakeEngine(steps=1, pause=0.0, n=20, layers=2), store, PUBLIC)
    for body in (
        data,
        {"run": run, "sel": sel, "budget": more, "edits": more, "path": more},
        {"run": run, "method": more},
    ):
        told = getattr(desk, name)(SimpleNamespace(_data=body), REQUEST)
        last = json.loads(told if isinstance(told, str) else list(told)[-1])
        assert last["state"] in ("done", "failed", "stopped"), body
        if last["state"] == "failed":
            one_sentence(last["message"])
            assert "inside kvviz" not in last["message"], body


ASKED = (
    "run", "sel", "side", "step", "index", "question", "expected", "fresh", "mix", "depths", "lengths",
    "methods", "budgets", "model", "protocol", "needles", "seeds", "controlled", "path", "name", "data",
)  # fmt: skip


@settings(SOME, max_examples=15)
@given(data=st.dictionaries(st.sampled_from(ASKED) | TEXTS, JUNK, max_size=5) | JUNK, mine=st.booleans())
def test_causes_forks_questions_mixes_grids_and_sweeps_take_junk(shown, data, mine):
    store, run, _ = shown
    desk = Desk(FakeEngine(steps=1, pause=0.0, n=20, layers=2), store, PUBLIC)
    causes, evidence = CauseDesk(desk), Evidence(store)
    grids = GridDesk(desk, evidence.sweeps)
    body = {**data, "run": run} if mine and isinstance(data, dict) else data
    for start in (causes.find, causes.branch, TalkDesk(desk).ask, MixDesk(desk).decode, grids.fill):
        last = json.loads(list(start(SimpleNamespace(_data=body), REQUEST))[-1])
        if last.get("inner", last["state"]) == "failed":
            one_sentence(last["message"])
            assert "inside kvviz" not in last["message"], (start, body)
    for answers, view in ((grids, "grid_estimate"), (evidence, "evidence_open"), (desk, "unavailable")):
        reply = answers.answer({"view": view, "args": data})
        if "error" in reply:
            one_sentence(reply["error"])


ARGUMENTS = (
    "document",
    "question",
    "methods",
    "budgets",
    "expected",
    "model",
    "protocol",
    "max_new_tokens",
    "seed",
)


@SOME
@given(change=st.dictionaries(st.sampled_from(ARGUMENTS), JUNK, max_size=3))
def test_the_endpoint_takes_junk(change):
    desk = Desk(FakeEngine(steps=1, pause=0.0, n=20, layers=2), RunStore(), PUBLIC)
    ask = {"document": "A text.", "question": "What?", "methods": ["snapkv"], "budgets": [0.5], **change}
    last = list(compare_endpoint(desk)(**ask, request=REQUEST))[-1]
    if "error" in last:
        one_sentence(last["error"])
        assert "inside kvviz" not in last["error"], ask
    json.dumps(last)


@pytest.mark.parametrize("change", [
    {"model": "/etc/passwd"}, {"model": "../model"}, {"model": "somebody/model"}, {"model": "~/m.gguf"},
    {"model": "https://huggingface.co/somebody/model"}, {"document": "x" * (2 * 2**20 + 1)},
    {"question": "x" * 20_000}, {"budgets": [0.01 * k for k in range(1, 60)]}, {"max_new_tokens": 129},
    {"max_new_tokens": 10**9}, {"methods": ["snapkv:window=99999999999999999999"]},
])  # fmt: skip
def test_the_endpoint_of_a_public_server_refuses_what_the_page_refuses(change):
    engine = FakeEngine()
    desk = Desk(engine, RunStore(), PUBLIC)
    ask = {"document": "A text.", "question": "What?", "methods": ["snapkv"], "budgets": [0.5], **change}
    (last,) = compare_endpoint(desk)(**ask, request=REQUEST)
    one_sentence(last["error"])
    form = {
        **GOOD,
        **{k: ", ".join(f"{v:.0%}" for v in x) if k == "budgets" else x for k, x in change.items()},
    }
    assert json.loads(list(desk.run(SimpleNamespace(_data=form), REQUEST))[-1])["state"] == "failed"
    assert engine.asked == []


FILES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=60).map(b"%PDF-1.7 ".__add__),
    st.binary(max_size=60).map(b"PK\x03\x04".__add__),
    st.text(max_size=60).map(lambda t: f"<p>{t}</p>".encode("utf-8", "surrogatepass")),
)


@SOME
@given(name=TEXTS, ending=st.sampled_from(["", ".txt", ".pdf", ".docx", ".html", ".py", ".PDF"]), data=FILES)
def test_any_file_is_read_or_refused(shown, name, ending, data):
    desk = Desk(FakeEngine(), shown[0], PUBLIC)
    began = time.perf_counter()
    sent = base64.b64encode(data).decode()
    reply = desk.answer({"view": "read", "args": {"name": name + ending, "data": sent}})
    if "error" in reply:
        one_sentence(reply["error"])
    else:
        assert reply["text"].strip()
    assert time.perf_counter() - began < 5


def leaves(value, path=()):
    """Paths to all leaves of plain values."""
    if isinstance(value, dict):
        return [p for key, inner in value.items() for p in leaves(inner, (*path, key))] or [path]
    if isinstance(value, list):
        return [p for key, inner in enumerate(value[:3]) for p in leaves(inner, (*path, key))] or [path]
    return [path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(parts of a saved run, its manifest)."""
    import zipfile

    path = with_findings(synthetic_comparison(n=40, L=2, evict_every=2)).save(
        tmp_path_factory.mktemp("x") / "run.zip"
    )
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    return parts, json.loads(parts["manifest.json"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_saved_run_with_another_value_opens_and_is_shown_or_is_refused(saved, tmp_path_factory, data):
    import zipfile

    from kvviz.results.archive import load_comparison

    parts, manifest = saved
    changed = copy.deepcopy(manifest)
    for _ in range(data.draw(st.integers(1, 2))):
        *where, last = data.draw(st.sampled_from(leaves(changed)))
        inner = changed
        for key in where:
            inner = inner[key]
        if data.draw(st.booleans()) and isinstance(inner, dict):
            inner.pop(last, None)
            break
        inner[last] = data.draw(JUNK)
        break
    path = tmp_path_factory.mktemp("fuzz") / "run.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, json.dumps(changed) if name == "manifest.json" else part)
    try:
        c = load_comparison(path)
    except KvvizError as error:
        one_sentence(str(error))
        return
    store = RunStore()
    run = store.add(c, "file", "x", "me").id if c.variants else None
    if run is None:
        return
    for view in ("meta", "cards", "finding", "kept", "text"):
        reply = views.answer(store, Exports(), {"view": view, "run": run, "sel": {}, "args": {}}, "me")
        assert reply.get("error") != FAULT, (
            where,
            last,
            inner.get(last) if isinstance(inner, dict) else inner,
        )
