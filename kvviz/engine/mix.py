"""What a mix (`kvviz.results.mix`) keeps of a run, from the run's stored numbers alone, and its answer.

Budgets, protection, ties and counts are those of any method: the same selection, on stored rows.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import cast

import torch

from kvviz.engine.ask import MEASURES, Ask
from kvviz.engine.run import compare_stream
from kvviz.engine.scoring import MethodScores, Scored, Wanted
from kvviz.engine.selection import Selection, selected
from kvviz.engine.steps import called_as, result_of
from kvviz.engine.trace import Trace
from kvviz.errors import InputError
from kvviz.identity import Budget
from kvviz.methods import Method, Scores
from kvviz.methods.layer import Rows
from kvviz.methods.mixing import never_zero, positions, three_digits
from kvviz.methods.parts import POOL, POOL_KIND, SINKS, WINDOW, pool
from kvviz.models import Model
from kvviz.results import mix as recipes
from kvviz.results.comparison import Comparison
from kvviz.results.mix import MIX, POWERS, Mix, check_new, label_of, missing, name_in
from kvviz.types import Event


class _Stored:
    """The rows of a stored run, as far as protection and budgets ask for them."""

    def __init__(self, c: Comparison):
        self.model, self.n, self._starts = c.model, c.n, c.window_starts().tolist()

    def rows(self, index: int) -> int:
        return self.n - self._starts[index]


def mixed(c: Comparison, mix: Mix, budget: float | int | str) -> Selection:
    """What the mix keeps of this run at a budget; needs no model. InputError where the run lacks something
    that is mixed in."""
    started = time.perf_counter()
    for why in missing(c, mix).values():
        raise InputError(why)
    asked, spec = Budget.parse(budget), _spec(mix)
    rows = cast(Rows, _Stored(c))  # nothing but its scores asks for more, and those are here
    options = spec.resolve()
    want = Wanted.at(rows, spec, options, asked.of(c.n))
    layers = [
        Scores(_score(c, mix, options, index, account.context)) for index, account in enumerate(want.rows)
    ]
    return selected(rows, want, MethodScores(layers), asked, MIX, started)


def _spec(mix: Mix) -> Method:
    """The mix as a row of the registry, where it never stands: its scores come from `_score`."""
    return Method(
        id=MIX, label="Mix", idea=f"Ranks by {mix.words}.", paper="", score=_unused,
        rows=(WINDOW.having(recipes.WINDOW), SINKS.having(mix.sinks), POOL.having(mix.pool),
              POOL_KIND.having(mix.pool_kind)),
        allocation="across_heads" if mix.across else "uniform",
    )  # fmt: skip


def _unused(layer, options) -> Scores:
    raise InputError("A mix ranks what a run stored. Write it as a method file to score a text with it.")


def _score(c: Comparison, mix: Mix, options, index: int, context: int) -> torch.Tensor:
    """float32 [Hkv, context] of one layer: the lines of `method_file`, on stored numbers."""
    first = c.n - _Stored(c).rows(index)
    out = torch.ones(c.model.n_kv_heads, context, dtype=torch.float64)
    for name, power in mix.powers.items():
        lens = POWERS[name][0]
        if not lens:
            out = out * positions(first, c.n)[:context] ** power
            continue
        row = torch.from_numpy(c.lenses[lens][index][:, first : first + context])
        part = three_digits(row).double()
        if name == "attention":
            part = pool(part, options)
        elif name == "key":
            part = never_zero(part)
        out = out * part**power
    return out.float()


# -- its answer -------------------------------------------------------------------------------------------


def try_mix_stream(
    model: Model,
    comparison: Comparison,
    mix: Mix,
    budget: float | int,
    *,
    trace: Trace | None = None,
    scored: Scored[Trace] | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[Event]:
    """`try_mix` as an iterator of events; the last one carries the result. What is to be tried is checked at
    the call."""
    check_new(comparison, mix, budget)
    chosen, name = mixed(comparison, mix, budget), name_in(comparison, mix)
    notes = [f"A mix of what the run stored: {mix.words}.", *chosen.notes]
    chosen = dataclasses.replace(chosen, method=name, label=label_of(name), notes=notes)
    prompt = dataclasses.replace(comparison.prompt, input_ids=torch.as_tensor(comparison.prompt.input_ids))
    ask = Ask.of_settings(comparison.settings)
    ask = ask.of(methods=(), budgets=(), controlled=False, evict_every=None)
    return compare_stream(
        model,
        prompt,
        ask=dataclasses.replace(ask, expected=comparison.expected, measures=MEASURES, lenses=False),
        selections=[chosen],
        trace=trace,
        scored=scored,
        cancel=cancel,
    )


@called_as(try_mix_stream)
def try_mix(stream: Iterator[Event]) -> Comparison:
    """The answer from what the mix keeps of this run: `variants[0]`, the very set that `mixed` gives.

    trace, scored  of the same prompt, so that nothing is read again. `kvviz.results.mix.with_mix` puts it
                   into the run.
    """
    return result_of(stream)
