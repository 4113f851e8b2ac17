"""A PDF of a few lines of text, for the tests that read one."""

from __future__ import annotations

import io


def pdf(*pages: str, locked: bool = False) -> bytes:
    """A PDF with a line of text a page, "" for a page without text."""
    from pypdf import PdfWriter
    from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

    writer = PdfWriter()
    names = [NameObject(x) for x in ("/Type", "/Font", "/Subtype", "/Type1", "/BaseFont", "/Helvetica")]
    font = DictionaryObject(dict(zip(names[::2], names[1::2])))
    for text in pages:
        page = writer.add_blank_page(300, 300)
        if text:
            stream = DecodedStreamObject()
            stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode())
            page[NameObject("/Contents")] = writer._add_object(stream)
            fonts = DictionaryObject({NameObject("/F1"): font})
            page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if locked:
        writer.encrypt("secret")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()
