"""Items: a document, a question and its right answers, from files or from a generated task.

    read_items("LongBench/data/hotpotqa.jsonl")      one item a line: context, input or question, answers
    read_items("papers/")                            texts beside questions.jsonl or questions.csv
    read_items("task:NAME", tokenizer)               kvviz.evaluate.tasks.TASKS["NAME"](tokenizer)

No torch, no model. A tokenizer is needed by generated tasks alone.
"""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvviz.engine.documents import decode_document
from kvviz.errors import InputError
from kvviz.evaluate.metrics import LONGBENCH, METRICS, RULER
from kvviz.identity import MethodRef

TASK = "task:"
QUESTION_FILES = ("questions.jsonl", "questions.csv")
# What the fields of an item are called in the files of this field; the first that is there counts.
_NAMES = {
    "id": ("id", "_id"),
    "task": ("task", "dataset"),
    "document": ("document", "context"),
    "question": ("question", "input"),
    "answers": ("answers", "answer", "expected", "outputs"),
    "metric": ("metric",),
    "cue": ("cue", "answer_prefix", "gen_prefix"),
}
_ASKS = {  # LongBench's instructions, where its rows ask nothing themselves
    "gov_report": "Now, write a one-page summary of the report.",
    "multi_news": "Now, write a one-page summary of all the news.",
    "passage_count": "Some of the paragraphs above may be duplicates. Please enter the final count of unique "
    "paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, "
    "3, and so on.",
    "lcc": "Please complete the code given above. Next line of code:",
}
_USUAL = LONGBENCH | RULER  # metrics of known datasets, where an item names none


@dataclass(frozen=True)
class Item:
    """One document with a question about it.

    answers  right answers; of several the best counts. Empty where none is known: then there is no verdict.
    metric   how an answer is held against them: an id of `kvviz.evaluate.metrics.METRICS`.
    meta     everything else that is known of the item, as plain JSON values; a text "cue" begins the answer
             (`kvviz.framing.Framing`), and what is judged is what follows it.
    """

    id: str
    task: str
    document: str
    question: str
    answers: tuple[str, ...] = ()
    metric: str = "contains"
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cue(self) -> str:
        """Beginning of the answer that the model goes on from, "" for none."""
        return str(self.meta.get("cue") or "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as one line of a JSONL file; `read_items` reads them back."""
        plain = asdict(self)
        return {**plain.pop("meta"), **plain, "answers": list(self.answers)}


def read_items(where: str | Path, tokenizer: Any = None) -> tuple[Item, ...]:
    """The items of a .jsonl file, of a folder, or of a generated task ("task:NAME", with options
    "task:NAME:tokens=4000,count=10"). InputError, with file and line, where one cannot be used."""
    name = str(where)
    if name.startswith(TASK):
        return checked(_generated(name.removeprefix(TASK), tokenizer), name)
    path = Path(where)
    if path.is_dir():
        return checked(_folder(path), path.name)
    if not path.is_file():
        raise InputError(f"There is no file or folder {name}; generated tasks are named task:NAME.")
    return checked(_lines(path, path.stem), path.name)


def checked(items: Iterable[Item], where: str) -> tuple[Item, ...]:
    """The items as a tuple. InputError where there are none, or two have one id."""
    found = tuple(items)
    if not found:
        raise InputError(f"There are no items in {where}.")
    twice = [name for name, count in Counter(item.id for item in found).items() if count > 1]
    if twice:
        raise InputError(f"Two items of {where} have the id {twice[0]!r}; give every item its own.")
    return found


def lines_of(items: Iterable[Item]) -> str:
    """One item a line, as `read_items` reads them from a .jsonl file."""
    return "".join(json.dumps(i.to_dict(), ensure_ascii=True, sort_keys=True) + "\n" for i in items)


def _generated(name: str, tokenizer: Any) -> Iterable[Item]:
    ref = check_task(name)
    if tokenizer is None:
        raise InputError("Generated tasks are counted in tokens: hand over the model's tokenizer.")
    from kvviz.evaluate.tasks import TASKS

    try:
        return TASKS[ref.id](tokenizer, **ref.given)
    except InputError as error:
        raise InputError(f"{TASK}{name}: {error}") from error


def check_task(name: str) -> MethodRef:
    """A generated task, without its "task:", and its options. InputError where there is none of the name, or
    it has no such option: that can be said before a model is loaded for its tokenizer."""
    from kvviz.evaluate.tasks import TASKS

    ref = MethodRef.parse(name)  # the same way of writing options as for methods
    if ref.id not in TASKS:
        raise InputError(f"There is no task {ref.id!r}. Choose from: {', '.join(sorted(TASKS))}.")
    options = [o for o in inspect.signature(TASKS[ref.id]).parameters if o not in ("tokenizer", "name")]
    for option in ref.given:
        if option not in options:
            its = f"Its options: {', '.join(options)}." if options else "It has none."
            raise InputError(f"The task {ref.id} has no option {option!r}. {its}")
    return ref


def _folder(folder: Path) -> Iterator[Item]:
    """A folder of texts with a question file, or else of .jsonl files."""
    questions = [folder / name for name in QUESTION_FILES if (folder / name).is_file()]
    if questions:
        texts: dict[str, str] = {}
        for number, row in _rows(questions[0]):
            name = row.pop("document", None) or row.pop("file", None)
            place = f"{questions[0].name}, line {number}"
            if not isinstance(name, str) or not name:
                raise InputError(f"{place}: name the text in a field 'document'.")
            texts[name] = texts[name] if name in texts else _text(folder, name, place)
            row |= {"document": texts[name], "file": name}
            yield _item(row, place, f"{Path(name).stem}-{number}", folder.resolve().name)
        return
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise InputError(
            f"The folder {folder.name} holds neither {' nor '.join(QUESTION_FILES)} nor other .jsonl files."
        )
    for file in files:
        yield from _lines(file, file.stem)


def _text(folder: Path, name: str, place: str) -> str:
    path = folder / name
    try:
        there = path.resolve().is_relative_to(folder.resolve()) and path.is_file()
    except (ValueError, OSError, RuntimeError):  # what no file can be called; links in a circle
        there = False
    if not there:
        raise InputError(f"{place}: there is no text {name!r} in the folder {folder.name}.")
    return decode_document(path.read_bytes())[0]


def _lines(path: Path, task: str) -> Iterator[Item]:
    for number, row in _rows(path):
        yield _item(row, f"{path.name}, line {number}", f"{path.stem}-{number}", task)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, fields) of a .jsonl or .csv file; blank lines are passed over."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    if path.suffix.lower() == ".csv":
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # whole documents stand in cells
        rows = csv.DictReader(io.StringIO(text, newline=""))
        try:
            for row in rows:
                yield rows.line_num, {k: _cell(k, v) for k, v in row.items() if k and v not in (None, "")}
        except csv.Error as error:
            raise InputError(f"{path.name}, line {rows.line_num} is no CSV: {error}.") from error
        return
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: texts may hold other line ends
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path.name}, line {number} is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise InputError(f"{path.name}, line {number} is no object with fields.")
        yield number, row


