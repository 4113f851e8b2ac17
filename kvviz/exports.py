"""Taking results along: CSV, strict JSON, kept masks, Python lines, a self-contained report."""

from __future__ import annotations

import dataclasses
import html
import io
import json as json_format
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go

import kvviz
from kvviz.engine.ask import Ask
from kvviz.errors import InputError
from kvviz.figures.effect import effect_map_figure, effect_table
from kvviz.figures.effect_scatter import effect_scatter_figure
from kvviz.figures.kept import kept_figure, kept_table
from kvviz.figures.palette import resolve
from kvviz.figures.sweep import sweep_figure
from kvviz.figures.sweep_table import sweep_table
from kvviz.figures.versus import versus_figure, versus_table
from kvviz.identity import Budget, MethodRef
from kvviz.results import mix
from kvviz.results import words as text
from kvviz.results.answers import all_answers_table
from kvviz.results.comparison import Comparison
from kvviz.results.finding import caution, finding
from kvviz.results.table import Table, csv_text
from kvviz.results.turns import mean_kl
from kvviz.results.verdict import judge
from kvviz.results.words import finite_or_none


def csv(table: Table) -> str:
    """All rows of a table as `csv_text` writes them (the JSON holds every text as it is)."""
    return csv_text(table.columns())


def json(table: Table) -> str:
    """All rows of a table as strict JSON: {"columns": [names], "rows": [[values]]}."""
    columns = table.columns()
    lists = [v.tolist() if isinstance(v, np.ndarray) else v for v in columns.values()]
    rows = [[finite_or_none(value) for value in row] for row in zip(*lists)]
    content = {"columns": list(columns), "rows": rows}
    return json_format.dumps(content, allow_nan=False, ensure_ascii=False)


def masks_npz(c: Comparison) -> bytes:
    """Every decoded variant's kept mask as an .npz, with a manifest that says what each one is.

    `mask_<i>` is uint8 [L, Hkv, ceil(n / 8)]; the manifest (JSON text) holds model, versions,
    settings, seed and how to unpack.
    """
    arrays: dict[str, np.ndarray] = {"input_ids": np.asarray(c.prompt.input_ids)}
    variants = []
    for index, v in enumerate(c.variants):
        if v.selection is None:
            continue
        name = f"mask_{index}"
        arrays[name] = v.packed.kept.bits
        variants.append(
            {
                "array": name,
                "method": v.method,
                "label": v.label,
                "budget": v.budget,
                "entries": v.entries,
                "options": v.options,
            }
        )
    manifest = {
        "kvviz": kvviz.__version__,
        "model": dataclasses.asdict(c.model),
        "n": c.n,
        "shape": [c.model.n_layers, c.model.n_kv_heads, c.n],
        "unpack": "np.unpackbits(mask, axis=-1, count=n).astype(bool)",
        "numpy": np.__version__,
        "settings": c.settings,
        "seed": Ask.of_settings(c.settings).seed,
        "marks": [dataclasses.asdict(m) for m in c.marks],
        "variants": variants,
    }
    arrays["manifest"] = np.array(_strict(manifest))
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()


