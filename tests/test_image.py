"""The image without Docker: the Dockerfile's own settings and command, as user 1000, in a clean folder with a
home that cannot be written to. What it installs is what runs these tests."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kvviz.resources import keep_libraries_writing

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def steps(name: str) -> list[str]:
    """Arguments of every instruction of this name."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.split(maxsplit=1)[1] for line in joined.splitlines() if line.startswith(f"{name} ")]


def environment() -> dict[str, str]:
    given = dict(pair.split("=", 1) for line in steps("ENV") for pair in shlex.split(line))
    return {name: value.replace("$PATH", os.defpath) for name, value in given.items()}


def test_user_port_and_health_check():
    assert steps("USER") == ["user"] and "--uid 1000" in " ".join(steps("RUN"))
    assert steps("EXPOSE") == ["7860"] and environment()["GRADIO_SERVER_NAME"] == "0.0.0.0"
    assert all(line.startswith("--chown=user") for line in steps("COPY"))
    (check,) = steps("HEALTHCHECK")
    code = shlex.split(check[check.index("CMD ") :])
    assert code[:3] == ["CMD", "python", "-c"]
    compile(code[3], "health check", "exec")
    assert "127.0.0.1:7860" in code[3]


def test_caches_of_libraries_move_out_of_a_home_that_cannot_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = tmp_path / "a-file"
    taken.write_text("no folder")
    environ = {"HOME": str(taken), "HF_HOME": str(tmp_path / "mine")}
    keep_libraries_writing(environ)
    assert environ["HF_HOME"] == str(tmp_path / "mine")
    assert environ["TRITON_CACHE_DIR"].startswith(str(tmp_path / "kvviz-"))
    keep_libraries_writing(fine := {"HOME": str(tmp_path)})
    assert fine == {"HOME": str(tmp_path)}


def copied(target: Path) -> None:
    """What `COPY . .` copies: the files of the project but for those that .dockerignore names."""
    left_out = (ROOT / ".dockerignore").read_text().split()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    for name in listed.stdout.splitlines():
        if not any(fnmatch.fnmatch(name, f"{rule}*") for rule in left_out) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


@pytest.mark.slow
def test_the_image_serves_the_page_as_user_1000_with_a_read_only_home():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to become user 1000")
    with tempfile.TemporaryDirectory() as place, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        home, scratch = Path(place, "home"), Path(place, "tmp")
        os.chmod(place, 0o755)
        copied(home / "app")
        scratch.mkdir()
        scratch.chmod(0o1777)
        for folder in (home, *home.rglob("*")):
            folder.chmod(0o555 if folder.is_dir() else 0o444)  # and owned by root
        environ = {n: v.replace("/home/user", str(home)) for n, v in environment().items()}
        environ |= {"GRADIO_SERVER_PORT": str(port), "TMPDIR": str(scratch),
                    "GRADIO_TEMP_DIR": f"{scratch}/gradio", "PYTHONDONTWRITEBYTECODE": "1",
                    "SPACE_ID": "someone/kvviz"}  # fmt: skip
        user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--no-new-privs"]
        command = [sys.executable if word == "python" else word for word in json.loads(steps("CMD")[0])]
        if subprocess.run([*user, sys.executable, "-c", "import torch"], capture_output=True).returncode:
            pytest.skip("user 1000 cannot read this Python")
        log = open(Path(place, "log"), "w+")  # noqa: SIM115 (closed below, after the server)
        server = subprocess.Popen([*user, *command], cwd=home / "app", env=environ, stdout=log, stderr=log)
        try:
            page = _answer(server, f"http://127.0.0.1:{port}/", log)
            assert "kv-app" in page
            (check,) = steps("HEALTHCHECK")
            code = shlex.split(check[check.index("CMD ") :])[3].replace("7860", str(port))
            assert subprocess.run([*user, sys.executable, "-c", code]).returncode == 0
            run = re.search(r"stored-[\w-]+", page)[0]
            saved = _ask(port, {"view": "export", "run": run, "args": {"kind": "zip"}, "sel": {}})
            assert saved.get("path", "").startswith(str(scratch)), saved
        finally:
            server.terminate()
            server.wait(20)
            log.seek(0)
            said = log.read()
            log.close()
        assert "Traceback" not in said, said


def _answer(server, url, log):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return reply.read().decode()
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None:
                break
            time.sleep(0.3)
    log.seek(0)
    pytest.fail(f"not served: {log.read()}")


def _ask(port, body):
    """What the page's own scripts ask of the server."""
    from gradio_client import Client

    client = Client(f"http://127.0.0.1:{port}", verbose=False)
    part = next(c for c in client.config["components"] if "ask" in str(c.get("props", {}).get("server_fns")))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/gradio_api/component_server",
        json.dumps(
            {"data": body, "component_id": part["id"], "fn_name": "ask", "session_hash": "x"}
        ).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.loads(reply.read())
