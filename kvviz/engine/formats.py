"""Text of documents that are not plain text: PDF, Word and HTML files.

Each reader takes a file's bytes and gives its text: blocks are parted by an empty line, a page ends with a
form feed, headings stand in lines of their own that begin with "#" (`kvviz.results.sections` finds both).
InputError says why a file has no text.
"""

from __future__ import annotations

import io
import zipfile

from kvviz.errors import InputError
from kvviz.types import PAGE_END

MOST_PAGES = 2_000
MOST_UNPACKED = 64 * 2**20  # bytes of a Word file's text: a small file may unpack to any size
_DAMAGED = "This {} file cannot be read: it is damaged, or not what its name says."


def is_pdf(data: bytes) -> bool:
    """Whether the bytes begin as a PDF does."""
    return data[:1024].lstrip().startswith(b"%PDF")


def is_docx(data: bytes) -> bool:
    """Whether the bytes are a Word file, which is an archive that holds a document."""
    if not data.startswith(b"PK\x03\x04"):
        return False
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return "word/document.xml" in archive.namelist()
    except zipfile.BadZipFile:
        return False


def pdf_text(data: bytes) -> str:
    """The text of a PDF's pages. InputError where it is locked, or where its pages are pictures only."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InputError("This PDF is locked with a password. Save it without one.")
        count = len(reader.pages)
        if count > MOST_PAGES:
            raise InputError(f"This PDF has {count:,} pages; up to {MOST_PAGES:,} are read here.")
        pages = [page.extract_text().strip() for page in reader.pages]
    except InputError:
        raise
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        raise InputError(_DAMAGED.format("PDF")) from None
    text = f"\n\n{PAGE_END}".join(pages)
    if not text.strip():
        raise InputError(
            "This PDF holds pictures of its pages, no text. Run a text recognition (OCR) over it first."
        )
    return text


def docx_text(data: bytes) -> str:
    """The text of a Word file in reading order: headings, paragraphs, tables with a line a row."""
    from docx import Document
    from docx.opc.exceptions import OpcError
    from docx.table import Table
    from lxml.etree import LxmlError

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MOST_UNPACKED:
                raise InputError("This Word file is too large once unpacked. Save it as text.")
        blocks = []
        for block in Document(io.BytesIO(data)).iter_inner_content():
            if isinstance(block, Table):
                rows = ["\t".join(cell.text.strip() for cell in row.cells) for row in block.rows]
                blocks.append("\n".join(rows))
                continue
            style = (block.style.name or "") if block.style is not None else ""
            level = style.removeprefix("Heading ")
            marks = "#" * int(level) + " " if level.isdecimal() and style != level else ""
            blocks.append(marks + block.text.strip())
    except InputError:
        raise
    except (OpcError, LxmlError, zipfile.BadZipFile, KeyError, ValueError, OSError):
        raise InputError(_DAMAGED.format("Word")) from None
    text = "\n\n".join(block for block in blocks if block.strip(" #"))
    if not text.strip():
        raise InputError("This Word file holds no text.")
    return text


def html_text(markup: str) -> str:
    """The text that a browser would show of a page, without scripts and styles."""
    from inscriptis import get_annotated_text
    from inscriptis.model.config import ParserConfig

    levels = range(1, 7)
    found = get_annotated_text(markup, ParserConfig(annotation_rules={f"h{i}": [str(i)] for i in levels}))
    shown, parts, at = found.get("text", ""), [], 0  # an empty page has neither
    for start, end, level in sorted(found.get("label", ())):
        start = end - len(shown[start:end].lstrip())
        line = shown.rfind("\n", 0, start) + 1
        if at <= start < end and not shown[line:start].strip():  # not within a table's row
            parts += [shown[at:line], "#" * int(level), " "]
            at = start
    text = "".join([*parts, shown[at:]]).strip()
    if not text:
        raise InputError("This HTML file holds no text.")
    return text