def _strict(value: Any) -> str:
    return json_format.dumps(_plain(value), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    value = finite_or_none(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def python_lines(c: Comparison) -> str:
    """Lines that run this comparison again: model, document, question, every setting that was chosen."""
    p, ask, plain = c.prompt, Ask.of_settings(c.settings), Ask()
    decoded = [v for v in c.variants if not MethodRef.parse(v.method).made]  # edited sets follow below
    methods = list(dict.fromkeys(v.method for v in decoded))
    budgets = [b.value for b in dict.fromkeys(Budget.parse(v.budget) for v in decoded)]
    ask = dataclasses.replace(ask.of(methods, budgets), expected=c.expected, lenses=bool(c.lenses))
    given = ask.to_dict() | {"measures": ask.measures}
    arguments = [
        f"{f.name}={given[f.name]!r}"
        for f in dataclasses.fields(Ask)
        if f.name == "max_new_tokens" or getattr(ask, f.name) != getattr(plain, f.name)
    ]
    joined = "".join(f"    {argument},\n" for argument in ("model", "prompt", *arguments))
    framed = "".join(f", {name}={value!a}" for name, value in p.framing.changes().items())
    return (
        "import kvviz\n"
        f"{_own_lines(c)}"
        "\n"
        f"document = {ascii(p.document)}\n"
        f"question = {ascii(p.question)}\n"
        "\n"
        f"{_model_lines(c)}"
        "prompt = kvviz.build_prompt(\n"
        f"    model, document=document, question=question, system={ascii(p.system)}, "
        f"protocol={p.protocol!r}{'' if p.now is None else f', now={p.now!r}'}{framed}\n"
        ")\n"
        f"result = kvviz.compare(\n{joined})\n"
        f"print(result.to_frame().to_string())\n{_turn_lines(c)}{_edit_lines(c)}{_mix_lines(c)}"
    )


def _model_lines(c: Comparison) -> str:
    """How the model is had again: by the name it was loaded with, or wrapped by whoever wrapped it."""
    source = c.settings.get("source", c.model.id)
    if source:
        return f"model = kvviz.load_model({str(source)!r}, dtype={c.model.dtype!r})\n"
    return (
        "# This model was wrapped: hf_model and tokenizer are the ones you wrapped.\n"
        f"model = kvviz.wrap_model(hf_model, tokenizer, {c.model.id!r})\n"
    )


def _own_lines(c: Comparison) -> str:
    """Where the own methods of a run come from. A stored run may be a stranger's: texts stay texts."""
    found = c.settings.get("own")
    lines: dict[str, None] = {}
    for id, told in found.items() if isinstance(found, dict) else ():
        told = told if isinstance(told, dict) else {}
        name, sha256 = str(told.get("from", "")), str(told.get("sha256", ""))
        if re.fullmatch("[0-9a-f]{64}", sha256):
            lines[f"kvviz.load_plugin({ascii(name)})  # the file that ran has the SHA-256 {sha256}"] = None
        elif name == "register":
            lines[f"# The method {ascii(str(id))} was registered by a program: do so here as well."] = None
        else:
            lines[f"# The method {ascii(str(id))} comes from the package {ascii(name)}."] = None
    return "".join(f"{line}\n" for line in lines)


def _turn_lines(c: Comparison) -> str:
    """Further questions of the run, in their order."""
    if not c.turns:
        return ""
    lines = ["", "session = kvviz.conversation(model, result)"]
    for t in c.turns:
        lines.append(f"session.ask({ascii(t.question)}, expected={ascii(t.expected)}, fresh={t.fresh})")
    return "\n".join([*lines, "print(session.comparison.turns_frame().to_string())", ""])


def _edit_lines(c: Comparison) -> str:
    """Edits of the run's "Try it", each with its controls."""
    tried = [item for item in c.settings.get("edits") or [] if isinstance(item, dict)]
    if not tried:
        return ""
    lines = ["", "from kvviz.engine.experiment import Edit, try_edits", ""]
    for item in tried:
        try:
            edits = ", ".join(_edit(e) for e in item["edits"])
            method, budget = str(item["method"]), Budget.parse(item["budget"]).value
        except (InputError, KeyError, TypeError, ValueError):
            lines.append("# One edit of this run cannot be read.")
            continue
        lines += [
            "edited = try_edits(",
            f"    model, result, {method!r}, {budget!r}, [{edits}], same_size={bool(item.get('same_size'))}",
            ")",
            "print(edited.to_frame().to_string())",
        ]
    return "\n".join(lines) + "\n"


def _edit(e: dict[str, Any]) -> str:
    """One edit of a stored run, which may be a stranger's: nothing but a kind and whole numbers."""
    places = [None if e[name] is None else int(e[name]) for name in ("start", "end", "layer", "head")]
    return f"Edit({str(e['kind'])!r}, {', '.join(map(repr, places))})"


def _mix_lines(c: Comparison) -> str:
    """Mixes of the run that were decoded."""
    if not mix.made(c):
        return ""
    lines = ["", "from kvviz.engine.mix import try_mix", "from kvviz.results.mix import Mix, with_mix", ""]
    for row in mix.made(c):
        budget = Budget.parse(row["budget"]).value
        lines += [
            f"mix = {mix.Mix.of(row['mix'])!r}",
            f"result = with_mix(result, mix, try_mix(model, result, mix, {budget!r}))",
        ]
    return "\n".join([*lines, "print(result.to_frame().to_string())", ""])


def figure_json(figure: go.Figure, theme: str = "light") -> str:
    """A figure with its colours resolved, as strict JSON that may stand inside a <script>."""
    plain = resolve(json_format.loads(figure.to_json()), theme)
    written = json_format.dumps(plain, allow_nan=False)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def report_html(
    c: Comparison,
    plotly_js: str,
    a: str | None = None,
    b: str | None = None,
    k: float | int | None = None,
) -> str:
    """One page that needs nothing else: finding, answers, maps, errors, sweep, Python lines.

    plotly_js  the text of plotly.js. Without a choice: the first two methods at the smallest
    decoded budget.
    """
    methods = c.methods
    a = methods[0] if a is None else a
    b = next((m for m in methods if m != a), None) if b is None else b
    k = c.budgets[-1] if k is None else k
    figures = _report_figures(c, a, b, k)
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in finding(c, a, b, k))
    plots, scripts = [], []
    for index, figure in enumerate(figures):
        guide = html.escape(figure.layout.meta["guide"])
        label = html.escape(figure.layout.meta["summary"], quote=True)
        plots.append(
            f'<figure><div id="plot{index}" role="img" aria-label="{label}"></div>'
            f"<figcaption>{guide}</figcaption></figure>"
        )
        scripts.append(f"draw('plot{index}', {figure_json(figure)});")
    title = f"kvviz: {c.model.id}, {text.count(c.n)} tokens, {text.budget_name(k)} kept"
    library = plotly_js.replace("</script", "<\\/script")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{html.escape(title)}</h1>\n<section>{lines}"
        f"<p class=muted>{html.escape(caution(c, [m for m in (a, b) if m], k))}</p></section>\n"
        f"<h2>Answers</h2>{_answers_html(c)}\n"
        f"{''.join(plots)}\n"
        f"{_turns_html(c)}<h2>Question</h2><pre>{html.escape(c.prompt.question)}</pre>\n"
        f"<h2>Document</h2><pre>{html.escape(c.prompt.document)}</pre>\n"
        f"<h2>Run it again</h2><pre>{html.escape(python_lines(c))}</pre>\n"
        f"<script>{library}</script>\n"
        "<script>function draw(id, f) {Plotly.newPlot(id, f.data, f.layout, "
        "{responsive: true, displaylogo: false});}\n"
        f"{chr(10).join(scripts)}</script>\n</body></html>\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;"
    "color:#1D2B3A}figure{margin:2rem 0}figcaption,.muted{color:#5B6673}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere}table{border-collapse:collapse}"
    "td,th{border:1px solid #E6E9ED;padding:.3rem .6rem;text-align:left}"
)


