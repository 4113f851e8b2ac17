"""What changes with a model's size: the tables at the end of docs/results.md, from finished sweeps.

    python docs/make_trend.py DIR [DIR ...]

Every sweep holds the same items, methods and budgets for two models; the first of the table stands left.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd

from kvviz.results.comparison import FULL
from kvviz.results.study import read_table

COLUMNS = (
    ("needles found", "score", "sum", "{:.0f}"),
    ("KL, nats a token", "kl", "mean", "{:.2f}"),
    ("output error, median over heads", "output_error", "mean", "{:.0%}"),
    ("heads improved over the base", "heads_improved", "mean", "{:.0%}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweeps", nargs="+", metavar="DIR")
    for where in parser.parse_args().sweeps:
        table = read_table(where)
        small, large = table.model.unique()
        (protocol,) = table.protocol.unique()
        items, full = table.item.nunique(), table[table.method == FULL]
        right = full.groupby("model").score.sum()
        found = f"{right[small]:.0f} and {right[large]:.0f}"
        print(f"### {protocol}: {items} items\n\nFull cache: {found} found.\n")
        rows = table[table.method != FULL]
        budgets = rows.groupby("budget_name", sort=False).share.mean().sort_values(ascending=False).index
        for title, column, how, form in COLUMNS:
            print(f"**{title}**\n\n| method | {' | '.join(budgets)} |\n|---|{'---|' * len(budgets)}")
            for method in rows.method.unique():
                cells = [_cell(rows, method, budget, (small, large), column, how, form) for budget in budgets]
                if any(cells):
                    print(f"| `{method}` | {' | '.join(cells)} |")
            print()


def _cell(rows: pd.DataFrame, method: str, budget: str, models, column: str, how: str, form: str) -> str:
    """Both models' numbers, "small → large"; empty where a method has none."""
    here = rows[(rows.method == method) & (rows.budget_name == budget)]
    values = [here[here.model == model][column].astype(float) for model in models]
    return "" if any(v.isna().all() for v in values) else " → ".join(form.format(v.agg(how)) for v in values)


if __name__ == "__main__":
    main()
