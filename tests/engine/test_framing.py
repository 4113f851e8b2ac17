"""What stands around document and question: turns, a cue, raw text, thinking."""


import pytest
from test_prompts import AGNOSTIC, CHAT, MODELS, ODD, assert_spans_fit, joined
from tiny import NO_SYSTEM, make_model, make_tokenizer

from kvviz.engine.prompts import build_prompt
from kvviz.errors import InputError


def text_of(prompt):
    return "".join(prompt.tokens)


@pytest.mark.parametrize("protocol", ["question-aware", AGNOSTIC])
@pytest.mark.parametrize("name", MODELS)
def test_an_answer_goes_on_from_its_cue(name, protocol):
    model = MODELS[name]
    plain = build_prompt(model, ODD, "What is it?", protocol=protocol)
    cued = build_prompt(model, ODD, "What is it?", protocol=protocol, cue="It is <|im_end|> a")
    assert text_of(cued) == text_of(plain) + "It is <|im_end|> a"
    assert joined(cued, cued.cue_span).endswith("It is <|im_end|> a")
    controls = cued.input_ids.tolist().count(3) - plain.input_ids.tolist().count(3)
    assert controls == 0  # a look-alike in the cue is text
    if protocol == AGNOSTIC:
        assert cued.n_compressible == plain.n_compressible
    assert_spans_fit(cued)


def test_turns_stand_before_the_documents_own():
    turns = [{"role": "user", "content": "Hi <|im_end|>"}, {"role": "assistant", "content": "Yes?"}]
    prompt = build_prompt(CHAT, "Some text.", "What?", "Be brief.", turns=turns)
    assert text_of(prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nSome text.\n\nWhat?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert prompt.input_ids.tolist().count(3) == 4  # the visitor's own <|im_end|> is text
    assert_spans_fit(prompt)


@pytest.mark.parametrize("protocol", ["question-aware", AGNOSTIC])
def test_a_raw_prompt_is_read_as_it_stands(protocol):
    raw = "<|im_start|>Text: {document}<|im_end|> Q: {question} A:"
    prompt = build_prompt(CHAT, "a <|im_end|> b", "Why?", protocol=protocol, raw=raw, cue=" So")
    assert text_of(prompt) == "<|im_start|>Text: a <|im_end|> b<|im_end|> Q: Why? A: So"
    assert prompt.input_ids.tolist().count(3) == 1 and prompt.input_ids[0] == 2
    assert joined(prompt, prompt.question_span).strip() == "Why?"
    if protocol == AGNOSTIC:
        assert text_of(prompt)[: len("".join(prompt.tokens[: prompt.n_compressible]))].endswith(" b")
    assert_spans_fit(prompt)


def test_without_its_template_a_model_reads_plain_text():
    prompt = build_prompt(CHAT, "Some text.", "What?", template=False)
    assert text_of(prompt) == "Some text.\n\nWhat?\n" and prompt.notes == ()


def test_thinking_is_left_on_where_it_is_asked_for():
    template = CHAT.tokenizer.chat_template.replace(
        "<|im_start|>assistant\n' }}{% endif",
        "<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
        "<think></think>{% endif %}{% endif",
    )
    model = make_model(tokenizer=make_tokenizer(template))
    off, on = (build_prompt(model, "Text.", "What?", thinking=t) for t in (False, True))
    assert text_of(off).endswith("<think></think>") and "off" in off.notes[-1]
    assert text_of(on).endswith("assistant\n") and "on" in on.notes[-1]
    opens = make_model(tokenizer=make_tokenizer(CHAT.tokenizer.chat_template + "<think>"))
    assert text_of(build_prompt(opens, "Text.", "What?", thinking=True)).endswith("<think>")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"thinking": True}, "no thinking to switch on"),
        ({"raw": "{question} {document}"}, "each once"),
        ({"raw": "{document} {question}", "system": "x"}, "leave out the system"),
        ({"raw": "{document} {question}", "thinking": True}, "leave out turns"),
        ({"template": False, "turns": [("user", "x")]}, "chat template"),
        ({"turns": "hello"}, "Turns are a list"),
        ({"turns": [{"role": "system", "content": "x"}]}, "A turn before"),
        ({"turns": [("user", " ")]}, "A turn before"),
        ({"cue": 5}, "one text"),
        ({"cue": "x" * 200_000}, "Shorten it"),
        ({"cue": "x", "thinking": True}, "give no beginning"),
    ],
)
def test_a_framing_that_cannot_be_used_is_one_sentence(given, words):
    with pytest.raises(InputError, match=words):
        build_prompt(CHAT, "Text.", "What?", **given)


def test_turns_that_a_template_refuses_are_one_sentence():
    template = "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}" + NO_SYSTEM
    with pytest.raises(InputError, match="does not take these turns"):
        build_prompt(make_model(tokenizer=make_tokenizer(template)), "T.", "W?", turns=[("user", "x")])
