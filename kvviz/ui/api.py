"""The named endpoint that `gradio_client` can call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from kvviz.engine.ask import Ask
from kvviz.errors import KvvizError
from kvviz.ui import asks, worker
from kvviz.ui.desk import Desk
from kvviz.ui.turns import in_turn
from kvviz.ui.visitors import address, session


def compare_endpoint(desk: Desk) -> Callable[..., Iterator[dict]]:
    """`/compare`: run methods on a document and give the answers and the whole comparison."""

    def compare(
        document: str,
        question: str,
        methods: list[str],
        budgets: list[Any],
        expected: str = "",
        model: str = asks.Request.model,
        protocol: str = asks.Request.protocol,
        max_new_tokens: int = Ask.max_new_tokens,
        seed: int = Ask.seed,
        system: str = "",
        cue: str = "",
        template: bool = True,
        thinking: bool = False,
        turns: list[dict] | None = None,
        raw: str = "",
        questions: list[Any] | None = None,
        request: gr.Request | None = None,
    ) -> Iterator[dict]:
        """Compare cache eviction methods on one document and question.

        Args:
            document: the text the model reads.
            question: what it is asked about the text.
            methods: method ids with their options, for example ["snapkv", "criticalkv:window=16"].
            budgets: what is kept: shares above 0 and up to 1 (0.2 or "20%"), or whole numbers of
                tokens per KV head (128 or "128"). 1 is one token; write "100%" for everything.
            expected: an answer that must occur, or "".
            model: a model of the catalogue.
            protocol: "question-aware" or "question-agnostic".
            max_new_tokens: longest answer in tokens.
            seed: seed of random methods.
            system: a system message, or "".
            cue: what the answer begins with; it goes on from there, and only that is judged.
            template: False to read document and question as plain text, without the chat template.
            thinking: let a model that can think before it answers.
            turns: turns before the document's, [{"role": "user" or "assistant", "content": text}].
            raw: the whole prompt as one text with {document} and {question} in it, or "".
            questions: further ones to the same compressed document, each a text or [text, expected answer].

        Returns:
            {"answers": [one row an answer], "comparison": the saved form as JSON} or
            {"error": one sentence}.
        """
        try:
            ask = asks.request(
                desk.limits, document=document, question=question, methods=methods, budgets=budgets,
                expected=expected, model=model, protocol=protocol, max_new_tokens=max_new_tokens, seed=seed,
                system=system, questions=questions, framing=asks.framing_of(
                    cue=cue, template=template, thinking=thinking, turns=turns, raw=raw
                ),
            )  # fmt: skip
        except KvvizError as error:
            yield {"error": str(error)}
            return

        def work(cancel: threading.Event, progress: worker.Progress) -> Iterator[Any]:
            return desk.engine.stream(ask, cancel, progress)

        # What is yielded on the way says that work goes on, and lets it end when the client is gone.
        with desk.visitors.working(session(request)) as cancel:
            for status in in_turn(desk.line, address(request), work, cancel):
                if status["state"] == "running":
                    yield {"status": status["message"] or status["title"]}
        if status.get("result") is None:
            yield {"error": status["message"]}
            return
        saved = json.loads(status["result"].to_json())
        yield {"answers": saved["table"], "comparison": saved}

    return compare
