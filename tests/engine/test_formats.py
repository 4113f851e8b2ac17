"""Documents that are not plain text: what is read of them, and why one is refused."""

from __future__ import annotations

import io

import pytest
from tiny_pdf import pdf

from kvviz.engine.documents import read_document
from kvviz.errors import InputError
from kvviz.results.sections import sections


def docx() -> bytes:
    from docx import Document

    document = Document()
    document.add_heading("The ledger", 1)
    document.add_paragraph("The code is 58213.")
    table = document.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = "oil", "23 litres"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_a_pdf_is_read_page_by_page():
    text, notices = read_document("a.pdf", pdf("The code is 58213.", "", "Second page."))
    assert text == "The code is 58213.\n\n\f\n\n\fSecond page."
    assert notices == ["Read as the text of a PDF: 3 pages, 36 characters."]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(pdf("", ""), "pictures of its pages"), (pdf("x", locked=True), "password"),
     (b"%PDF-1.7 broken", "damaged"), (b"PK\x03\x04 not a word file", "not text")],
)  # fmt: skip
def test_a_file_without_text_is_refused_with_the_reason(data, sentence):
    with pytest.raises(InputError, match=sentence):
        read_document("a.pdf", data)


def test_a_word_file_keeps_headings_and_tables():
    text, _ = read_document("no-name", docx())
    assert text == "# The ledger\n\nThe code is 58213.\n\noil\t23 litres"


def test_html_is_read_as_a_browser_shows_it():
    page = b"<html><style>p {}</style><script>x()</script><p>The code is <b>58213</b> &amp; so on.</p></html>"
    assert read_document("a.HTML", page)[0] == "The code is 58213 & so on."
    assert read_document("a.py", page)[0] == page.decode()  # source code stays as it is


def test_headings_of_a_web_page_are_those_of_its_text():
    page = b"""<h1>The <b>ledger</b></h1><p>The code is 58213.</p>
    <table><tr><td>oil</td><td><h3>23</h3></td></tr></table><h2>
    Second part</h2><h2></h2><p>End.</p>"""
    text = read_document("a.html", page)[0]
    assert [(part.heading, text[part.start :].split("\n")[0]) for part in sections(text)] == [
        ("The ledger", "# The ledger"), ("Second part", "## Second part")]  # fmt: skip
    assert "oil  23" in text and text.endswith("End.")


@pytest.mark.parametrize(
    ("name", "data", "labels"),
    [
        ("a.pdf", pdf("The code is 58213.", "", "Second page."), ["page 1", "page 3"]),
        ("a.docx", docx(), ["The ledger"]),
        ("a.md", b"Before.\n\n# One\n\nText.\n\n## Two\n\n# x\ny", ["", "One", "Two"]),
        ("a.py", b"import os\n\n# a comment\nx = 1\n", [""]),
        ("a.txt", b"One.\n\x0cTwo.\n\x0c", ["page 1", "page 2"]),
    ],
)
def test_pages_and_headings_of_a_file_are_found_again_in_its_text(name, data, labels):
    found = sections(read_document(name, data)[0])
    assert [part.label for part in found] == labels and found[0].start == 0


def test_more_text_than_is_read_here_is_refused(monkeypatch):
    monkeypatch.setenv("KVVIZ_MAX_UPLOAD_BYTES", "1000")
    with pytest.raises(InputError, match="larger than is read here"):
        read_document("a.pdf", pdf("x" * 2000))


@pytest.mark.parametrize("markup", ["", " \n", "<!-- nothing -->", "<html></html>", "<script>x()</script>"])
def test_a_page_without_text_is_refused(markup):
    with pytest.raises(InputError, match="holds no text"):
        read_document("page.html", markup.encode())
