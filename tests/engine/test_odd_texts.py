"""Texts that tokenizers of other projects stumbled over: what they rewrite, what they join, where an answer
is cut. What they owe to people: docs/CASES.md."""

import pytest
from tiny import make_model, make_tokenizer
from tokenizers import normalizers

import kvviz.engine.run
from kvviz.engine.prompts import build_prompt
from kvviz.engine.run import compare
from kvviz.results.marks import find_marks

REWRITTEN = (
    "T\x10his \x10\t is \u2026\u2026 \u2026 une part\u202f: cafe\u0301, "
    "\u1106\u1161\u1109\u1175\u11af\u1101\u1161\u1112\u1162\u110b\u116d, \ufb01n \uff43\uff4f\uff44\uff45, "
    "\U0001f914\U0001f914 code 58213. \U0001f468\u200d\U0001f469\u200d\U0001f467 The end."
)
ENDS = ("The tern.", "The tern.\n", "The tern.\n\n", "(h", "a ", "Fine \U0001f468\u200d", "x\u0301", "</s>")
QUESTIONS = ("What?", "\nu?", " x", ").", "\U0001f469 who?", "\u0301 what?")


def model_with(normaliser):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normaliser
    return make_model(tokenizer=tokenizer)


@pytest.mark.parametrize(
    "normaliser", [normalizers.NFC(), normalizers.NFKC(), None], ids=["nfc", "nfkc", "-"]
)
def test_characters_that_a_tokenizer_rewrites_shift_no_later_word(normaliser):
    prompt = build_prompt(model_with(normaliser), REWRITTEN, "Code?")
    assert prompt.document == REWRITTEN
    (mark,) = find_marks(prompt, "58213")
    assert "".join(prompt.tokens[mark.start : mark.end]).strip() == "58213"
    spans = [span for span in prompt.offsets if span]
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    assert {at for span in spans for at in range(*span)} == set(range(len(REWRITTEN)))
    end = REWRITTEN.index("The end")
    assert any(REWRITTEN[a:b].strip() == "The" for a, b in spans if a >= end - 1) or any(
        a == end for a, _ in spans
    )


@pytest.mark.parametrize("normaliser", [normalizers.NFC(), None], ids=["nfc", "-"])
@pytest.mark.parametrize("document", ENDS)
def test_a_token_over_the_end_of_the_document_changes_neither_prefix_nor_template(document, normaliser):
    model = model_with(normaliser)
    prefixes = set()
    for question in QUESTIONS:
        aware = build_prompt(model, document, question)
        turns = [{"role": "user", "content": f"{document}\n\n{question.strip()}"}]
        template = model.tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
        if "</s>" not in document:  # text that looks like a control token stays text here
            assert aware.input_ids.tolist() == template
        agnostic = build_prompt(model, document, question, protocol="question-agnostic")
        prefixes.add(tuple(agnostic.input_ids[: agnostic.n_compressible].tolist()))
        for prompt in (aware, agnostic):
            spans = [span for span in prompt.offsets if span]
            assert max(b for _, b in spans) == len(document)
            first, last = prompt.document_span
            assert "".join(prompt.tokens[first:last]).count(document[0]) >= 1
    assert len(prefixes) == 1


def test_an_answer_cut_within_a_character_shows_no_half_of_it(tiny_llama, monkeypatch):
    """While an answer is written the bytes of an unfinished character are held back; at its end the text is
    what all of its tokens decode to."""
    monkeypatch.setattr(kvviz.engine.run, "_EVENT_SECONDS", 0.0)
    tokenizer = tiny_llama.tokenizer
    party = tokenizer("tern \U0001f389", add_special_tokens=False)["input_ids"]
    assert len(party) >= 4
    wanted = iter([*party, *party])

    def scripted(wave, first, most, stop_ids, sampling, answers):
        for _ in range(most):
            token = next(wanted)
            for answer in answers:
                answer.token_ids.append(token)
            yield answers
        for answer in answers:
            answer.finished = "length"

    monkeypatch.setattr(kvviz.engine.run, "generate", scripted)
    prompt = build_prompt(tiny_llama, "A document of a few words.", "Say?")
    seen = []
    result = compare(tiny_llama, prompt, ["snapkv"], [0.5], len(party), measures=(), events=seen.append)
    shown = [next(iter(e.answers.values())) for e in seen if e.answers]
    assert len(shown) >= len(party)
    assert all("\ufffd" not in text for text in shown)
    assert result.full.text == tokenizer.decode(party) == "tern \U0001f389"
