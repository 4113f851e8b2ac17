"""What is pointed at, found and framed in the document, in every script."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from test_page import drawn, selection

PLACE = """([from, to]) => {
  const walk = document.createTreeWalker(document.getElementById('kv-doc-text'), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(), at = 0; node; at += node.length, node = walk.nextNode()) {
    if (at + node.length <= from) continue;
    const range = document.createRange();
    range.setStart(node, from - at);
    range.setEnd(node, Math.min(node.length, to - at));
    const r = range.getBoundingClientRect();
    return [r.left, r.top, r.width, r.height];
  }
}"""


def box_of(page, text, at):
    """(left, top, width, height) of a character of the document, as drawn; a browser counts in UTF-16."""
    start = len(text[:at].encode("utf-16-le")) // 2
    return page.evaluate(PLACE, [start, start + 1])


@pytest.fixture(scope="module")
def tokens():
    """(token, start, end) of the first tokens of the run with several scripts."""
    from several_scripts import scripts_comparison

    prompt = scripts_comparison().prompt
    return prompt.document, [(t, *o) for t, o in enumerate(prompt.offsets) if o is not None]


def test_the_token_under_the_pointer_is_the_one_that_is_meant(visit, tokens):
    text, placed = tokens
    page = visit("?r=stored-d-scripts")
    drawn(page, "kv-kept-a")
    page.locator("#kv-doc-text").scroll_into_view_if_needed()
    wrong = []
    for token, _, end in [p for p in placed[:14] if text[p[1] : p[2]].strip().isascii()]:
        last = end - 1 - text[end - 1].isspace()
        left, top, width, height = box_of(page, text, last)
        for part in (0.2, 0.85):  # both halves of its last letter
            page.mouse.move(left + part * width, top + height / 2)
            words = page.locator("#kv-document .kv-readout").inner_text()
            page.mouse.click(left + part * width, top + height / 2)
            if not words.startswith(f"token {token} ") or selection(page)["tok"] != [token, token + 1]:
                wrong.append((token, part, words, selection(page)["tok"]))
    assert not wrong
    fox = [token for token, start, _ in placed if text[start] == "🦊"]
    assert len(fox) == 3
    page.get_by_role("searchbox").fill("🦊")
    page.get_by_role("searchbox").press("Enter")
    assert selection(page)["tok"] == [fox[0], fox[-1] + 1]
    expect(page.locator("#kv-doc-text .kv-chosen")).to_have_text("🦊")
    page.get_by_role("searchbox").fill("fox 🦊")  # ends inside the character's tokens
    page.get_by_role("searchbox").press("Enter")
    assert selection(page)["tok"][1] == fox[-1] + 1
    page.get_by_role("searchbox").fill("no such words")
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator("#kv-document")).to_contain_text("does not occur in this text")


def test_lines_run_as_their_script_does_and_the_overview_stands_beside_them(visit, tokens):
    text, _ = tokens
    page = visit("?r=stored-d-scripts")
    drawn(page, "kv-kept-a")
    word, stop = text.index("שלום"), text.index("עולם.") + 4
    assert box_of(page, text, stop)[0] < box_of(page, text, word)[0]  # the full stop ends at the left
    frame = page.locator("#kv-doc-text .kv-chosen")
    expect(frame).to_have_count(1)
    expect(frame).to_have_text("58213")
    dark = page.evaluate("""() => {
      const doc = document.getElementById('kv-doc-text'), map = document.querySelector('.kv-minimap');
      const box = document.querySelector('.kv-chosen').getBoundingClientRect(), g = map.getContext('2d');
      const top = box.top + box.height / 2 - doc.getBoundingClientRect().top;
      const at = (top + doc.scrollTop) / doc.scrollHeight;
      return [...g.getImageData(6, Math.round(at * map.height), 1, 1).data].slice(0, 3); }""")
    assert dark == [29, 43, 58]  # the colour of the selection


# Lines of the text whose row in the overview is not coloured as the line is: with the colour of its
# strongest word, or plain where no word tells A and B apart.
MISPLACED = """() => {
  const doc = document.getElementById('kv-doc-text'), map = document.querySelector('.kv-minimap');
  const top = doc.getBoundingClientRect().top, g = map.getContext('2d'), lines = new Map();
  const plain = getComputedStyle(map).backgroundColor, wrong = [];
  if (Math.abs(map.getBoundingClientRect().height - doc.clientHeight) > 1) wrong.push('height');
  const walk = document.createTreeWalker(doc, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    range.selectNodeContents(node);
    const strong = node.parentElement.matches('.kv-only-a, .kv-only-b, .kv-mixed, .kv-both');
    if (!node.data.trim()) continue;
    for (const r of range.getClientRects()) {
      if (r.width < 8) continue;  // a space at the end of a line
      const middle = Math.round((r.top + r.bottom) / 2 - top + doc.scrollTop);
      lines.set(middle, lines.get(middle) || strong);
    }
  }
  for (const [middle, strong] of lines) {
    const y = Math.round(middle * map.height / doc.scrollHeight);
    const tone = `rgb(${[...g.getImageData(6, y, 1, 1).data].slice(0, 3).join(', ')})`;
    if ((tone !== plain) !== Boolean(strong)) wrong.push([middle, tone, strong]);
  }
  return {count: lines.size, wrong};
}"""


def test_the_overview_shows_each_line_beside_itself(visit):
    page = visit("?r=stored-a-stored-run")
    drawn(page, "kv-kept-a")
    page.locator("#kv-clear").click()  # marks and the selection are drawn over the lines
    page.wait_for_timeout(300)
    found = page.evaluate(MISPLACED)
    assert found["count"] > 10 and not found["wrong"]
