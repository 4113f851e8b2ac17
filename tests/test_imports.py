"""One direction of flow: each stage imports only from stages before it. Heavy libraries stay where they are
needed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.utils.import_utils import KERNELS_MIN_VERSION

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kvviz"

# Stages in order; a module may import from its own stage and from those before it.
STAGES = (
    {"brief", "errors", "types", "settings", "resources", "identity", "options", "lazy", "memory", "framing",
     "hardware"},  # fmt: skip
    {"engine.ask", "engine.steps", "engine.formats"},
    {"models"},
    {"engine.ranking", "engine.counts", "engine.documents", "engine.tokens"},
    {"engine.templates"},
    {"engine.prompts", "engine.attention"},
    {"engine.products"},
    {"engine.forward"},
    {"engine.budgets"},
    {"methods"},
    {"engine.observers"},
    {"engine.trace"},
    {"engine.scoring"},
    {"engine.selection"},
    {"engine.cache"},
    {"engine.decode"},
    {"engine.rolling"},
    {"engine.measures"},
    {"results"},
    {"engine.plan", "engine.answer_attention"},
    {"engine.provenance"},
    {"engine.lenses"},
    {"engine.trials"},
    {"engine.conversation"},
    {"engine.run"},
    {"engine.search", "engine.changes", "engine.units"},
    {"engine.experiment", "engine.forks", "engine.ground", "engine.mix"},
    {"engine.rescue", "engine.would_do"},
    {"engine.causes"},
    {"evaluate"},
    {"calibrate"},  # on texts that evaluate writes
    {"figures"},
    {"exports"},
    {"ui"},
    {"notebook"},
    {"cli"},
)
LEAF = "kernels"  # imports nothing of the project but itself
USES_LEAF = {"engine", "methods", "cli"}
TOP = {"__init__", "__main__"}  # the public names, and `python -m kvviz`


def modules() -> dict[str, Path]:
    """Dotted name below kvviz -> file."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def stage_of(name: str) -> str:
    """The stage of a module: its folder, or in the engine, whose flow is finer, the module itself."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "engine" else parts[0]


def imported(path: Path, name: str) -> set[str]:
    """Every module a file imports, at its top or within a function; relative ones made absolute."""
    found: set[str] = set()
    package = ("kvviz." + name).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(package[: len(package) - node.level + 1] + ([base] if base else []))
            # `from kvviz import kernels` imports a module, `from kvviz.errors import X` a name
            whole = base in ("kvviz", "kvviz.engine")
            found |= {f"{base}.{alias.name}" for alias in node.names} if whole else {base}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def project_imports(path: Path, name: str) -> set[str]:
    """Stages that a file imports from."""
    found = {part.removeprefix("kvviz.") for part in imported(path, name) if part.startswith("kvviz.")}
    return {stage_of(part) for part in found if part != "__version__"}


def test_every_module_has_its_place():
    known = set().union(*STAGES) | TOP | {LEAF}
    assert {stage_of(name) for name in modules()} <= known | {"engine"}


def test_no_arrow_points_back():
    place = {stage: i for i, stages in enumerate(STAGES) for stage in stages}
    wrong = []
    for name, path in modules().items():
        stage = stage_of(name)
        if stage in TOP | {"engine"} or stage == LEAF:
            continue
        for target in project_imports(path, name):
            if (name, target) == ("results.comparison", "notebook"):
                continue  # at the call only: how a result shows itself
            if target == LEAF:
                if stage.split('.')[0] not in USES_LEAF:
                    wrong.append(f"{name} imports the kernels")
            elif target not in place:
                wrong.append(f"{name} imports kvviz.{target}, which has no place")
            elif place[target] > place[stage] or (place[target] == place[stage] and target != stage):
                same = place[target] == place[stage]
                # errors, types and settings lie beside each other, as do the page and the command line
                if not (same and {stage, target} <= (STAGES[0] | STAGES[2])):
                    wrong.append(f"{name} imports kvviz.{target}")
    assert not wrong, "\n".join(wrong)


def test_the_kernels_are_a_leaf():
    files = [PACKAGE / "kernels.py", *sorted((ROOT / "kernels").rglob("*.py"))]
    for path in files:
        if path.is_file():
            targets = project_imports(path, "kernels")
            assert targets <= {LEAF, "errors", "settings"}, path
    assert not (ROOT / "kernels" / "__init__.py").exists()


def outside(name: str, path: Path) -> set[str]:
    return {part.split(".")[0] for part in imported(path, name) if not part.startswith("kvviz")}


def test_figures_know_neither_torch_nor_gradio():
    for name, path in modules().items():
        if stage_of(name) in ("figures", "results"):
            assert not outside(name, path) & {"torch", "gradio", "transformers", "triton"}, name


def test_only_the_page_knows_gradio_and_only_the_kernels_know_triton():
    for name, path in modules().items():
        if stage_of(name) != "ui":
            assert "gradio" not in outside(name, path), name
        if stage_of(name) != LEAF:
            assert "triton" not in outside(name, path), name


def test_the_engine_knows_no_plots():
    before = {stage for stages in STAGES[: STAGES.index({"calibrate"})] for stage in stages}
    for name, path in modules().items():
        if stage_of(name) in before:
            allowed = {"ray"} if name == "evaluate.on_ray" else set()
            assert not outside(name, path) & {"plotly", "matplotlib", "ray"} - allowed, name


def run(code: str, **environment: str) -> str:
    env = {**os.environ, **environment}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(ROOT)]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_kvviz_brings_in_nothing_heavy():
    heavy = "{'torch', 'gradio', 'triton', 'transformers', 'plotly', 'pandas', 'numpy'}"
    assert run(f"import kvviz, sys; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_figures_come_without_torch_and_gradio():
    names = [name for name in modules() if stage_of(name) in ("figures", "results")]
    lines = "; ".join(f"import kvviz.{name}" for name in names)
    heavy = "{'torch', 'gradio', 'transformers', 'triton'}"
    assert run(f"import sys; {lines}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_the_engine_comes_without_gradio():
    code = "import sys, kvviz.engine.run, kvviz.cli; print(sorted({'gradio', 'plotly'} & set(sys.modules)))"
    assert run(code) == "[]"


STUB = """
__version__ = {version!r}

