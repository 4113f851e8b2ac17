"""What passes before Gradio sees it."""

from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from kvviz.settings import settings
from kvviz.ui import ahead, assets
from kvviz.ui.guard import Guard, Packed


async def _echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


def client(tmp_path: Path, local=True, host="127.0.0.1:7860", largest=10, **environ):
    routes = [Route(path, _echo, methods=["GET", "POST"]) for path in ("/", "/api", "/gradio_api/upload")]
    app = Guard(Starlette(routes=routes), settings(environ), local, tmp_path, largest)
    return TestClient(app, base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost", "localhost:7860", "[::1]:7860"])
def test_a_private_server_answers_to_its_machine(tmp_path, host):
    assert client(tmp_path, host=host).get("/").status_code == 200


def test_a_foreign_name_for_this_machine_is_refused_unless_it_is_allowed(tmp_path):
    assert client(tmp_path, host="evil.example").get("/").status_code == 403
    assert client(tmp_path, host="evil.example", KVVIZ_HOSTS="evil.example").get("/").status_code == 200
    assert client(tmp_path, local=False, host="evil.example").get("/").status_code == 200


def test_a_body_beyond_the_limit_is_refused(tmp_path):
    small = client(tmp_path, KVVIZ_MAX_UPLOAD_BYTES="1000")
    assert small.post("/api", content=b"x" * 5000).status_code == 200
    assert small.post("/api", content=b"x" * 2_000_000).status_code == 413


def test_uploads_of_a_public_server_have_a_bound_together(tmp_path):
    public = client(tmp_path, local=False, KVVIZ_PUBLIC="1")
    assert public.post("/gradio_api/upload", content=b"x").status_code == 200
    (tmp_path / "old").write_bytes(b"x" * 400)
    assert public.post("/gradio_api/upload", content=b"x").status_code == 413


def test_headers_and_a_cookie_that_is_given_once(tmp_path):
    page = client(tmp_path).get("/")
    assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
    public = client(tmp_path, KVVIZ_PUBLIC="1").get("/")
    assert "frame-ancestors" not in public.headers["content-security-policy"]
    cookie = page.headers["set-cookie"]
    assert cookie.startswith("kvviz-visitor=") and "HttpOnly" in cookie
    again = client(tmp_path).get("/", headers={"cookie": cookie.partition(";")[0]})
    assert "set-cookie" not in again.headers


def test_the_page_names_what_to_fetch_early_and_other_answers_do_not(tmp_path):
    link = client(tmp_path).get("/").headers["link"]
    named = [part.split(">")[0].strip(" <") for part in link.split(",")]
    page, plotly, _ = assets.addresses()
    assert named[-3:] == [page, assets.FIRST, plotly]  # plotly.js is waited for last
    assert [name.removeprefix("assets/") for name in named[:-3]] == list(ahead.needed())
    assert "link" not in client(tmp_path).get("/api").headers


def test_the_page_and_its_replies_are_packed_and_streams_are_not():
    async def long(request: Request) -> PlainTextResponse:
        return PlainTextResponse("word " * 1000)

    paths = ("/", "/gradio_api/component_server/", "/gradio_api/queue/data")
    app = TestClient(Packed(Starlette(routes=[Route(path, long) for path in paths])))
    packed = [app.get(path).headers.get("content-encoding") for path in paths]
    assert packed == ["gzip", "gzip", None]
    assert "content-encoding" not in app.get("/", headers={"accept-encoding": "br"}).headers
