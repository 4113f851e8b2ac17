"""What the page looks at besides the answers: single tokens, and every method at the slider's stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kvviz.engine.decode import Probes
from kvviz.engine.measures import answer_attention, output_errors, token_effects
from kvviz.engine.plan import Planned
from kvviz.engine.scoring import Scored
from kvviz.engine.selection import select_from
from kvviz.engine.trace import Trace
from kvviz.models import Model
from kvviz.results.comparison import Point

STOPS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
_STOP_BYTES = 128 * 2**20  # kept masks at the slider's stops are stored up to this much
_WINDOW = 32  # prompt queries whose attention is shown


def stops_for(model: Model, n: int, methods: int) -> tuple[float, ...]:
    """The slider's stops; none where the kept sets of so many methods at n tokens would be too large."""
    size = model.n_layers * model.n_kv_heads * n / 8 * len(STOPS) * methods
    return STOPS if size <= _STOP_BYTES else ()


def single_tokens(trace: Trace, probes: Probes) -> dict[str, np.ndarray]:
    """The lenses of `kvviz.results.comparison.Comparison`: {name: float32 [L, Hkv, n]}."""
    layers = range(trace.model.n_layers)
    attention = torch.stack([trace.window_attention(i, _WINDOW).mean(1).cpu() for i in layers])
    grouped = attention.unflatten(1, (trace.model.n_kv_heads, -1)).mean(2)
    sizes = {
        name: torch.stack([rows[i].float().norm(dim=-1).cpu() for i in layers]).numpy()
        for name, rows in (("value_size", trace.values), ("key_norm", trace.keys))
    }
    return {
        "attention": grouped.float().numpy(),
        "attention_answer": answer_attention(trace, probes),
        "effect": token_effects(trace, probes),
        **sizes,
    }


def at_stops(
    scored: Scored[Trace], probes: Probes, p: Planned, shares: Sequence[float], alive: Callable[[], None]
) -> list[Point]:
    """What a method keeps at each of these shares, and its output errors. alive() may raise to stop."""
    if not shares:
        return []
    chosen = [select_from(scored, p.name, share, **p.used) for share in shares]
    masks, readouts = [s.mask for s in chosen], [s.readout for s in chosen]
    for _, partial in output_errors(scored.trace, probes, masks, readouts):
        alive()
        errors = partial
    return [Point(p.name, s.budget, Point.pack(s).kept, error=e.l2) for s, e in zip(chosen, errors)]
