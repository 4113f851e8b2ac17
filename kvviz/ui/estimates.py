"""About how long a run will take, told before it starts."""

from __future__ import annotations

import contextlib
from typing import Any

from kvviz.errors import KvvizError
from kvviz.results.comparison import Comparison
from kvviz.results.times import Times
from kvviz.settings import Settings
from kvviz.ui import asks
from kvviz.ui.runs import RunStore, stored_runs


class Estimates:
    """Scaled from the last run of the same model here, else of another by the models' sizes."""

    def __init__(self, limits: Settings, store: RunStore):
        self.limits, self.store = limits, store
        self._known: dict[str, Times] = {}

    def learn(self, model: str, c: Comparison) -> None:
        """Take a run's times."""
        if c.variants and c.seconds.get("prefill"):
            self._known[model] = Times.of(c)

    def seconds(
        self, document: Any, methods: Any, variants: Any, budgets: Any, model: Any, new_tokens: Any
    ) -> float | None:
        """Seconds that Run will take; None where that is not known, or the fields will be refused."""
        from kvviz.models.catalog import offer

        model = str(model or "").strip()
        found = self._times(model)
        text, named = str(document or ""), [*(methods or []), *(variants or [])]
        try:
            answers = len(named) * len(asks.percent_budgets(budgets))
            asks.check_text(self.limits, document=text)
        except KvvizError:
            return None
        if found is None or not text.strip() or not answers or answers > self.limits.max_variants:
            return None
        times, ratio = found
        offered = offer(model)
        most = min(self.limits.max_tokens, offered.context if offered else self.limits.max_tokens)
        if times.tokens_of(len(text)) > most:
            return None
        steps = int(new_tokens) if isinstance(new_tokens, int | float) and new_tokens >= 1 else 1
        return ratio * times.expected(len(text), len(named), answers, steps)

    def _learn_stored(self) -> None:
        """A fresh server goes by its stored example."""
        example = next(iter(stored_runs()), None)
        if not self._known and example is not None:
            with contextlib.suppress(KvvizError):  # a broken file is named when a visitor opens it
                c = self.store.get(example).comparison
                self.learn(c.model.id, c)

    def _times(self, model: str) -> tuple[Times, float] | None:
        """(times to scale, how many times larger this model is)."""
        from kvviz.models.catalog import CATALOG, offer

        if model in self._known:
            return self._known[model], 1.0
        wanted = offer(model)
        if wanted is None:
            return None
        self._learn_stored()
        for row in CATALOG:  # the smallest known one: stored runs are of it
            if row.id in self._known:
                return self._known[row.id], wanted.weights / row.weights
        return None
