"""What every request passes before Gradio sees it, and every answer: hosts, sizes, headers, cookie, gzip."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

from starlette.middleware.gzip import GZipMiddleware

from kvviz.settings import Settings
from kvviz.ui.assets import early
from kvviz.ui.visitors import COOKIE

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
_KEPT_UPLOADS = 32  # times the largest file: what all uploads of the last hours may take on disk

# Gradio runs its components from strings and loads the frame's resizer from one known address.
_POLICY = (
    "default-src 'self' data: blob:; script-src 'self' blob: 'unsafe-inline' 'unsafe-eval' "
    "https://cdnjs.cloudflare.com; style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; connect-src 'self' data: blob: ws: wss: https://huggingface.co https://*.hf.space"
)
# A public page may be embedded anywhere, as the Hub and its readers do; a private one in a notebook.
_PRIVATE_FRAMES = "; frame-ancestors 'self' http://localhost:* http://127.0.0.1:*"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """ASGI middleware.

    local    answer only to the names of this machine, so that no page elsewhere can reach a private
             server by giving its own name this machine's address.
    uploads  the folder of uploaded files, each of at most `largest_file` bytes.
    """

    def __init__(self, app: Any, limits: Settings, local: bool, uploads: Path, largest_file: int):
        self.app, self.uploads = app, uploads
        self.hosts = LOCAL | {host.lower() for host in limits.hosts} if local else None
        self.most = 4 * limits.max_upload_bytes + 2**20  # a text may be escaped, and comes with other fields
        self.most_uploaded = _KEPT_UPLOADS * largest_file if limits.public else None
        policy = _POLICY if limits.public else _POLICY + _PRIVATE_FRAMES
        self.headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
        ]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asked = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], asked)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        more = list(self.headers)
        if scope["path"] == "/":
            more.append((b"link", early().encode()))
        if scope["path"] == "/" and COOKIE not in _cookies(asked.get("cookie", "")):
            more.append((b"set-cookie", _cookie(asked.get("x-forwarded-proto", scope["scheme"]))))

        async def sent(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        bounded = receive if scope["path"].endswith("/upload") else _bounded(receive, self.most)
        await self.app(scope, bounded, sent)

    def _refusal(self, path: str, asked: dict[str, str]) -> tuple[int, str] | None:
        """(HTTP status, sentence) for a request that goes no further."""
        if self.hosts and _name(asked.get("host", "")) not in self.hosts:
            return 403, "This kvviz answers on its own machine only; KVVIZ_HOSTS can name further hosts."
        length = asked.get("content-length", "0")
        if path.endswith("/upload"):
            if self.most_uploaded is not None and _size(self.uploads) > self.most_uploaded:
                return 413, "Too many files were uploaded here lately. Try again in an hour."
        elif length.isdecimal() and int(length) > self.most:
            return 413, "This request is larger than this server reads."
        return None


class Packed:
    """ASGI middleware: the page and its replies go in gzip. Gradio packs files by the end of their name, and
    these have none."""

    def __init__(self, app: Any):
        self.app, self.packing = app, GZipMiddleware(app, minimum_size=2000, compresslevel=5)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and (scope["path"] == "/" or "/component_server" in scope["path"])
        app: Any = self.packing if ours else self.app
        await app(scope, receive, send)


def _bounded(receive: Receive, most: int) -> Receive:
    """A body without a stated length ends where it grows beyond `most` bytes."""
    read = 0

    async def bounded() -> dict[str, Any]:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        return message if read <= most else {"type": "http.disconnect"}

    return bounded


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = sentence.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()


def _cookies(header: str) -> SimpleCookie:
    try:
        return SimpleCookie(header)
    except CookieError:
        return SimpleCookie()


def _cookie(scheme: str) -> bytes:
    """A new visitor's cookie. In the Hub's frame a browser keeps only a partitioned one, by https."""
    where = "Secure; SameSite=None; Partitioned" if scheme == "https" else "SameSite=Lax"
    return f"{COOKIE}={secrets.token_urlsafe(16)}; Path=/; HttpOnly; {where}".encode()


def _size(folder: Path) -> int:
    """Bytes of all files in a folder."""
    total, todo = 0, [folder]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(Path(entry.path))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:  # removed meanwhile
            continue
    return total
