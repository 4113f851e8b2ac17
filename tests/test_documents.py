"""What README and docs tell the reader to type is what the programs take."""

import ast
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import kvviz
from kvviz.cli import _parser

ROOT = Path(__file__).resolve().parents[1]
TEXTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(python -m kvviz [^`]+|kvviz [a-z][^`]*)`")
CALL = re.compile(r"`(kvviz\.[\w.]+)\(")
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")


def commands(text: str) -> list[list[str]]:
    """Arguments of every kvviz command, in fenced blocks and in running text."""
    found = [" ".join(piece.split()) for piece in INLINE.findall(text)]
    for language, block in FENCE.findall(text):
        if language in ("", "bash", "sh", "console"):
            found += block.replace("\\\n", " ").splitlines()
    split = [shlex.split(line.removeprefix("$ "), comments=True) for line in found]
    split = [words[2:] if words[:2] == ["python", "-m"] else words for words in split]
    return [words[1:] for words in split if words[:1] == ["kvviz"]]


def named(code: str) -> set[str]:
    """Dotted names of kvviz that Python code uses, those of its imports included."""
    tree, names = ast.parse(code), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvviz":
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "kvviz"}
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("kvviz."):
            names.add(ast.unparse(node))
    return names


def resolve(name: str):
    """The thing of this dotted name, through modules and attributes."""
    thing, path = kvviz, "kvviz"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        thing = getattr(thing, part) if hasattr(thing, part) else import_module(path)
    return thing


def test_there_is_something_to_check():
    every = [words for path in TEXTS for words in commands(path.read_text(encoding="utf-8"))]
    assert {words[0] for words in every} >= {"compare", "causes", "ablate", "calibrate", "bench"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_are_taken_by_the_command_line(path, capsys):
    for words in commands(path.read_text(encoding="utf-8")):
        parser = _parser(words)
        if len(words) == 1:  # named in running text: what it needs is left out there
            assert "{" not in words[0] and words[0] in parser.format_help(), words
            continue
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{path.name}: kvviz {shlex.join(words)}\n{capsys.readouterr().err}")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_python_uses_names_that_are_there(path):
    text = path.read_text(encoding="utf-8")
    names = set(CALL.findall(text))
    for language, block in FENCE.findall(text):
        if language in ("python", "py"):
            compile(block, path.name, "exec")
            names |= named(block)
    for name in names:
        resolve(name)


@pytest.mark.parametrize(
    "line", ["kvviz compair", "kvviz compare --docment a.txt --question b", "kvviz bench nothing"]
)
def test_a_command_that_does_not_exist_would_be_found(line, capsys):
    (words,) = commands(f"```\n{line}\n```\n")
    with pytest.raises(SystemExit):
        _parser(words).parse_args(words)


def test_tests_that_documents_name_are_there():
    named = {name for path in TEXTS for name in TEST.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 80
    for path, test in sorted(named):
        code = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^def {test}\(", code, re.MULTILINE), f"{path}::{test}"


def test_tables_of_the_deployment_guide_are_the_programs():
    import make_deploy

    text = make_deploy.PATH.read_text(encoding="utf-8")
    assert len(make_deploy.model_rows()) > 20 and make_deploy.model_rows()[-1] in text
    assert make_deploy.hardware_rows()[0] in text and "`KVVIZ_PUBLIC`" in text
    assert make_deploy.with_tables(text) == text, "run python docs/make_deploy.py"


def test_every_variable_that_is_read_is_told():
    told = set(re.findall(r"\b(?:KVVIZ|GRADIO|HF)_[A-Z_]+", (ROOT / "docs" / "DEPLOY.md").read_text("utf-8")))
    read = set()
    for path in (ROOT / "kvviz").rglob("*.py"):
        found = r"environ(?:\.get)?[\[(]\s*\"((?:KVVIZ|GRADIO|HF)_[A-Z_]+)"
        read |= set(re.findall(found, path.read_text("utf-8")))
    assert {"KVVIZ_KERNELS", "GRADIO_SERVER_PORT"} <= read <= told
