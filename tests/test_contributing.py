"""CONTRIBUTING.md is followed to the letter, in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## (A .*)\n((?:.*\n)*?)(?=^## |\Z)", TEXT, re.MULTILINE))
STEP = re.compile(
    r"Write `(?P<new>[^`]+)`:\n\n```\w+\n(?P<whole>.*?)^```"
    r"|In `(?P<file>[^`]+)`, (?P<side>below|above) `(?P<line>[^`]+)`, add:\n\n```\w+\n(?P<more>.*?)^```"
    r"|```bash\n(?P<commands>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


def follow(recipe: str, place: Path) -> list[list[str]]:
    """Do what a recipe says; the commands it ends with."""
    commands = []
    for step in STEP.finditer(recipe):
        if step["new"]:
            assert not (place / step["new"]).exists(), step["new"]
            (place / step["new"]).write_text(step["whole"], encoding="utf-8")
        elif step["file"]:
            path = place / step["file"]
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            at = lines.index(step["line"] + "\n") + (step["side"] == "below")
            path.write_text("".join([*lines[:at], step["more"], *lines[at:]]), encoding="utf-8")
        else:
            commands += [shlex.split(line) for line in step["commands"].splitlines() if line.strip()]
    return commands


def test_there_are_five_recipes():
    assert list(RECIPES) == ["A method", "A view", "A kernel", "A model family", "A measure"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works_as_it_is_written(name, tmp_path):
    leave = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", "runs", "screenshots")
    shutil.copytree(ROOT, tmp_path / "copy", ignore=leave)
    place = tmp_path / "copy"
    (place / "assets" / "runs").symlink_to(ROOT / "assets" / "runs")
    commands = follow(RECIPES[name], place)
    assert commands
    environ = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    python = {"python": sys.executable}
    for command in commands:
        words = [python.get(word, word) for word in command]
        words += ["-q", "-p", "no:cacheprovider"] * ("pytest" in command)
        done = subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
    ruff = shutil.which("ruff") or str(Path(sys.executable).with_name("ruff"))
    lint = subprocess.run([ruff, "check", "."], cwd=place, capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
