"""Further questions: every cache against the plain model with the same rows hidden, turn after turn."""

import threading

import pytest
import torch
from reference import masked_logits, masked_model
from tiny import make_model, make_tokenizer

import kvviz
from kvviz.engine.cache import build_cache
from kvviz.engine.conversation import ask_more
from kvviz.engine.decode import Wave
from kvviz.engine.rolling import Rolling
from kvviz.engine.scoring import Scored
from kvviz.errors import InputError
from kvviz.results.comparison import FULL

TEXT = "The keeper of the lighthouse wrote the code 58213 in the ledger every evening. " * 2
QUESTIONS = ("Who wrote it?", "And where?", "What is the number?")
AGNOSTIC, AWARE = "question-agnostic", "question-aware"
EVERY = 16  # new tokens from cut to cut, in runs that evict while generating
CLOSE = {"atol": 3e-4, "rtol": 1e-3}


def run_of(model, protocol, methods=("snapkv", "adakv"), **more):
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?", protocol=protocol)
    return kvviz.compare(model, prompt, methods, [0.3, 0.15], 5, **more)


def said(model, v):
    return [t for t in v.token_ids if t not in model.stop_ids]


def expected_first(model, c, turns, v, hf=None):
    """(token ids, KL) of the last turn for one cache, written by the masked model from whole sequences."""
    n, before = c.n, []
    for i, turn in enumerate(turns):
        if turn.fresh:
            before = []
        elif i == 0:
            before = c.prompt.input_ids[n:].tolist() + said(model, c.full if v == FULL else c_answer(c, v))
        before += turn.input_ids
        if i < len(turns) - 1:
            before += said(model, turn.answer(v))
    ids = torch.cat([torch.as_tensor(c.prompt.input_ids[:n]), torch.tensor(before, dtype=torch.long)])
    keep = None
    if v != FULL:
        keep = [torch.from_numpy(m)[None] for m in c_answer(c, v).packed.mask]
    answer = turns[-1].answer(v).token_ids
    full = turns[-1].full.token_ids
    family = model.id.removeprefix("tiny-")
    rows = []
    for tail in (answer, full):
        whole = torch.cat([ids, torch.tensor(tail[:-1], dtype=torch.long)])[None]
        rows.append(masked_logits(hf or masked_model(family), whole, n, keep)[0, len(ids) - 1 :])
    return rows


def c_answer(c, key):
    return next(v for v in c.variants if v.key == key)


@pytest.mark.parametrize("protocol", [AGNOSTIC, AWARE])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "mistral"])
def test_three_turns_are_the_plain_model_with_the_same_rows_hidden(family, protocol):
    model = make_model(family)
    c = run_of(model, protocol)
    session = kvviz.conversation(model, c)
    for question in QUESTIONS:
        session.ask(question)
    turns = session.comparison.turns
    assert len(turns) == 3
    for count in (1, 2, 3):
        full = None
        for key in [FULL, *(v.key for v in c.variants)]:
            own, forced = expected_first(model, c, turns[:count], key)
            answer = turns[count - 1].answer(key)
            # Each written token was the likeliest of the masked model (or as likely).
            taken = own.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(taken, own.max(-1).values, **CLOSE)
            log = forced.double().log_softmax(-1)
            full = log if full is None else full
            kl = (full.exp() * (full - log)).sum(-1)
            torch.testing.assert_close(torch.as_tensor(answer.kl).double(), kl, atol=2e-4, rtol=2e-3)


def step_by_step(model, trace, v, ids):
    """Who sees whom, a layer [Hkv, N, N], where one cache is fed `ids` token by token and cut every EVERY."""
    wave = Wave(model, build_cache(trace, [v.selection]), len(ids))
    Rolling(trace, wave, [v.selection], EVERY)
    total, heads = trace.n + len(ids), model.n_kv_heads
    sees = [torch.ones(heads, total, total, dtype=torch.bool).tril() for _ in range(model.n_layers)]
    for step, token in enumerate(ids):
        for index in range(model.n_layers):
            positions = wave.rows(index, 0)[2]
            row = torch.zeros(heads, total, dtype=torch.bool).scatter_(1, positions, True)
            row[:, trace.n + step] = True
            sees[index][:, trace.n + step] = row
        wave.feed(torch.tensor([[token]]), 1)
    return [rows[None] for rows in sees]


