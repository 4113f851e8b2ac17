"""Plots for print: a sweep's numbers as SVG, PDF, CSV and LaTeX, as wide as a column of a paper.

matplotlib draws them (`pip install matplotlib`): no browser is needed. Lines differ by colour, marker and
dash, so that a grey print still tells them apart. Names are drawn as they are, never read as formulas.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from kvviz.errors import InputError
from kvviz.figures.palette import COLOURS, LINES
from kvviz.results.comparison import FULL
from kvviz.results.plots import USUAL_BASE
from kvviz.results.scoreboard import MEASURES
from kvviz.results.table import csv_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kvviz.results.plots import Plot

COLUMN = 3.35  # inches, of a page with two columns
PAGE = 6.9
MOST_LINES = 8  # that can be told apart in one panel
SHARE = "share of the cache that is kept"
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
STYLE: Any = {
    "font.size": 7.5, "axes.titlesize": 7.5, "axes.labelsize": 7.5, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.2,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "text.parse_math": False, "svg.hashsalt": "kvviz", "pdf.fonttype": 42, "figure.dpi": 100,
}  # fmt: skip


def files(plot: Plot) -> dict[str, bytes]:
    """{ending: content}: "svg", "pdf", "csv" and "tex". The same plot gives the same bytes.

    Raises InputError where matplotlib is not there.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("Plots need matplotlib: pip install matplotlib.") from None
    made = {"csv": csv_text({str(name): list(plot.rows[name]) for name in plot.rows}).encode("utf-8")}
    made["tex"] = latex(plot).encode("utf-8")
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters that the font has not
        figure = Figure(layout="constrained")
        _DRAW[plot.kind](figure, plot)
        for ending, date in (("svg", "Date"), ("pdf", "CreationDate")):
            out = io.BytesIO()
            figure.savefig(out, format=ending, metadata={date: None, "Title": _title(plot)})
            made[ending] = out.getvalue()
    return made


def _title(plot: Plot) -> str:
    return f"{plot.what}: {plot.model}, {plot.protocol}"


def _line(number: int) -> dict[str, Any]:
    """How the line of a method looks."""
    return {
        "color": _colour(f"line-{number % len(LINES)}"),
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(LINES) % len(DASHES)],
    }


def _colour(role: str) -> str:
    return COLOURS[role][0]


def _share(share: float) -> str:
    return f"{100 * share:.3g}%"


