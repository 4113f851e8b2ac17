"""The papers' claims beside what a sweep gives: the section "Claims of the papers" of docs/results.md.

    python docs/make_claims.py [DIR]

DIR is the sweep's folder, with what `kvviz claims DIR --best-sets` measured beside the table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvviz.cli.claims import as_markdown
from kvviz.results.claims import claims
from kvviz.results.study import read_best_sets, read_table


def section(folder: Path) -> str:
    """What was measured, how, and the table of claims."""
    table, manifest = read_table(folder), json.loads((folder / "manifest.json").read_text())
    (model,), (protocol,) = table.model.unique(), table.protocol.unique()
    with_ = manifest["measured_with"][model][0]
    ask = manifest["settings"]["ask"]
    return (
        f"{table['item'].nunique()} questions about {table.document.nunique()} documents of "
        f"{table.n.min():.0f} to {table.n.max():.0f} tokens, `{model}` in {with_['dtype']}, {protocol}, "
        f"{len(ask['methods'])} methods at {', '.join(f'{b:.0%}' for b in ask['budgets'])}, at most "
        f"{ask['max_new_tokens']} new tokens, {manifest['date'][:10]}. The sweep:\n\n"
        f"    python -m {shlex.join(manifest['command'])}\n\n"
        f"{as_markdown(claims(table, read_best_sets(folder)))}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweep", nargs="?", metavar="DIR", default=ROOT / "assets" / "sweeps" / "papers")
    print(section(Path(parser.parse_args().sweep)))


if __name__ == "__main__":
    main()
