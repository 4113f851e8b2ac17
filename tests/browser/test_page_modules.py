"""The page's modules: served by content below the page's own address; numbers are written as in Python."""

from __future__ import annotations

import random
import urllib.request

import pytest

from kvviz.results import words
from kvviz.ui import assets


@pytest.fixture(scope="module")
def blank(browser, served):
    """A page that holds nothing of ours, on the same address, for the modules to be imported into."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(served[0] + "theme.css")
    yield page
    context.close()


def imported(page, module, expression, value):
    """`expression` of (m, value) evaluated where m is one of the page's modules."""
    return page.evaluate(
        "async ([address, module, value]) => { const m = (await import(address)).modules[module]; "
        f"return {expression}; }}",
        [f"/{assets.addresses()[0]}", module, value],
    )


def numbers(rng, count=200):
    """Awkward places first (rounding borders of every rule), then any size."""
    fixed = [0, 1, 1 / 3, 2 / 3, 0.0004, 0.0005, 0.00049, 0.001, 0.00099, 0.0099, 0.0199, 0.01995, 0.02]
    fixed += [0.995, 0.997, 0.9949, 0.99999999999, 9.94, 9.95, 9.96, 10, 10.01, 89.6, 90, 99.4, 99.5, 100]
    fixed += [0.5, 1.5, 2.5, 999.5, 1234567.5, 12.345, 128.5, 1049999, 1050000, 49_999, 1e9, 1.05e9, 119.6]
    fixed += [0.25, 0.75, 0.125, 0.375, 1250000, 1350000, 0.0999, 0.35, 0.45, 12.5, 13.5, 125, 135]
    return fixed + [10 ** rng.uniform(-6, 10) for _ in range(count - len(fixed))]


WRITTEN = {
    "share": words.share, "error": words.relative_error, "kl": words.kl_number,
    "seconds": words.seconds, "count": words.count, "mb": words.mb, "budget": words.budget_share,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_are_written_as_python_writes_them(blank, name):
    rng = random.Random(3)
    values = numbers(rng)
    if name in ("share", "error", "budget"):
        values += [rng.random() for _ in range(200)]
    got = imported(blank, "lib/format.js", f"value.map(m.fmt.{name})", values)
    wrong = [(v, js, py) for v, js, py in zip(values, got, map(WRITTEN[name], values)) if js != py]
    assert not wrong, wrong[:5]


def test_scripts_are_named_by_content_and_kept(served):
    for address in assets.addresses():
        with urllib.request.urlopen(served[0] + address) as reply:
            assert "javascript" in reply.headers["content-type"]
            assert "immutable" in reply.headers["cache-control"]


def test_lines_of_the_modules_fit():
    long = [
        f"{name}:{number}"
        for name, source in assets.modules().items()
        for number, line in enumerate(source.split("\n"), 1)
        if len(line) > 110
    ]
    assert not long
