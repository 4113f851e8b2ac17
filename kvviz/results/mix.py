"""A mix: a method idea made of what a run stores of every entry, and the method file that is this mix.

    score = pool(attention)^a * ||v||^v * ||k||^k * ((j + 1) / n)^r

over one KV head's entries; attention is that of the last W = 32 queries, mean over them and the head's query
group. `kvviz.engine.mix` chooses and decodes its kept set.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvviz.errors import InputError
from kvviz.identity import Budget, MethodRef, shown

if TYPE_CHECKING:
    from kvviz.results.comparison import Comparison

WINDOW = 32  # queries behind the stored attention; the last tokens that are kept by rule
MIX = "mix"  # its id where it stands beside methods
# {exponent of a mix: (lens that it reads, "" for none; what it is called; lowest and highest)}
POWERS: dict[str, tuple[str, str, float, float]] = {
    "attention": ("attention", "attention", 0.0, 3.0),
    "value": ("value_size", "value size", 0.0, 3.0),
    "key": ("key_norm", "key norm", -3.0, 3.0),
    "recency": ("", "recency", -3.0, 3.0),
}
POOLS = ("avg", "max", "none")
MOST_POOL, MOST_SINKS = 63, 64


@dataclass(frozen=True)
class Mix:
    """One mix; the default is SnapKV's score. InputError where a field is not what it may be.

    attention, value, key, recency  the exponents: 0 leaves an ingredient out.
    pool, pool_kind  how attention is pooled along tokens, as in SnapKV.
    sinks    first tokens that are kept by rule.
    across   heads of a layer compete for the layer's budget (AdaKV's rule), instead of the same for each.
    """

    attention: float = 1.0
    value: float = 0.0
    key: float = 0.0
    recency: float = 0.0
    pool: int = 7
    pool_kind: str = "avg"
    sinks: int = 0
    across: bool = False

    def __post_init__(self) -> None:
        for name, (_, words, low, high) in POWERS.items():
            object.__setattr__(self, name, _number(getattr(self, name), words, low, high))
        for name, low, most in (("pool", 1, MOST_POOL), ("sinks", 0, MOST_SINKS)):
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= most:
                raise InputError(f"A mix: {name} is a whole number from {low} to {most}, not {shown(value)}.")
        if self.pool_kind not in POOLS:
            raise InputError(f"A mix: pool_kind is one of {', '.join(POOLS)}, not {shown(self.pool_kind)}.")
        if type(self.across) is not bool:
            raise InputError(f"A mix: across is true or false, not {shown(self.across)}.")

    @classmethod
    def of(cls, given: Any) -> Mix:
        """From plain values, as a browser or a file has them. InputError where they are none of a mix."""
        if not isinstance(given, dict) or not set(given) <= {f.name for f in dataclasses.fields(cls)}:
            raise InputError("This is not a mix.")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `of` reads them."""
        return dataclasses.asdict(self)

    @property
    def powers(self) -> dict[str, float]:
        """{ingredient: exponent} of those that are not left out."""
        return {name: power for name in POWERS if (power := getattr(self, name))}

    @property
    def words(self) -> str:
        """ "attention × value size^0.5, across heads"; "nothing" where all is left out."""
        parts = [POWERS[name][1] + ("" if p == 1 else f"^{p:g}") for name, p in self.powers.items()]
        return (" × ".join(parts) or "nothing") + (", across heads" if self.across else "")


def _number(value: Any, words: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"A mix: the power of {words} is from {low:g} to {high:g}, not {shown(value)}.")
    return float(value)


def missing(c: Comparison, mix: Mix | None = None) -> dict[str, str]:
    """{ingredient (of this mix): why this run has none of it}; empty where all is there."""
    lacking = {}
    for name, (lens, words, _, _) in POWERS.items():
        if lens and lens not in c.lenses and (mix is None or name in mix.powers):
            lacking[name] = f"This run does not hold each entry's {words}: run it again to mix it in."
    return lacking


# -- in a run ---------------------------------------------------------------------------------------------