@pytest.mark.parametrize(("method", "protocol"), [("h2o", AGNOSTIC), ("snapkv", AWARE)])
def test_three_turns_of_caches_that_go_on_being_cut_are_the_plain_model_with_those_rows_hidden(
    method, protocol
):
    """The run and its turns as one sequence, read by the masked model at once: every token that the cache
    wrote is the likeliest there, and the KL of the last answer is that of the two models."""
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?", protocol=protocol)
    trace = kvviz.prefill(model, prompt, methods=[method])
    c = kvviz.compare(model, prompt, [method], [0.3], 5, evict_every=EVERY, scored=Scored(trace))
    session = kvviz.conversation(model, c)  # it reads the document again: what methods need comes with it
    for question in QUESTIONS:
        session.ask(question)
    turns = session.comparison.turns
    start, full = prompt.input_ids[: c.n].tolist(), None
    for v in [c.full, *c.variants]:
        written, ids = [], prompt.input_ids[c.n :].tolist()
        for before, turn in zip([v, *(turn.answer(v.key) for turn in turns)], turns):
            written.append((len(ids), before.token_ids))
            ids += said(model, before) + turn.input_ids
        end = len(ids)
        ids += turns[-1].full.token_ids[:-1]
        keep = None if v is c.full else step_by_step(model, trace, v, ids)
        logits = masked_logits(masked_model("llama"), torch.tensor([start + ids]), 0, keep)[0, c.n - 1 :]
        for first, tokens in [*written, (end, turns[-1].answer(v.key).token_ids[:1])]:
            rows = logits[first : first + len(tokens)]
            taken = rows.gather(1, torch.tensor(tokens)[:, None])[:, 0]
            torch.testing.assert_close(taken, rows.max(-1).values, **CLOSE)
        log = logits[end:].double().log_softmax(-1)
        full = log if full is None else full
        kl = (full.exp() * (full - log)).sum(-1)
        last = torch.as_tensor(turns[-1].answer(v.key).kl).double()
        torch.testing.assert_close(last, kl, atol=2e-4, rtol=2e-3)
    assert last.max() > 1e-3, "the cache is not the full one"


@pytest.mark.parametrize(("protocol", "evict_every"), [(AGNOSTIC, None), (AWARE, None), (AGNOSTIC, EVERY)])
def test_a_fresh_question_is_as_if_it_were_the_first(protocol, evict_every):
    model = make_model("llama")
    methods = ["snapkv", "tova"]
    c = run_of(model, protocol, methods, evict_every=evict_every)
    session = kvviz.conversation(model, c)
    session.ask("Who wrote it?")
    fresh = session.ask("And where?", fresh=True)
    (alone,) = ask_more(model, c, "And where?", fresh=True).turns
    assert [v.token_ids for v in fresh.variants] == [v.token_ids for v in alone.variants]
    if protocol == AGNOSTIC:  # the very same run with this question in place of the first
        prompt = kvviz.build_prompt(model, TEXT, "And where?", protocol=protocol)
        other = kvviz.compare(model, prompt, methods, [0.3, 0.15], 5, evict_every=evict_every)
        assert [v.token_ids for v in fresh.variants] == [v.token_ids for v in other.variants]
        for mine, its in zip(fresh.variants, other.variants):
            torch.testing.assert_close(torch.as_tensor(mine.kl), torch.as_tensor(its.kl), **CLOSE)


def test_nothing_is_read_again_where_the_reading_is_at_hand(monkeypatch):
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?", protocol=AGNOSTIC)
    scored = Scored(kvviz.prefill(model, prompt, methods=["snapkv"]))
    c = kvviz.compare(model, prompt, ["snapkv"], [0.3], 4, scored=scored)
    monkeypatch.setattr("kvviz.engine.conversation.prefill_events", None)
    session = kvviz.conversation(model, c, scored)
    assert len(session.ask("Who?").variants) == 1 and len(session.ask("Where?").full.token_ids)


@pytest.mark.parametrize("ending", ["zip", "json"])
def test_turns_are_saved_with_the_run_and_go_on_from_the_file(tmp_path, ending):
    model = make_model("llama")
    session = kvviz.conversation(model, run_of(model, AGNOSTIC))
    session.ask("Who wrote it?", expected="keeper")
    path = tmp_path / f"run.{ending}"
    session.comparison.save(path) if ending == "zip" else session.comparison.to_json(path)
    again = kvviz.load_comparison(path)
    turn, other = session.comparison.turns[0], again.turns[0]
    assert (other.question, other.expected, other.fresh) == ("Who wrote it?", "keeper", False)
    for a, b in zip([turn.full, *turn.variants], [other.full, *other.variants], strict=True):
        assert (a.text, a.token_ids, a.kl.tolist()) == (b.text, b.token_ids, b.kl.tolist())
    before, after = session.ask("And where?"), kvviz.conversation(model, again).ask("And where?")
    assert [v.token_ids for v in before.variants] == [v.token_ids for v in after.variants]
    frame = again.turns_frame()
    assert frame.number.tolist() == [0] * 5 + [1] * 5 and set(frame.verdict[5:]) <= {"right", "wrong"}


