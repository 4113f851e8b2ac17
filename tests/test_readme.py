"""The README says what is so: table of methods, front matter, commands."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()


def front_matter() -> dict:
    return yaml.safe_load(README.split("---\n")[1])


def test_table_of_methods_is_the_registrys():
    with_table = runpy.run_path(str(ROOT / "assets" / "make_readme.py"), run_name="made")["with_table"]
    assert with_table(README) == README, "run python assets/make_readme.py"


def test_front_matter_makes_a_space():
    front = front_matter()
    assert front["sdk"] == "gradio"
    assert (ROOT / front["app_file"]).is_file()
    import gradio

    assert front["sdk_version"] == gradio.__version__, "the Space should run the tested gradio"
    assert front["python_version"] >= "3.11"


def test_one_line_makes_it_a_docker_space(tmp_path):
    """The command of the deployment guide, on a copy."""
    guide = (ROOT / "docs" / "DEPLOY.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`(sed -i .* README\.md)`", guide)
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    changed = yaml.safe_load((tmp_path / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert changed == {**front_matter(), "sdk": "docker"}
    port = re.search(r"^EXPOSE (\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)[1]
    assert changed["app_port"] == int(port)


def test_the_way_to_the_hub_takes_binary_files():
    """The Hub refuses a plain push of pictures and archives; its own command stores them."""
    guide = (ROOT / "docs" / "DEPLOY.md").read_text(encoding="utf-8")
    (command,) = set(re.findall(r"`hf (upload OWNER/NAME .*?)`", guide))
    hf = Path(sys.executable).with_name("hf")
    told = subprocess.run([hf, "upload", "--help"], capture_output=True, text=True, check=True).stdout
    assert all(word.split("=")[0] in told for word in shlex.split(command) if word.startswith("--"))
    assert "space" in told and "git push space" not in guide


def test_requirements_admit_the_spaces_torch():
    """ZeroGPU carries torch up to 2.11; the upper bound keeps several GB of a newer build away."""
    (torch,) = [line for line in REQUIREMENTS if line.startswith("torch")]
    low, high = re.search(r">=(\d+\.\d+),<(\d+\.\d+)", torch).groups()
    assert tuple(map(int, low.split("."))) <= (2, 11) < tuple(map(int, high.split(".")))


def test_commands_name_files_that_exist():
    for path in re.findall(r"(?:python|bash|-r) ([\w./-]+\.(?:py|sh|txt))", README):
        assert (ROOT / path).is_file(), path


def test_commands_parse():
    from kvviz.cli import _parser

    commands = re.findall(r"^python -m kvviz ((?:.*\\\n)*.*)", README, re.M)
    assert {command.split()[0] for command in commands} >= {"compare", "causes", "ablate", "sweep"}
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        _parser(words).parse_args(words)


def test_python_example_uses_public_names():
    import kvviz

    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    compile(code, "README", "exec")
    for name in set(re.findall(r"kvviz\.(\w+)", code)):
        assert hasattr(kvviz, name), name


def test_no_registry_host_or_machine_path_in_the_project():
    hosts = ["pypi" + ".org", "files.python" + "hosted", "registry.npm" + "js", "download.py" + "torch"]
    machine = ["/" + "work/", "/" + "tmp/venv", "/" + "root/"]
    for path in ROOT.rglob("*"):
        if path.suffix not in {".py", ".md", ".txt", ".toml", ".js", ".css", ".sh", ".json", ".yml"}:
            continue
        if {".venv", ".git", "__pycache__", ".pytest_cache", ".ruff_cache"} & set(path.parts):
            continue
        content = path.read_text(encoding="utf-8", errors="replace")
        for word in hosts + machine:
            assert word not in content, f"{path.relative_to(ROOT)} names {word}"


def test_every_requirement_has_an_upper_bound():
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            assert line.startswith("-r ") or re.search(r"<\d+", line.split(";")[0]), line


def test_one_version_everywhere():
    import tomllib

    import kvviz

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[1]
    assert kvviz.__version__ == project["version"] == citation["version"] == newest


@pytest.mark.parametrize(("dtype", "times"), [("bfloat16", 4), ("float32", 8)])
def test_the_memory_of_a_gguf_file_is_what_the_page_expects(tmp_path, dtype, times):
    from kvviz.ui.models import _weights

    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * 1000)
    assert _weights((str(file), dtype)) == times * 1000
    models = " ".join(README.partition("## Models")[2].partition("##")[0].split())
    assert re.search(rf"{times} times (its size in memory )?in {dtype}", models)