def made(c: Comparison) -> list[dict[str, Any]]:
    """The mixes that were decoded in this run: {"name": of the method, "budget": , "mix": its fields}."""
    return list(c.settings.get("mixes") or [])


def name_in(c: Comparison, mix: Mix) -> str:
    """What this mix is called in the run: as before where it was decoded at another budget, "mix+mix2"."""
    names = {row["name"]: row["mix"] for row in made(c)}
    same = [name for name, known in names.items() if Mix.of(known) == mix]
    return same[0] if same else str(MethodRef(MIX, (), f"mix{1 + len(names)}"))


def label_of(name: str) -> str:
    """ "Mix 2"."""
    return f"Mix {MethodRef.parse(name).made.removeprefix(MIX)}"


def with_mix(c: Comparison, mix: Mix, tried: Comparison) -> Comparison:
    """The run with a mix's answer (the one of `tried`) beside the others, and its recipe in the settings;
    as it is where the answer was stopped."""
    finished = [v for v in tried.variants if v.finished != "cancelled"]
    if not finished:
        return c
    answer = dataclasses.replace(finished[0], selection=finished[0].packed)
    row = {"name": answer.method, "budget": answer.budget, "mix": mix.to_dict()}
    settings = {**c.settings, "mixes": [*made(c), row]}
    return dataclasses.replace(c, variants=[*c.variants, answer], settings=settings)


def check_new(c: Comparison, mix: Mix, budget: float | int | str) -> None:
    """InputError where the run has this mix at this budget already."""
    name = name_in(c, mix)
    if c.variant(name, Budget.parse(budget).value) is not None:
        raise InputError(f"This mix was decoded at this budget already: it is {label_of(name)}.")


# -- as a method file ---------------------------------------------------------------------------------

_CALLS = {  # of the first c visible rows
    "attention": "pool(seen, options)",
    "value": "value_size(layer)[:, :c]",
    "key": "key_norm(layer)[:, :c]",
    "recency": "recency(layer)[:c]",
}
_IMPORTS = {"attention": "attention", "value": "value_size", "key": "key_norm", "recency": "recency"}


def _short(power: float) -> str:
    return repr(power).removesuffix(".0")


def method_file(mix: Mix, id: str = "my_mix", label: str = "My mix") -> str:
    """The text of a plugin that keeps what this mix keeps: for `--plugin`, `KVVIZ_PLUGINS`, `load_plugin`."""
    names = sorted({_IMPORTS[name] for name in mix.powers})
    pools = "attention" in mix.powers
    parts = ["POOL", "POOL_KIND"] * pools + ["SINKS", "WINDOW"] + ["pool"] * pools
    rows = [f"WINDOW.having({WINDOW})", f"SINKS.having({mix.sinks})"]
    rows += [f"POOL.having({mix.pool})", f'POOL_KIND.having("{mix.pool_kind}")'] * pools
    lines = [
        f'"""Score of an entry: {mix.words}."""',
        "import torch",
        "",
        "from kvviz.methods import Method, Scores",
        *([f"from kvviz.methods.mixing import {', '.join(names)}"] if names else []),
        f"from kvviz.methods.parts import {', '.join(parts)}",
        "",
        "",
        "def score(layer, options):",
        "    c = layer.context",
        *(['    seen = attention(layer, options["window"])[:, :c]'] if pools else []),
        "    mixed = torch.ones(layer.n_kv_heads, c, dtype=torch.float64)",
        *(f"    mixed = mixed * {_CALLS[name]} ** {_short(power)}" for name, power in mix.powers.items()),
        "    return Scores(mixed.float())",
        "",
        "",
        "METHOD = Method(",
        f'    id="{id}",',
        f'    label="{label}",',
        f'    idea="Ranks by {mix.words}.",',
        '    paper="",',
        "    score=score,",
        f"    rows=({', '.join(rows)}),",
        f'    allocation="{"across_heads" if mix.across else "uniform"}",',
        ")",
    ]
    return "\n".join(lines) + "\n"
