"""The named endpoint that `gradio_client` can call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from kvviz.ui import asks, worker
from kvviz.ui.line import Line


def compare_endpoint(
    engine: Any, check: Callable[[asks.Request], None], line: Line
) -> Callable[..., dict]:
    """`/compare`: run methods on a document and give the answers and the whole comparison."""

    def compare(
        document: str,
        question: str,
        methods: list[str],
        budgets: list[float],
        expected: str = "",
        model: str = "smollm2-135m",
        protocol: str = "question-aware",
        max_new_tokens: int = 32,
        seed: int = 0,
    ) -> dict:
        """Compare cache eviction methods on one document and question.

        Args:
            document: the text the model reads.
            question: what it is asked about the text.
            methods: method ids, for example ["snapkv", "criticalkv"].
            budgets: shares of the document's cache that are kept, each above 0 and up to 1.
            expected: an answer that must occur, or "".
            model: a model of the catalogue.
            protocol: "question-aware" or "question-agnostic".
            max_new_tokens: longest answer in tokens.
            seed: seed of random methods.

        Returns:
            {"answers": [one row an answer], "comparison": the saved form as JSON} or
            {"error": one sentence}.
        """
        from kvviz.errors import KvvizError

        try:
            ask = asks.request(
                document=document, question=question, methods=methods,
                budgets=[100 * float(b) for b in budgets], expected=expected, model=model,
                protocol=protocol, max_new_tokens=max_new_tokens, seed=seed, dtype="auto",
            )  # fmt: skip
            check(ask)
        except (KvvizError, TypeError, ValueError) as error:
            return {"error": str(error)}
        try:
            with line.turn():
                *_, last = worker.stream(engine, ask, threading.Event())
        except KvvizError as error:  # the line is full
            return {"error": str(error)}
        if last.get("result") is None:
            return {"error": last["message"]}
        saved = json.loads(last["result"].to_json())
        return {"answers": saved["table"], "comparison": saved}

    return compare