def test_a_stop_leaves_the_run_as_it_was():
    model = make_model("llama")
    c = run_of(model, AGNOSTIC)
    stop = threading.Event()
    stop.set()
    assert ask_more(model, c, "Who?", cancel=stop).turns == []


def test_what_cannot_be_asked_is_one_sentence():
    model = make_model("llama")
    c = run_of(model, AGNOSTIC)
    with pytest.raises(InputError, match="Ask a question"):
        kvviz.conversation(model, c).ask(" ")
    with pytest.raises(InputError, match="conversation would have"):
        kvviz.conversation(model, c).ask("why " * 5000)
    refuses = "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0]['content'] }}"
    one = make_model("llama", tokenizer=make_tokenizer(refuses))
    with pytest.raises(InputError, match="no further turns"):
        kvviz.conversation(one, run_of(one, AWARE)).ask("Why?")


def test_several_questions_share_one_reading_and_one_compression(monkeypatch):
    from kvviz.engine import run

    model = make_model("llama")
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?", protocol=AGNOSTIC)
    readings, real = [], run.prefill_events
    monkeypatch.setattr(run, "prefill_events", lambda *a: readings.append(1) or real(*a))
    monkeypatch.setattr("kvviz.engine.conversation.prefill_events", None)
    c = kvviz.compare(model, prompt, ["snapkv"], [0.3], 4, questions=["Who?", ("Where?", "ledger")])
    assert readings == [1] and [(t.question, t.expected, t.fresh) for t in c.turns] == [
        ("Who?", None, True), ("Where?", "ledger", True)]  # fmt: skip


@pytest.mark.parametrize(
    ("questions", "more", "words"),
    [
        ([" "], {}, "blank"),
        ([("a", "b", "c")], {}, "is one text, or one with"),
        ([7], {}, "is one text, or one with"),
        (["why " * 5000], {}, "Shorten it"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused_before_the_document_is_read(
    monkeypatch, questions, more, words
):
    monkeypatch.setattr("kvviz.engine.run.prefill_events", None)
    model = make_model("llama")
    prompt = kvviz.build_prompt(model, TEXT, "What is the code?", protocol=AWARE)
    with pytest.raises(InputError, match=words):
        kvviz.compare(model, prompt, ["snapkv"], [0.3], 4, questions=questions, **more)


def test_python_lines_ask_the_turns_again(tmp_path):
    from kvviz import exports

    model = make_model("llama")
    session = kvviz.conversation(model, run_of(model, AGNOSTIC))
    session.ask("Who wrote it?", expected="the keeper")
    session.ask("And where?", fresh=True)
    made = {"load": lambda *args, **kwargs: model, "hf_model": None, "tokenizer": None}
    lines = exports.python_lines(session.comparison)
    exec(lines.replace("kvviz.load_model", "load").replace("kvviz.wrap_model", "load"), made)
    for mine, its in zip(session.comparison.turns, made["session"].comparison.turns, strict=True):
        assert (mine.question, mine.expected, mine.fresh) == (its.question, its.expected, its.fresh)
        assert [v.token_ids for v in mine.variants] == [v.token_ids for v in its.variants]


@pytest.mark.slow
def test_three_turns_of_the_embedded_model(smollm):
    document = " ".join(f"Entry {i}: the keeper noted {i * 37 % 101} casks of oil." for i in range(20))
    prompt = kvviz.build_prompt(smollm, document, "What was noted in entry 7?", protocol=AGNOSTIC)
    c = kvviz.compare(smollm, prompt, ["snapkv", "criticalkv"], [0.3], 12)
    session = kvviz.conversation(smollm, c)
    for question in ("And in entry 9?", "Who noted it?", "What is oil kept in?"):
        session.ask(question)
    before = smollm.hf.config._attn_implementation
    try:
        smollm.hf.config._attn_implementation = "kvviz_test_masked"
        for key in (FULL, *(v.key for v in c.variants)):
            own, _ = expected_first(smollm, c, session.comparison.turns, key, smollm.hf)
            answer = session.comparison.turns[-1].answer(key)
            assert own.argmax(-1).tolist() == answer.token_ids
    finally:
        smollm.hf.config._attn_implementation = before
