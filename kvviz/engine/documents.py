"""Text as it comes in: bytes of a file, characters that cannot be read, line ends, nothing at all."""

from __future__ import annotations

import re
import unicodedata

from kvviz.errors import InputError
from kvviz.settings import settings
from kvviz.types import PAGE_END

PACKED = 8  # times the largest text: what a file with pictures may take
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"  # letters by category, nothing on the screen


def read_document(name: str, data: bytes) -> tuple[str, list[str]]:
    """(text, notices) of a file: PDF, Word and HTML as their text, everything else as `decode_document`.

    What a file is, is told by its content; HTML, which is text, by its name. InputError where there is no
    text in it, or it is too large.
    """
    from kvviz.engine import formats

    most = settings().max_upload_bytes
    for is_one, text_of, kind in (
        (formats.is_pdf, formats.pdf_text, "PDF"), (formats.is_docx, formats.docx_text, "Word file")
    ):  # fmt: skip
        if is_one(data):
            text = readable(text_of(data))[0] if len(data) <= PACKED * most else ""
            if not text or len(text.encode("utf-8", "replace")) > most:
                raise InputError(f"This {kind} is larger than is read here ({most / 1e6:.1f} MB of text).")
            pages = text.count(PAGE_END) + 1
            held = f"{pages:,} pages, {len(text):,} characters" if pages > 1 else f"{len(text):,} characters"
            return text, [f"Read as the text of a {kind}: {held}."]
    text, notices = decode_document(data)
    if name.lower().endswith((".html", ".htm", ".xhtml")):
        return readable(formats.html_text(text))[0], [*notices, "Read as the text that a browser would show."]
    return text, notices


def decode_document(data: bytes) -> tuple[str, list[str]]:
    """(text, notices) of an uploaded file: UTF-8, UTF-16 or UTF-32 with a mark, else Windows-1252.

    Raises InputError when the file is too large or is not text.
    """
    most = settings().max_upload_bytes
    if len(data) > most:
        raise InputError(f"This file has {len(data):,} bytes; at most {most:,} are read.")
    notices: list[str] = []
    marks = ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"), (b"\xff\xfe", "utf-16"),
             (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig"))  # fmt: skip
    encoding = next(name for mark, name in marks if data.startswith(mark))
    text = data.decode(encoding, errors="replace")
    broken = text.count("\ufffd") - data.count("\ufffd".encode()) if encoding == "utf-8-sig" else 0
    if broken and broken > sum(ord(character) > 127 for character in text) - broken:
        text = data.decode("cp1252", errors="replace")
        notices.append("This file is not UTF-8; it was read as Windows-1252.")
        broken = text.count("\ufffd")
    controls = sum(unicodedata.category(c) == "Cc" and c not in "\t\n\r\f\v\x1b\x85" for c in text)
    if data.startswith((b"%PDF", b"PK\x03\x04", b"{\\rtf")) or controls * 50 > len(text):
        raise InputError("This file is not text we can read. Save it as UTF-8 .txt or .md.")
    if broken:
        notices.append(box_notice(broken))
    return plain_line_ends(text), notices


def box_notice(count: int) -> str:
    """What is said about `count` unreadable characters."""
    if count == 1:
        return "1 character could not be read and is shown as a box."
    return f"{count:,} characters could not be read and are shown as a box."


def readable(text: str | None) -> tuple[str, int]:
    """`text` with line ends as \\n, lone surrogates and NUL replaced by U+FFFD, and how many of those."""
    return re.subn("[\0\ud800-\udfff]", "\ufffd", plain_line_ends(text or ""))


def plain_line_ends(text: str) -> str:
    """Windows and old Mac line ends as \\n: the same text gives the same tokens, whichever way it came."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_blank(text: str) -> bool:
    """Whether there is nothing to see in `text`."""
    return all(c.isspace() or c in _BLANK_LETTERS or unicodedata.category(c) in ("Cc", "Cf") for c in text)
