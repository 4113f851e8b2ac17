"""Remakes the stored example runs in assets/runs: `python assets/make_runs.py`. A test recomputes them.

They are what the page opens on: searched for, computed and labelled, never written by hand.

The lighthouse run is chosen because methods disagree on it: budgets from small to large, then places, then
texts, for the first case in which the full cache gives the expected answer, SnapKV does not, and another
method does. Where no case fits there is an error, not a dull example. That method with SnapKV's settings is
in the run as well, and every formula with every setting in its ablation: what the settings do is not put
down to the formula.

Every run carries what its first method at the opening budget lost (causes, rescue, the cache that would do).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import kvviz
from kvviz.engine.causes import causes_stream
from kvviz.engine.experiment import Edit, try_edits
from kvviz.engine.forks import fork
from kvviz.errors import KvvizError
from kvviz.evaluate.ablation import ablate
from kvviz.evaluate.examples import examples
from kvviz.evaluate.needles import DEPTHS, NeedleCase, needle_cases
from kvviz.models import Model
from kvviz.results.comparison import Comparison
from kvviz.results.edits import report
from kvviz.results.same import same_settings
from kvviz.results.story import Experiment, Opening, Places, Story
from kvviz.results.verdict import contains_expected
from kvviz.types import QUESTION_AGNOSTIC, QUESTION_AWARE
from kvviz.ui.openings import opening

METHODS = ("snapkv", "criticalkv", "dropkv", "laprox", "keydiff", "streaming_llm")
FORMULAS = ("snapkv", "criticalkv", "dropkv")
OTHER_METHODS = METHODS[:3] + METHODS[4:5]
BUDGETS = (0.5, 0.3, 0.2, 0.1, 0.05)
SEARCHED = (0.1, 0.2, 0.3, 0.5)
TOKENS, NEW_TOKENS = 1000, 24
WOULD_DO_TRIALS = 1000  # of the search for the cache that would do; what it found says where it stopped

Say = Callable[[str], None]


def lighthouse(model: Model, say: Say) -> Comparison:
    """The needle example, with what every method found at all five places of its text."""
    for text in range(3):
        cases = needle_cases(TOKENS, DEPTHS, model.tokenizer, (text,), 0)
        runs = [_answers(model, case, say) for case in cases]
        found = _disagreement(runs)
        if found is None:
            say(f"text {text}: no place where SnapKV fails and another method does not")
            continue
        place, budget, b = found
        say(f"text {text}, place {place}, {budget:.0%}: SnapKV misses it, {b} finds it")
        c = _full_run(model, (*METHODS, *_same_settings(runs[place], b, budget)), cases[place])
        mark = c.marks[0]
        c.story = Story(
            title="The lighthouse ledger",
            label="Chosen because methods disagree on it. Not a ranking.",
            opening=Opening("snapkv", b, budget, (mark.start, mark.end)),
            places=Places(_places(runs), "Code", DEPTHS),
        )
        return with_findings(model, c, "snapkv", budget, say)
    raise KvvizError("In none of the texts do the methods disagree as the example needs. Change the texts.")


def others(model: Model, say: Say) -> dict[str, Comparison]:
    """The contract (two questions, one compression) and the code file, as they come out."""
    out = {}
    for example in examples()[1:]:
        questions = example.questions if example.protocol == QUESTION_AGNOSTIC else example.questions[:1]
        for number, q in enumerate(questions, 1):
            say(f"{example.title}, question {number}")
            c = _full_run(
                model,
                OTHER_METHODS,
                NeedleCase(example.document, q.question, q.expected, "", 0),
                example.protocol,
            )
            c.story = Story(title=f"{example.title} (question {number})")
            start = opening(c)
            out[f"{example.id}-{number}"] = with_findings(model, c, start.a, start.budget, say)
    return out


def _answers(model: Model, case: NeedleCase, say: Say) -> Comparison:
    prompt = kvviz.build_prompt(model, case.document, case.question)
    c = kvviz.compare(model, prompt, METHODS, BUDGETS, NEW_TOKENS, measures=(), expected=case.expected)
    say(f"text {case.text}, depth {case.depth:.0%}: full cache says {c.full.text!r}")
    return c


def _right(c: Comparison, answer: str) -> bool:
    return contains_expected(answer, c.expected)


def _disagreement(runs: list[Comparison]) -> tuple[int, float, str] | None:
    """(place, budget, other method) of the first case that fits."""
    for budget in SEARCHED:
        for place, c in enumerate(runs):
            if not _right(c, c.full.text) or _right(c, c.variant("snapkv", budget).text):
                continue
            for method in METHODS[1:]:
                if _right(c, c.variant(method, budget).text):
                    return place, budget, method
    return None


def _places(runs: list[Comparison]) -> dict[str, dict[float, tuple[bool, ...]]]:
    """{method: {share: found at each place}}."""
    return {
        method: {b: tuple(_right(c, c.variant(method, b).text) for c in runs) for b in BUDGETS}
        for method in METHODS
    }


def _full_run(model: Model, methods, case: NeedleCase, protocol: str = QUESTION_AWARE) -> Comparison:
    prompt = kvviz.build_prompt(model, case.document, case.question, protocol=protocol)
    c = kvviz.compare(model, prompt, methods, BUDGETS, NEW_TOKENS, expected=case.expected, lenses=True)
    c.settings["stored"] = True
    return c


def _same_settings(c: Comparison, b: str, budget: float) -> list[str]:
    """`b` with SnapKV's settings, where they differ."""
    same = same_settings(c, "snapkv", b, budget)
    return [same["method"]] if same else []


