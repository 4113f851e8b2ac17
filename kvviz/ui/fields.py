"""The fields of the page: document and question, methods and budgets, run."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kvviz.engine.ask import Ask
from kvviz.evaluate.examples import Example, examples

NAMES = (
    "document", "question", "expected", "protocol", "methods", "budgets", "variants", "model",
    "dtype", "max_new_tokens", "window", "system", "controlled", "evict_every", "temperature",
    "top_p", "seed",
)  # fmt: skip
PROTOCOLS = [
    ("The question is known while compressing", "question-aware"),
    ("The question comes later", "question-agnostic"),
]
FIRST_METHODS = ("snapkv", "criticalkv", "keydiff", "streaming_llm")


@dataclass
class Form:
    """The components that handlers read or fill."""

    inputs: list[Any]
    document: gr.Textbox
    question: gr.Textbox
    expected: gr.Textbox
    protocol: gr.Radio
    upload: gr.UploadButton
    saved: gr.UploadButton
    run: gr.Button
    stop: gr.Button
    examples: list[tuple[gr.Button, Example]]
    methods: gr.CheckboxGroup
    budgets: gr.Dropdown
    sized: list[Any]  # the fields that decide how long a run takes
    model: gr.Dropdown
    dtype: gr.Dropdown


def build(engine: Any) -> Form:
    """Lay out the fields inside one accordion, closed at first: the page opens on a result."""
    setup = gr.Accordion("Use my own text", open=False, elem_id="kv-setup")
    with setup, gr.Row(elem_id="kv-steps"):
        with gr.Column(scale=5, min_width=300):
            gr.HTML("<h3>1 · Document and question</h3>", elem_classes="kv-step")
            shown = _example_buttons()
            document = gr.Textbox(
                label="Document", lines=9, max_lines=9, elem_id="kv-document-field",
                placeholder="Paste a text, or upload a .txt or .md file",
            )  # fmt: skip
            upload = gr.UploadButton(
                "Upload a text file", file_types=[".txt", ".md", ".py", ".csv", ".json"],
                size="sm", elem_id="kv-upload",
            )  # fmt: skip
            question = gr.Textbox(label="Question", lines=1, elem_id="kv-question-field")
            expected = gr.Textbox(
                label="Expected answer (optional, for right/wrong)", lines=1,
                elem_id="kv-expected-field",
            )  # fmt: skip
            protocol = gr.Radio(
                PROTOCOLS, value="question-aware", label="What is compressed",
                elem_id="kv-protocol-field",
            )  # fmt: skip
        with gr.Column(scale=5, min_width=300):
            gr.HTML("<h3>2 · Methods and budgets</h3>", elem_classes="kv-step")
            methods = _methods(engine)
            budgets = gr.Dropdown(
                ["50%", "30%", "20%", "10%", "5%", "2%"], value=["50%", "20%", "10%", "5%"],
                multiselect=True, allow_custom_value=True, elem_id="kv-budgets-field",
                label="Budgets: percent of the cache kept, or tokens per KV head as 128t",
            )  # fmt: skip
            gr.HTML(html_template='<div id="kv-unavailable" class="kv"></div>', apply_default_css=False)
            _about(engine.methods())
            variants, more = _more_settings(engine)
        with gr.Column(scale=3, min_width=240):
            gr.HTML("<h3>3 · Run</h3>", elem_classes="kv-step")
            with gr.Row():
                run = gr.Button("Run", variant="primary", elem_id="kv-run-button")
                stop = gr.Button("Stop", elem_id="kv-stop-button")
            gr.HTML(html_template='<div id="kv-run" class="kv"></div>', apply_default_css=False)
            saved = gr.UploadButton(
                "Open a saved run", file_types=[".zip", ".json"], size="sm",
                elem_id="kv-open-saved",
            )  # fmt: skip
    inputs = [document, question, expected, protocol, methods, budgets, variants, *more]
    return Form(inputs, document, question, expected, protocol, upload, saved, run, stop, shown,
                methods, budgets, [document, methods, variants, budgets, more[0], more[2]],
                *more[:2])  # fmt: skip


def _methods(engine: Any) -> gr.CheckboxGroup:
    specs = engine.methods()
    known = [spec.id for spec in specs]
    chosen = [m for m in FIRST_METHODS if m in known] or known[:2]
    return gr.CheckboxGroup(
        [(spec.label, spec.id) for spec in specs], value=chosen, label="Methods",
        elem_id="kv-methods-field",
    )  # fmt: skip


def _about(specs: list[Any]) -> None:
    """What each method does, in its own words."""
    with gr.Accordion("What the methods do", open=False, elem_id="kv-about"):
        rows = "".join(
            f"<dt>{html.escape(spec.label)}{' (reconstructed)' if _made(spec) else ''}</dt>"
            f"<dd>{html.escape(spec.idea)}</dd>"
            for spec in specs
        )
        gr.HTML(f"<dl>{rows}</dl>", elem_classes="kv-about")


def _made(spec: Any) -> bool:
    return bool(getattr(spec, "reconstructed", ""))


def _more_settings(engine: Any) -> tuple[gr.Dropdown, list[Any]]:
    """(methods with another allocation, the other fields in the order of NAMES)."""
    from kvviz.models.catalog import CATALOG
    from kvviz.settings import settings

    limits = settings()
    choices = [(f"{offer.label} ({offer.needs})", offer.id) for offer in CATALOG]
    with gr.Accordion("Model and settings", open=False, elem_id="kv-more"):
        model = gr.Dropdown(
            choices, value=CATALOG[0].id, allow_custom_value=not limits.public,
            label="Model" if limits.public else "Model (or a hub id, a folder, a .gguf file)",
            elem_id="kv-model-field",
        )  # fmt: skip
        dtype = gr.Dropdown(
            ["auto", "float32", "bfloat16", "float16"], value="auto", label="Number format"
        )
        new_tokens = gr.Slider(
            1, min(256, limits.max_new_tokens), value=min(Ask.max_new_tokens, limits.max_new_tokens), step=1,
            label="Answer length, tokens at most", elem_id="kv-new-tokens-field",
        )  # fmt: skip
        window = gr.Number(
            None, label="Observation window, tokens (empty: each method's own)", elem_id="kv-window-field"
        )
        system = gr.Textbox(label="System message (optional)", lines=1)
    with gr.Accordion("Advanced", open=False, elem_id="kv-advanced"):
        variants = gr.Dropdown(
            _variants(engine), value=[], multiselect=True, allow_custom_value=True,
            label="Methods with another allocation or other options", elem_id="kv-variants-field",
            info="Choose, or write a method with its options, such as snapkv:window=16,allocation=global",
        )  # fmt: skip
        controlled = gr.Checkbox(
            False, label="Controlled settings", elem_id="kv-controlled-field",
            info="Every method gets the same window, pooling and way of joining query heads, but for options "
            "written with its name",
        )  # fmt: skip
        every = gr.Number(
            0, elem_id="kv-every-field",
            label="Evict again after every so many new tokens (0 = never)",
            info="Only methods that can: " + ", ".join(
                spec.label for spec in engine.methods() if getattr(spec, "decodes", False)),
        )  # fmt: skip
        temperature = gr.Slider(0, 2, value=0, step=0.05, label="Temperature (0 = greedy)")
        top_p = gr.Slider(0.05, 1, value=1, step=0.05, label="Top-p")
        seed = gr.Number(0, label="Seed")
    return variants, [model, dtype, new_tokens, window, system, controlled, every, temperature, top_p, seed]


# Allocations that need what only their own methods state: errors by layer, gates by head.
_OWN_ONLY = ("calibrated", "whole_heads")


def _variants(engine: Any) -> list[tuple[str, str]]:
    """Every method with every allocation that is not its own and can serve it."""
    return [
        (f"{spec.label} with {label}", f"{spec.id}:allocation={name}")
        for spec in engine.methods()
        for name, label in engine.allocations().items()
        if name != spec.allocation and name not in _OWN_ONLY
    ]


def _example_buttons() -> list[tuple[gr.Button, Example]]:
    with gr.Row(elem_id="kv-example-row"):
        return [
            (gr.Button(example.title, size="sm", elem_classes="kv-example"), example)
            for example in examples()
        ]


def wire_examples(form: Form, view: dict[str, Any]) -> None:
    """Each example button fills the fields."""
    outputs = [form.document, form.question, form.expected, form.protocol]
    for button, example in form.examples:
        button.click(_filler(example), None, outputs, **view)


def _filler(example: Example) -> Callable[[], tuple[str, str, str, str]]:
    first = example.questions[0]
    filled = example.document, first.question, first.expected, example.protocol
    return lambda: filled