def _cell(column: str, text: Any) -> Any:
    """What a cell of a CSV file holds: several right answers are written as a JSON list."""
    if column in _NAMES["answers"] and isinstance(text, str) and text.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _item(row: dict[str, Any], place: str, id: str, task: str) -> Item:
    """An item of a row's fields under any of their names, `id` and `task` where it has none; what is left
    over goes to `meta`."""
    rest = dict(row)
    found: dict[str, Any] = {}
    for name, names in _NAMES.items():
        given = [rest.pop(n) for n in names if n in rest and rest[n] is not None]
        found[name] = next((value for value in given if value != ""), given[0] if given else None)
    for name in ("document", "question"):  # a question may be blank: some benchmarks ask by their task alone
        if not isinstance(found[name], str) or (name == "document" and not found[name].strip()):
            raise InputError(f"{place}: there is no {' or '.join(_NAMES[name])}.")
    answers = found["answers"]
    answers = [] if answers is None else [answers] if isinstance(answers, str | int | float) else answers
    if not isinstance(answers, list) or not all(isinstance(a, str | int | float) for a in answers):
        raise InputError(f"{place}: answers are a text or a list of texts.")
    task = str(found["task"] or task)
    dataset = task.removesuffix("_e")
    metric = str(found["metric"] or _USUAL.get(dataset, "contains"))
    if metric not in METRICS:
        raise InputError(f"{place}: there is no metric {metric!r}. Choose from: {', '.join(METRICS)}.")
    return Item(
        id=id if found["id"] in (None, "") else str(found["id"]),
        task=task,
        document=found["document"],
        question=found["question"] if found["question"].strip() else _ASKS.get(dataset, found["question"]),
        answers=tuple(str(a) for a in answers if str(a).strip()),
        metric=metric,
        meta=rest if found["cue"] in (None, "") else {**rest, "cue": str(found["cue"])},
    )