def _report_figures(c: Comparison, a: str, b: str | None, k) -> list[go.Figure]:
    """What can be drawn from this run; a view without its data is left out."""
    figures = []
    for side, method in (("A", a), ("B", b)):
        if method is not None and c.at(method, k) is not None:
            figures.append(kept_figure(kept_table(c, method, k), side))
    if b is not None and len(figures) == 2:
        figures.append(versus_figure(versus_table(c, a, b, k)))
    effect = effect_table(c, a, b, k)
    if effect.a is not None:
        figures.append(effect_map_figure(effect, "a"))
        if effect.b is not None:
            figures += [effect_map_figure(effect, "b"), effect_scatter_figure(effect)]
    kl = sweep_table(c, "kl", a, b, k)
    if any(v is not None for s in kl.series for v in s.value):
        figures.append(sweep_figure(kl))
    return figures


def _answers_html(c: Comparison) -> str:
    table = all_answers_table(c)
    rows = []
    answers = [c.full.text, *(_text_of(c, m, k) for m, k in zip(table.method[1:], table.budget[1:]))]
    for row, answer in zip(table.rows(None), answers):
        cells = [row["label"], row["budget_words"], answer, row["verdict"], text.kl(row["kl"])]
        rows.append("".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells))
    head = "<tr><th>method<th>budget<th>answer<th>expected answer<th>KL</tr>"
    return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _turns_html(c: Comparison) -> str:
    parts = []
    for t in c.turns:
        rows = [(v.label, v.text, judge(v, t.expected), text.kl(mean_kl(v))) for v in [t.full, *t.variants]]
        budgets = ["", *(text.budget_name(v.budget) for v in t.variants)]
        cells = [(label, budget, *rest) for (label, *rest), budget in zip(rows, budgets)]
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in cells
        )
        head = "<tr><th>method<th>budget<th>answer<th>expected answer<th>KL</tr>"
        parts.append(f"<h3>{html.escape(t.question)}</h3><table>{head}{body}</table>")
    return "<h2>Further questions</h2>" + "".join(parts) if parts else ""


def _text_of(c: Comparison, method: str, k: float | int) -> str:
    variant = c.variant(method, k)
    return "" if variant is None else variant.text
