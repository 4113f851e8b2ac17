"""Two models with tokenizers of different kinds on one text: the same passages, found by their characters."""

import numpy as np
import pytest
from tiny import CHATML, make_model, make_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import kvviz
from kvviz.results.beside import aligned, kept_shares

DOCUMENT = (
    "The keeper of the lighthouse wrote: the code is 58213. Das Öl brannte über Nacht, 灯台守は書いた。 "
    "A cat 🐈‍⬛ slept on the ledger.\n\nNobody read the naïve entry again. The sea was calm.\n\n"
)
PASSAGES = {
    "word": DOCUMENT.split(),
    "sentence": [
        "The keeper of the lighthouse wrote: the code is 58213.",
        "Das Öl brannte über Nacht, 灯台守は書いた。",
        "A cat 🐈‍⬛ slept on the ledger.", "Nobody read the naïve entry again.", "The sea was calm.",
    ],
    "paragraph": DOCUMENT.strip().split("\n\n"),
}  # fmt: skip
DOCUMENT *= 2


def pieces_tokenizer():
    """As SentencePiece cuts: a unigram model whose words carry the space before them, bytes for the rest."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    marks = ["<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=marks, unk_token="<|endoftext|>", show_progress=False
    )
    backend.train_from_iterator([DOCUMENT], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


@pytest.fixture(scope="module")
def runs():
    made = []
    for family, tokenizer in (("llama", make_tokenizer()), ("qwen3", pieces_tokenizer())):
        model = make_model(family, tokenizer=tokenizer)
        prompt = kvviz.build_prompt(model, document=DOCUMENT, question="What is the code?")
        made.append(kvviz.compare(model, prompt, ["snapkv", "keydiff"], [0.5, 0.2], max_new_tokens=2))
    return made


def characters(c, span=(0, None)):
    """The characters of the document that tokens end in, without the white space behind them."""
    offsets = [o for o in c.prompt.offsets[: c.prompt.n_compressible][slice(*span)] if o is not None]
    return {s + len(DOCUMENT[s:e].rstrip()) - 1 for s, e in offsets if DOCUMENT[s:e].strip()}


@pytest.mark.parametrize("grain", ["word", "sentence", "paragraph"])
def test_passages_of_two_tokenizers_are_the_same_characters(runs, grain):
    one, two = runs
    assert one.n != two.n and one.prompt.tokens != two.prompt.tokens
    found = aligned(one.prompt, two.prompt, grain)
    assert [DOCUMENT[s:e] for s, e in found.characters.tolist()] == PASSAGES[grain] * 2
    for (s, e), a, b in zip(found.characters.tolist(), found.one.tolist(), found.two.tolist()):
        for c, span in ((one, a), (two, b)):
            here = set(range(s, e))
            assert characters(c, span) == characters(c) & here and max(here) in characters(c, span)


def test_what_two_models_keep_of_a_passage_is_compared(runs):
    one, two = runs
    found = aligned(one.prompt, two.prompt, "sentence")
    for c, spans in ((one, found.one), (two, found.two)):
        mask = np.stack(c.need("keydiff", 0.2).mask)
        means = [mask[:, :, s:e].mean() for s, e in spans.tolist()]
        assert kept_shares(c, "keydiff", 0.2, spans) == pytest.approx(means)