def use_kernel_forward_from_hub(name):
    return lambda cls: cls

use_kernelized_func = use_kernel_forward_from_hub

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {{"__init__": lambda self, *args, **kwargs: None}})
"""
USE = """
import sys
at = next(i for i, folder in enumerate(sys.path) if {before!r} in folder)
sys.path[at:at] = [{stub!r}]
sys.path.append({tests!r})
import kernels
assert kernels.__file__.startswith({stub!r}), kernels
import kvviz
from kvviz.kernels import gather_rows
from reference import prompt_of
from tiny import make_model

model = make_model("llama")
result = kvviz.compare(model, prompt_of(model, 20), ["snapkv", "criticalkv"], [0.5], 3)
print(len(result.variants), all(v.token_ids for v in result.variants))
"""


@pytest.mark.parametrize(
    ("before", "version"),
    [
        ("", KERNELS_MIN_VERSION),
        pytest.param("site-packages", KERNELS_MIN_VERSION, marks=pytest.mark.slow),
        pytest.param("", "0.0.1", marks=pytest.mark.slow),
    ],
)
def test_a_package_called_kernels_on_the_path_breaks_nothing(tmp_path, before, version):
    """A public package of that name exists, transformers may bring it and imports it where its version suits:
    also where it stands behind this project's own folder of the name, as an installed one does."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text(STUB.format(version=version))
    assert run(USE.format(before=before, stub=str(tmp_path), tests=str(ROOT / "tests"))) == "2 True"


def test_the_space_entry_point_is_short():
    assert len((ROOT / "app.py").read_text().splitlines()) <= 25
