"""KVzip (arXiv 2505.23416): what the model looks at when it is asked to repeat the context.

    s_j = max over repeat queries t and over the group of p_tj

p is a softmax over the sinks, the chunk being repeated and the repeat prompt itself, not over the
whole cache; the prompt is repeated in chunks of 2,048 tokens. One ranking for all layers and heads,
scores as they are, no floor for any head. With `plus` (KVzip+) a row is divided by the norm of its
hidden state and a column multiplied by ||v_j W_O||_2 before the maximum. The sinks are kept; the
authors keep the whole system prompt. Cost: a second and third reading of the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvviz.engine.budgets import NORMALISE
from kvviz.methods.parts import SINKS, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView


def score(layer: LayerView, options: Options) -> Scores:
    highest = layer.extra("repeat")
    if options["plus"]:
        # The norm of a column is the same for all rows, so it may follow the maximum over rows.
        highest = layer.extra("repeat_plus")[:, layer.first_position :] * layer.value_norms(2)
    else:
        highest = highest[:, layer.first_position :]
    return Scores(reduce_group(highest[:, : layer.context], layer, "max"))


PLUS = Option("plus", False, SWITCH, "KVzip+: weigh by the sizes of value and hidden state.")

METHOD = Method(
    id="kvzip",
    label="KVzip",
    idea="Keeps what the model needs to repeat the context word for word.",
    paper="arXiv 2505.23416",
    reads="attention of a repeat pass",
    score=score,
    needs=frozenset({"repeat"}),
    allocation="global",
    rows=(SINKS, PLUS, NORMALISE.having(False)),
    cost="two more readings of the prompt",
)
