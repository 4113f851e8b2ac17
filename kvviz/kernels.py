"""Chooses the kernel or its plain torch twin for each operation, and says which one ran.

The files lie in the folder `kernels/` at the top of the project, without an `__init__.py`: a public package
of that name exists and transformers imports it. They are reached as `kvviz.kernels.<operation>`.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve()
__path__ = [str(_HERE.parents[1] / "kernels")]

from kvviz.kernels import gather_rows as _gather_rows  # noqa: E402
from kvviz.kernels import ragged_attention as _ragged_attention  # noqa: E402
from kvviz.kernels import value_norms as _value_norms  # noqa: E402

gather_rows = _gather_rows.twin
ragged_attention = _ragged_attention.twin
merge_attention = _ragged_attention.merge
value_norms = _value_norms.twin