def with_findings(model: Model, c: Comparison, method: str, budget: float, say: Say) -> Comparison:
    """The run with what `method` at `budget` lost, the fork of every answer at that budget, and the grid of
    formulas and settings."""
    say(f"{c.story.title}: what {method} lost at {budget:.0%}")
    events = causes_stream(
        model, c.prompt, method, budget, expected=c.expected, max_new_tokens=NEW_TOKENS, rescue=True,
        would_do=True, would_do_trials=WOULD_DO_TRIALS,
    )  # fmt: skip
    last = [event for event in events if event.result is not None][-1]
    found = last.result
    decoded = [v for v in c.variants if v.selection is not None and v.budget == budget]
    caches = {v.key: v.packed.kept.mask() for v in decoded}
    c = replace(c.with_causes(found), fork=fork(last.scored.trace, caches, NEW_TOKENS))
    say(f"gap {found.gap:.2f} nats; {found.trials} trials in {found.seconds:.0f} s")
    grid = ablate(
        model, c.prompt, FORMULAS, BUDGETS, expected=c.expected, max_new_tokens=NEW_TOKENS,
        scored=last.scored,
    )  # fmt: skip
    return replace(c, ablation=grid)


def pin_experiment(model: Model, c: Comparison) -> Experiment:
    """The experiment the example ships: M1 pinned in all heads of A at the opening budget, whatever comes."""
    start = c.story.opening
    before = c.variant(start.a, start.budget)
    edits = [Edit("pin", *start.tok)]
    tried = try_edits(model, c, before.method, before.budget, edits)
    return report(c, before, tried.variants, edits)


def make(folder: Path, say: Say = print) -> list[Path]:
    """Compute all stored runs and write them to `folder`, the one the page opens on first."""
    model = kvviz.load_model("smollm2-135m", dtype="float32")
    first = lighthouse(model, say)
    first.story = replace(first.story, experiment=pin_experiment(model, first))
    say(first.story.experiment.sentence)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [first.save(folder / "1-lighthouse-ledger.zip", rounded=True)]
    for number, (name, c) in enumerate(others(model, say).items(), 2):
        paths.append(c.save(folder / f"{number}-{name}.zip", rounded=True))
    for path in paths:
        say(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    return paths


if __name__ == "__main__":
    make(HERE / "runs")
