"""The named endpoint that `gradio_client` can call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from kvviz.engine.ask import Ask
from kvviz.errors import KvvizError
from kvviz.settings import Settings
from kvviz.ui import asks, worker
from kvviz.ui.line import Line


def compare_endpoint(engine: Any, limits: Settings, line: Line) -> Callable[..., dict]:
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
    ) -> dict:
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

        Returns:
            {"answers": [one row an answer], "comparison": the saved form as JSON} or
            {"error": one sentence}.
        """
        try:
            ask = asks.request(
                limits, document=document, question=question, methods=methods, budgets=budgets,
                expected=expected, model=model, protocol=protocol, max_new_tokens=max_new_tokens, seed=seed,
            )  # fmt: skip
            with line.turn():
                *_, last = worker.stream(engine, ask, threading.Event())
        except KvvizError as error:  # of the fields, or the line is full
            return {"error": str(error)}
        if last.get("result") is None:
            return {"error": last["message"]}
        saved = json.loads(last["result"].to_json())
        return {"answers": saved["table"], "comparison": saved}

    return compare
