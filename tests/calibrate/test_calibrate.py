"""Calibrators on tiny models: worked examples, what training does, stopping and going on."""

import threading

import pytest
import torch
from tiny import make_model

from kvviz.calibrate import calibrate
from kvviz.calibrate import indexmem as training
from kvviz.calibrate.compresskv import head_scores, recall
from kvviz.calibrate.duoattention import _Prompt
from kvviz.calibrate.job import Job
from kvviz.calibrate.texts import FACTS, SHIPPED, Texts
from kvviz.errors import Cancelled, InputError
from kvviz.evaluate.examples import examples
from kvviz.evaluate.needles import CODE, NEEDLE, QUESTION
from kvviz.methods import artefacts

NAMES = ("compresskv", "indexmem", "duoattention", "qfilters")

pytestmark = pytest.mark.slow  # training, if only of tiny models


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Short texts, so that a byte-level tokenizer and a tiny model take seconds."""
    from kvviz.calibrate import compresskv, duoattention, qfilters

    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(training, "LENGTHS", (160,))
    monkeypatch.setattr(training, "MOST_PIECES", 6)
    monkeypatch.setattr(training, "ROWS", 64)
    monkeypatch.setattr(training, "_EVERY", 2)
    monkeypatch.setattr(compresskv, "LENGTHS", (400,))
    monkeypatch.setattr(compresskv, "ANSWER_TOKENS", 4)
    monkeypatch.setattr(duoattention, "LENGTH", 300)
    monkeypatch.setattr(duoattention, "PROMPTS", 2)
    monkeypatch.setattr(duoattention, "_EVERY", 2)
    monkeypatch.setattr(qfilters, "LENGTH", 128)


def values(path):
    return artefacts.read(path).tensors


# -- every calibrator ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_makes_a_file_that_is_found_the_same_for_the_same_seed(name, tmp_path):
    model = make_model("llama")
    first = calibrate(name, model, steps=3)
    assert artefacts.find(model, name) == first
    about = artefacts.read(first).about
    assert about["steps"] == 3
    assert about["texts"]
    again = values(calibrate(name, model, steps=3, out=tmp_path / "again"))
    assert all(torch.equal(again[key], value) for key, value in values(first).items())
    assert [f.name for f in first.parent.iterdir()] == [first.name]  # the checkpoint is gone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_oss"])
def test_serves_other_families(name, family):
    artefacts.check(artefacts.read(calibrate(name, make_model(family), steps=2)), make_model(family).info, "")


STOP_AT = {
    "compresskv": "Layer errors, prompt 2",
    "indexmem": "Step 3 of",
    "duoattention": "Step 3 of",
    "qfilters": "Reading text 3",
}


@pytest.mark.parametrize("name", NAMES)
def test_stopped_it_goes_on_and_comes_to_the_same(name, tmp_path):
    model, calls = make_model("llama"), []
    cancel = threading.Event()

    def progress(message, fraction):
        calls.append(message)
        if message.startswith(STOP_AT[name]):
            cancel.set()

    out = tmp_path / "stopped"
    with pytest.raises(Cancelled, match="goes on from its last checkpoint"):
        calibrate(name, model, steps=4, out=out, progress=progress, cancel=cancel)
    assert not list(out.glob("[!.]*"))  # nothing half made under the final name
    before = len(calls)
    went_on = values(calibrate(name, model, steps=4, out=out, progress=lambda m, f: calls.append(m)))
    later = calls[before:]
    firsts = ("Needle prompt 1",) if name == "compresskv" else ("Step 1 of",)
    assert name == "qfilters" or not any(message.startswith(firsts) for message in later)
    whole = values(calibrate(name, model, steps=4, out=tmp_path / "whole"))
    assert all(torch.allclose(went_on[key], value, atol=1e-5) for key, value in whole.items())


def test_a_checkpoint_of_other_settings_is_not_used(tmp_path):
    model = make_model("llama")
    for seed, wanted in ((0, {"done": 2}), (1, None)):
        job = Job("indexmem", model, Texts(), 4, seed, tmp_path)
        if seed == 0:
            job.keep({"x": torch.ones(2)}, {"done": 2})
        kept = job.kept()
        assert (kept and kept[1]) == wanted


def test_what_cannot_be_done_is_a_sentence(tmp_path):
    model = make_model("llama")
    with pytest.raises(InputError, match="Choose from: qfilters, duoattention"):
        calibrate("snapkv", model)
    with pytest.raises(InputError, match="steps is a whole number"):
        calibrate("qfilters", model, steps=0)
    with pytest.raises(InputError, match="no .txt file"):
        calibrate("qfilters", model, texts=tmp_path)
    with pytest.raises(InputError, match="no folder"):
        calibrate("qfilters", model, texts=tmp_path / "none")


def test_texts_of_ones_own(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "mine.txt").write_text("A text of one's own about boats and rain. " * 20)
    about = artefacts.read(calibrate("qfilters", make_model("llama"), texts=folder, steps=2)).about
    assert [text.get("file") for text in about["texts"]][:1] == ["mine.txt"]


def test_texts_are_not_those_that_are_measured_with():
    shipped = " ".join(Texts().files.values())
    for example in examples():
        assert example.document[200:300] not in shipped
    held_out = (SHIPPED / "held_out" / "constitution.txt").read_text()
    assert held_out[1000:1100] not in shipped
    assert all(NEEDLE != s and QUESTION != q and CODE not in s for s, q, _ in FACTS)
    model = make_model("llama")
    document, fact = Texts().document(model, 400, 3, 0)
    assert fact[0] in document
    assert NEEDLE not in document


# -- CompressKV ---------------------------------------------------------------------------------------


def test_head_score_worked_example():
    # The needle is columns 1 and 2; both steps hit one needle token: (.3 + .2) + (.05 + .6) = 1.15
    rows = torch.tensor([[[0.1, 0.3, 0.2, 0.4], [0.05, 0.05, 0.6, 0.3]]])
    assert head_scores(rows, [7, 8], [7, 8], 1).item() == pytest.approx(1.15)
    # a token that stands twice in the needle counts twice: 2 x .5 + 2 x .65
    assert head_scores(rows, [7, 7], [7, 7], 1).item() == pytest.approx(2.3)
    # a step that produced something else does not count
    assert head_scores(rows, [7, 5], [7, 8], 1).item() == pytest.approx(0.5)


def test_recall():
    assert recall("The code is 12.", "the CODE of it is 12") == pytest.approx(4 / 6)
    assert recall("", "a b") == 0.0


# -- IndexMem -----------------------------------------------------------------------------------------


def test_blockwise_loss_is_the_whole_one():
    """Blocks of rows give the KL of the dense n x n attention."""
    model = make_model("llama")
    ids = torch.randint(4, 300, (50,), generator=torch.Generator().manual_seed(0))
    piece = training.read_piece(model, ids)
    weights = training.new_indexer(model.info, 0)
    dense = training.block_kl(model, weights, piece, 0, 50)
    blocks = [training.block_kl(model, weights, piece, first, 10) for first in range(0, 50, 10)]
    assert torch.allclose(torch.stack(blocks).mean(0), dense, rtol=1e-4)
    assert (dense > 0).all()


def test_training_lowers_the_loss_on_texts_it_has_not_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "RATE", 1e-2)  # a tiny model, a few dozen steps
    model = make_model("llama")
    learned = values(calibrate("indexmem", model, steps=60))
    texts = Texts()
    held_out = [
        training.read_piece(model, torch.tensor(ids[:160]))
        for ids in (model.tokenizer(text)["input_ids"] for text in _held_out())
    ]
    before = training.mean_kl(model, training.new_indexer(model.info, 0), held_out)
    after = training.mean_kl(model, learned, held_out)
    assert (after < before).all()
    assert float(after.mean()) < 0.7 * float(before.mean())
    assert texts.files


def _held_out():
    text = (SHIPPED / "held_out" / "constitution.txt").read_text()
    return [text[start : start + 900] for start in (0, 9000)]


def test_rate_warms_up_and_goes_to_nothing():
    rates = [training.rate_at(step, 200) for step in range(200)]
    assert rates[0] == pytest.approx(3e-4 / 6)
    assert max(rates) == pytest.approx(3e-4)
    assert rates.index(max(rates)) in (5, 6)
    assert rates[-1] < 1e-6


def test_gamma_is_the_least_squares_one(tmp_path):
    """No other gamma explains more of the error that eviction makes on its own texts."""
    model = make_model("llama")
    job = Job("indexmem", model, Texts(), 2, 0, tmp_path)
    learned = training.new_indexer(model.info, 0)
    gamma, share = training.fit_gamma(job, learned)
    assert gamma.shape == (3, 4)
    assert 0 <= share <= 1


# -- DuoAttention -------------------------------------------------------------------------------------


def test_gates_at_one_are_the_full_model_and_gradients_reach_all_gates(tmp_path):
    model = make_model("llama")
    prompt = _Prompt(Job("duoattention", model, Texts(), 2, 0, tmp_path), 0)
    gates = torch.ones(3, 2, requires_grad=True)
    assert float(prompt.error(gates)) < 1e-10
    gates = torch.full((3, 2), 0.5, requires_grad=True)
    prompt.error(gates).backward()
    assert (gates.grad != 0).all()
    assert all(p.grad is None for p in model.hf.parameters())


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_full_attention_is_that_of_the_plain_model(family, tmp_path):
    model = make_model(family)
    prompt = _Prompt(Job("duoattention", model, Texts(), 2, 0, tmp_path), 1)
    ids = torch.cat([prompt.trace.prompt.input_ids[: prompt.trace.n], prompt.ids])
    hidden = model.hf(input_ids=ids[None], output_hidden_states=True).hidden_states[-1][0]
    wanted = hidden[prompt.trace.n :][prompt.answers]
    assert torch.allclose(prompt.full, wanted, rtol=1e-3, atol=1e-3)
