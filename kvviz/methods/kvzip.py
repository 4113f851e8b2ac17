"""KVzip (arXiv 2505.23416): what the model looks at when it is asked to repeat the context.

    s_j = max over repeat queries t and over the group of p_tj

p is a softmax over the sinks, the chunk being repeated and the repeated tokens themselves, not over the
whole cache. What is repeated is the document, in chunks of 2,048 tokens, after a request that ends as the
prompt does after its question. One ranking for all layers and heads, scores as they are, no floor for any
head. With `plus` (KVzip+) a row is divided by the norm of its hidden state and a column multiplied by
||v_j W_O||_2 before the maximum. The sinks are kept, and of what follows the document (a question known
while compressing) as much as fits half the budget; what else lies outside the document scores 0. Cost: a
second and third reading of the document.

This is kvpress's form. The authors' own code keeps the whole system prompt besides the budget and takes it
for the sinks, repeats 2,000 tokens at a time, and ends the request for a later chunk with a blank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvviz.engine.budgets import NORMALISE
from kvviz.methods.parts import SINKS, reduce_group
from kvviz.methods.spec import Method, Options, Scores
from kvviz.options import SWITCH, Option

if TYPE_CHECKING:
    from kvviz.methods.layer import LayerView, Rows


def score(layer: LayerView, options: Options) -> Scores:
    highest = layer.extra("repeat")
    if options["plus"]:
        # The norm of a column is the same for all rows, so it may follow the maximum over rows.
        highest = layer.extra("repeat_plus")[:, layer.first_position :] * layer.value_norms(2)
    else:
        highest = highest[:, layer.first_position :]
    return Scores(reduce_group(highest[:, : layer.context], layer, "max"))


def _after_document(rows: Rows, b: int, options: Options) -> int:
    return min(rows.n - _document_end(rows), b // 2)


def _document_end(rows: Any) -> int:  # a trace's: no cache is cut by it while it generates
    return min(rows.prompt.document_span[1], rows.n)


def _caution(rows: Rows, b: int, options: Options) -> str:
    if b == rows.n:
        return ""
    notes = []
    after = rows.n - _document_end(rows)
    if options["protect"] is None and after > b // 2:
        notes.append(
            f"Of the {after} tokens after the document the last {b // 2} are kept by rule; the others are "
            "not repeated, so they go first."
        )
    if rows.extra("repeat_moved", 0):
        notes.append(
            "The document was repeated at earlier positions: after the prompt they would lie past the "
            f"{rows.model.info.max_tokens:,} tokens that {rows.model.id} reads."
        )
    return " ".join(notes)


PLUS = Option("plus", False, SWITCH, "KVzip+: weigh by the sizes of value and hidden state.")

METHOD = Method(
    id="kvzip",
    label="KVzip",
    group="attention",
    idea="Keeps what the model needs to repeat the context word for word.",
    paper="arXiv 2505.23416",
    reads="attention while the document is repeated",
    score=score,
    needs=frozenset({"repeat"}),
    allocation="global",
    rows=(SINKS, PLUS, NORMALISE.having(False)),
    cost="two more readings of the document",
    differs="the authors keep the whole system prompt besides the budget; here, as in kvpress, 4 sinks",
    protect=_after_document,
    caution=_caution,
)