def _lines(figure: Figure, plot: Plot) -> None:
    """A line a method with its intervals, against the share that is kept."""
    rows = plot.rows
    methods = list(dict.fromkeys(rows.method))
    if len(methods) > MOST_LINES:
        _families(figure, plot, methods)
        return
    longest = max(map(len, methods))
    columns = min(len(methods), 3 if longest <= 13 else 2 if longest <= 24 else 1)
    figure.set_size_inches(COLUMN, 2.4 + 0.16 * -(-len(methods) // columns))
    axes = figure.add_subplot()
    _bars(axes, rows, methods, {method: method for method in methods})
    _axes_of_lines(axes, rows)
    axes.set_xlabel(SHARE)
    axes.set_ylabel(plot.what)
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6,
                  columnspacing=1.2)  # fmt: skip
    figure.suptitle(f"{plot.model}, {plot.protocol}", fontsize=7.5, color=_colour("muted"))


def _families(figure: Figure, plot: Plot, methods: list[str]) -> None:
    """Many methods: a panel for each one and its variants, all others thin and grey behind, on equal axes."""
    rows = plot.rows
    families: dict[str, list[str]] = {}
    for method in methods:
        families.setdefault(method.partition(":")[0], []).append(method)
    wide = 3 if len(families) <= 6 else 4
    tall = -(-len(families) // wide)
    figure.set_size_inches(PAGE, 0.55 + 1.6 * tall)
    panels = figure.subplots(tall, wide, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(families) :]:
        axes.set_axis_off()
    for place, (axes, (family, own)) in enumerate(zip(panels.flat, families.items())):
        for method in [m for m in methods if m not in own]:
            mine = rows[rows.method == method].sort_values("share")
            base = method == USUAL_BASE
            axes.plot(mine.share, mine.value, color=_colour("text" if base else "muted"), zorder=1,
                      linewidth=0.8 if base else 0.5, alpha=1 if base else 0.45,
                      linestyle=":" if base else "-")  # fmt: skip
        _bars(axes, rows, own, {method: method.partition(":")[2] or "as it is" for method in own})
        axes.set_title(family, loc="left", pad=2)
        if len(own) > 1:
            axes.legend(frameon=False, fontsize=6, handlelength=2, borderaxespad=0, labelspacing=0.25)
        axes.tick_params(labelbottom=place + wide >= len(families))  # above an empty place, too
    _axes_of_lines(panels[0][0], rows)
    for axes in panels.flat[1:]:
        _grid_lines(axes, "y")
    others = f"; dotted: {USUAL_BASE}" if USUAL_BASE in methods else ""
    figure.supxlabel(f"{SHARE} (grey: the other methods{others})", fontsize=7.5)
    figure.supylabel(plot.what, fontsize=7.5)
    figure.suptitle(f"{plot.model}, {plot.protocol}", fontsize=7.5, color=_colour("muted"))


def _bars(axes: Axes, rows: pd.DataFrame, methods: list[str], labels: dict[str, str]) -> None:
    """The lines of some methods with their intervals, side by side where they would lie upon each other."""
    for number, method in enumerate(methods):
        mine = rows[rows.method == method].sort_values("share")
        x = mine.share * 1.035 ** (number - (len(methods) - 1) / 2)
        bars = [(mine.value - mine.low).clip(lower=0), (mine.high - mine.value).clip(lower=0)]
        axes.errorbar(x, mine.value, yerr=[b.fillna(0) for b in bars], label=labels[method], markersize=3.2,
                      elinewidth=0.7, capsize=1.5, capthick=0.7, **_line(number))  # fmt: skip


def _axes_of_lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Shares on a log scale, ticks at the budgets, values from 0."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xscale("log")
    shares = sorted({round(s, 4) for s in rows.groupby("budget").share.mean()})
    axes.set_xticks(shares, [_share(s) for s in shares])
    axes.minorticks_off()
    low, high = axes.get_ylim()
    most = rows[["value", "high"]].max().max()
    high = 1.04 if most == 1 else high  # a share
    # A point at 0 stands whole above the axis.
    axes.set_ylim(min(low, -0.03 * high) if (rows[["value", "low"]] <= 0).any(axis=None) else 0, high)
    # Not as many as fit: room is shared out by their width.
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    _grid_lines(axes, "y")


def _pairs(figure: Figure, plot: Plot) -> None:
    """A bar of 95 % for each method and budget around its difference from the base."""
    from matplotlib.ticker import MaxNLocator

    rows = plot.rows.iloc[::-1]
    figure.set_size_inches(COLUMN, 0.7 + 0.14 * (len(rows) + 1.4 * rows.budget.nunique()))
    axes = figure.add_subplot()
    axes.axvline(0, color=_colour("muted"), linewidth=0.8)
    places, heads, at, before = [], {}, 0.0, None
    for budget in rows.budget:
        at += 1 if budget == before else 2.4
        places.append(at)
        heads[budget], before = at + 1.1, budget
    for place, row in zip(places, rows.to_dict("records")):
        told = row["verdict"] != "too few to tell"
        value, colour = row["value"], _colour("b" if told else "muted")
        bar = [[max(0.0, value - row["low"])], [max(0.0, row["high"] - value)]]
        axes.errorbar([value], [place], xerr=None if math.isnan(row["low"]) else bar, fmt="o", color=colour,
                      markersize=3.2, markerfacecolor=colour if told else "white", elinewidth=1,
                      capsize=1.5)  # fmt: skip
    axes.set_yticks([*places, *heads.values()], [*rows.method, *(f"{budget} kept:" for budget in heads)])
    for label in axes.get_yticklabels()[len(places) :]:
        label.set_fontweight("bold")
    axes.set_ylim(places[0] - 0.8, max(heads.values()) + 0.6)
    axes.tick_params(axis="y", length=0)
    better = MEASURES[plot.measure][1]
    said = f"{plot.what}, minus {rows.base.iloc[0]}\n({better} is better; filled: p (Holm) below 5 %)"
    figure.supxlabel(said, fontsize=7.5)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _grid_lines(axes, "x")
    figure.suptitle(f"{plot.model}, {plot.protocol}", fontsize=7.5, color=_colour("muted"))


def _needles(figure: Figure, plot: Plot) -> None:
    """A heat map a method and budget, the full cache first: depth against length, share found."""
    from matplotlib.colors import LinearSegmentedColormap

    rows = plot.rows
    budgets = list(dict.fromkeys(rows[rows.method != FULL].sort_values("share", ascending=False).budget))
    methods = [m for m in dict.fromkeys(rows.method) if m != FULL]
    lengths, depths = sorted(rows.length.unique()), sorted(rows.depth.unique())
    names = dict(zip(rows.depth, rows.depths))
    tall, wide = len(methods) + (FULL in set(rows.method)), max(1, len(budgets))
    panel = 0.3 + 0.11 * len(depths)
    figure.set_size_inches(PAGE if wide > 2 else COLUMN, 0.7 + panel * tall)
    ends = [_colour("evicted"), _colour("amount-12")]
    colours = LinearSegmentedColormap.from_list("found", ends).with_extremes(bad="white")
    panels = figure.subplots(tall, wide, squeeze=False)
    drawn = None
    for down, method in enumerate([FULL, *methods][-tall:]):
        for right in range(wide):
            axes = panels[down][right]
            budget = "100%" if method == FULL else budgets[right]
            mine = rows[(rows.method == method) & (rows.budget == budget)]
            if not len(mine) or (method == FULL and right):
                axes.set_axis_off()
                continue
            cells = mine.pivot_table(index="depth", columns="length", values="value", dropna=False)
            cells = cells.reindex(index=depths, columns=lengths)
            drawn = axes.pcolormesh(cells.to_numpy(float), cmap=colours, vmin=0, vmax=1, edgecolors="white",
                                    linewidth=0.6)  # fmt: skip
            axes.invert_yaxis()
            axes.set_facecolor("white")
            for side in axes.spines.values():
                side.set_visible(False)
            last = down == tall - 1
            axes.set_xticks(np.arange(len(lengths)) + 0.5, [f"{v:,}" for v in lengths] if last else [])
            axes.set_yticks(np.arange(len(depths)) + 0.5, [names[d] for d in depths] if not right else [])
            axes.tick_params(length=0)
            # A name may be longer than its panel: the others say their budget at their right end.
            name = "full cache" if method == FULL else budget if right else f"{method}, {budget}"
            axes.set_title(name, loc="right" if right else "left", pad=2)
            _crossed(axes, cells.to_numpy(float))
    figure.supxlabel("tokens of the text", fontsize=7.5)
    figure.supylabel("depth of the needle", fontsize=7.5)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=panels, fraction=0.02, shrink=min(1.0, 2 / (panel * tall)), pad=0.01)
        bar.set_label("share found")
        bar.outline.set_visible(False)
    figure.suptitle(f"{plot.model}, {plot.protocol}", fontsize=7.5, color=_colour("muted"))


def _crossed(axes: Axes, cells: Any) -> None:
    """A cross where the full cache finds no needle either: nothing can be said there."""
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            if value != value:
                axes.plot(x + 0.5, y + 0.5, "x", color=_colour("muted"), markersize=3, markeredgewidth=0.6)


def _grid_lines(axes: Axes, way: Any) -> None:
    axes.grid(axis=way, color=_colour("grid"), linewidth=0.5)


_DRAW = {"kl-budget": _lines, "score-budget": _lines, "pairs": _pairs, "needle-grid": _needles}


# LaTeX -----------------------------------------------------------------------------------------------------


def latex(plot: Plot) -> str:
    """A table for the package booktabs, every text escaped."""
    rows = plot.rows.assign(cell=[_estimate(row) for row in plot.rows.itertuples()])
    if plot.kind == "pairs":
        rows["p (Holm)"] = rows.p_holm.map("{:.3g}".format)
        shown = rows[["method", "budget", "cell", "n", "p (Holm)", "verdict"]]
        shown = shown.rename(columns={"cell": f"minus {rows.base.iloc[0]}"})
    elif plot.kind == "needle-grid":
        rows["depth"] = rows.depths
        shown = rows[["method", "budget", "length", "depth", "cell", "n"]].rename(columns={"cell": "found"})
    else:
        order = list(dict.fromkeys(rows.sort_values("share", ascending=False).budget))
        shown = rows.pivot(index="method", columns="budget", values="cell")
        shown = shown.reindex(index=list(dict.fromkeys(rows.method)), columns=order).fillna("--")
        shown = shown.reset_index().rename_axis(columns=None)
    text = shown.to_latex(index=False, escape=True, column_format="l" + "r" * (shown.shape[1] - 1))
    text = re.sub(r"(?<=[ \[])-(?=\d)", "$-$", text)  # a minus, not a hyphen
    said = f"{_title(plot)}. {plot.words}".replace("\n", " ").replace("\r", " ")
    return f"% {said}\n{text}"


def _estimate(row: Any) -> str:
    value = "--" if row.value != row.value else f"{row.value:.3g}"
    return value if row.low != row.low else f"{value} [{row.low:.3g}, {row.high:.3g}]"
