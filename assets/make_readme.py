"""Writes the README's table of methods from the registry: `python assets/make_readme.py [--check]`."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from kvviz.methods import methods_table

BEGIN = "<!-- methods table: written by assets/make_readme.py, checked by a test -->\n"
END = "<!-- end of methods table -->"


def with_table(readme: str) -> str:
    """The README with its table as the registry has it now."""
    head, _, rest = readme.partition(BEGIN)
    return head + BEGIN + methods_table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    path = HERE.parent / "README.md"
    now = path.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit("" if with_table(now) == now else "The README's table is old: python assets/make_readme.py")
    path.write_text(with_table(now), encoding="utf-8")
