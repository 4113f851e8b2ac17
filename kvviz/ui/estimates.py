"""About how long a run will take, told before it starts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
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
        self._texts: dict[str, tuple[Times, float]] = {}  # of the texts of a grid: as `_times`
        self._token_bytes: dict[str, int] = {}

    def learn(self, model: str, c: Comparison) -> None:
        """Take a run's times."""
        if c.variants and c.seconds.get("prefill"):
            self._known[model], self._token_bytes[model] = Times.of(c), c.token_bytes

    def told(self, args: dict[str, Any]) -> dict[str, Any]:
        """Of the fields that decide it: {"tokens", "most", "answers", "bytes", "seconds"}, as far as each can
        be told. `bytes` is the whole cache; the fields may hold anything.
        """
        from kvviz.models.catalog import offer

        model = str(args.get("model") or "").strip()
        text = str(args.get("document") or "")
        named = [m for name in ("methods", "variants") for m in _listed(args.get(name))]
        offered, found = offer(model), self._times(model)
        most = min(self.limits.max_tokens, offered.context if offered else self.limits.max_tokens)
        told: dict[str, Any] = {"most": most, "answers": 0, "tokens": None, "bytes": None, "seconds": None}
        with contextlib.suppress(KvvizError):
            told["answers"] = len(named) * len(asks.percent_budgets(args.get("budgets")))
        if found is None or not text.strip():
            return told
        times, ratio = found
        tokens = told["tokens"] = round(times.tokens_of(len(text)))
        if model in self._token_bytes:
            told["bytes"] = tokens * self._token_bytes[model]
        if told["answers"] and told["answers"] <= self.limits.max_variants and tokens <= most:
            wanted = args.get("max_new_tokens")
            steps = int(wanted) if isinstance(wanted, int | float) and wanted >= 1 else 1
            questions = 1 + len(_listed(args.get("questions")))
            told["seconds"] = ratio * times.expected(
                len(text), len(named), told["answers"], steps, questions
            )
        return told

    def of_texts(self, ask: asks.Request, lengths: Sequence[int]) -> list[float] | None:
        """Seconds of each text of a grid, of so many tokens; None where no run tells."""
        found = self._texts.get(ask.model) or self._times(ask.model)
        if found is None:
            return None
        times, ratio = found
        own = dataclasses.replace(times, seconds={k: v for k, v in times.seconds.items() if k != "lenses"})
        letters = times.characters / times.tokens
        new = ask.max_new_tokens
        # one answer more of 1 % of the cache, to tell what needs no document
        told = (len(ask.methods), ask.answers + 1, new)
        return [ratio * own.expected(round(n * letters), *told) for n in lengths]

    def learn_texts(self, ask: asks.Request, lengths: Sequence[int], spent: float) -> None:
        """Take the seconds in which texts of a grid were read and answered: their answers are shorter than a
        run's, and end by themselves."""
        found = self._texts.get(ask.model) or self._times(ask.model)
        expected = sum(self.of_texts(ask, lengths) or ())
        if found is not None and expected > 0:
            times, ratio = found
            self._texts[ask.model] = times, ratio * spent / expected

    def _learn_stored(self) -> None:
        """A fresh server goes by the stored run that was read fastest: the machine was busy beside others."""
        if self._known:
            return
        runs = []
        for name in stored_runs():
            with contextlib.suppress(KvvizError):  # a broken file is named when a visitor opens it
                runs.append(self.store.get(name).comparison)
        timed = [c for c in runs if c.variants and c.seconds.get("prefill")]
        if timed:
            fastest = min(timed, key=lambda c: c.seconds["prefill"] / c.n)
            self.learn(fastest.model.id, fastest)

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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
