"""Files of text: encodings, line ends, what is refused."""

import pytest
from test_prompts import ODD

from kvviz.engine.documents import decode_document
from kvviz.errors import InputError


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_decode_unicode(encoding):
    assert decode_document(ODD.encode(encoding)) == (ODD, [])


def test_decode_windows_1252_and_broken_utf8():
    text, notices = decode_document("Grüße – “hier”".encode("cp1252"))
    assert text == "Grüße – “hier”" and "Windows-1252" in notices[0]
    text, notices = decode_document("Grüße, schöne Tür".encode() + b"\xff\xff")
    assert text == "Grüße, schöne Tür\ufffd\ufffd"
    assert notices == ["2 characters could not be read and are shown as a box."]


def test_decode_line_ends_and_empty():
    assert decode_document(b"a\r\nb") == ("a\nb", [])
    assert decode_document(b"") == ("", [])


@pytest.mark.parametrize(
    "data", [b"%PDF-1.7 text", b"PK\x03\x04rest", bytes(range(256)) * 4, "abc".encode("utf-16-le")]
)
def test_decode_refuses_what_is_not_text(data):
    with pytest.raises(InputError) as failure:
        decode_document(data)
    assert str(failure.value) == ("This file is not text we can read. Save it as UTF-8 .txt or .md.")


def test_decode_refuses_large_files(monkeypatch):
    monkeypatch.setenv("KVVIZ_MAX_UPLOAD_BYTES", "10")
    with pytest.raises(InputError, match="This file has 11 bytes; at most 10 are read"):
        decode_document(b"12345678901")
