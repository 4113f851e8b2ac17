"""The page in a real browser, on a stored run and an engine without a model."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect

HOSTILE = (
    "<img src=x onerror=\"window.hacked=1\"> <script>window.hacked=1</script> ${window.hacked=1} "
    "{{constructor}} <a href=javascript:window.hacked=1>x</a> <s>gone</s> \u202eright to left "
)


def drawn(page, panel):
    page.wait_for_selector(f"#{panel} .kv-plot-box[data-drawn]", state="attached")


def selection(page):
    return json.loads(page.locator("#kv-app").get_attribute("data-sel"))


def cell(page, panel, x, y):
    """Click a heatmap cell at data coordinates."""
    page.locator(f"#{panel} .kv-plot").scroll_into_view_if_needed()
    px, py = page.evaluate(
        """([panel, x, y]) => { const gd = document.querySelector(`#${panel} .kv-plot`);
           const r = gd.getBoundingClientRect(), f = gd._fullLayout;
           return [r.left + f.xaxis._offset + f.xaxis.d2p(x), r.top + f.yaxis._offset + f.yaxis.d2p(y)]; }""",
        [panel, x, y],
    )
    page.mouse.move(px - 3, py)
    page.mouse.move(px, py)
    page.wait_for_timeout(150)
    page.mouse.click(px, py)


def fill_form(page, document="A short text.", question="What?"):
    page.locator("#kv-form-button").click()
    page.locator("#kv-document-field textarea").fill(document)
    page.locator("#kv-question-field input").fill(question)


def test_first_screen(visit_fresh):
    page = visit_fresh()
    expect(page.locator("#kv-source")).to_contain_text("Stored example")
    expect(page.locator("#kv-source")).to_contain_text("greedy")
    expect(page.locator("#kv-finding")).to_contain_text("58213")
    expect(page.locator(".kv-card")).to_have_count(3)
    expect(page.locator("#kv-doc-text")).to_contain_text("lighthouse")
    for panel in ("kv-kept-a", "kv-kept-b", "kv-versus", "kv-heads-a", "kv-layers-a"):
        drawn(page, panel)
    expect(page.locator("#kv-kept-a .kv-plot-box")).to_have_attribute("aria-label", re.compile("layers by"))


TABS = {
    "why": ["kv-why", "kv-why-mini"],
    "effect": ["kv-effect-a", "kv-effect-dots", "kv-effect-layers"],
    "sweep": ["kv-sweep"],
}


def test_each_tab_draws(visit):
    page = visit()
    for tab, panels in TABS.items():
        page.locator(f"#kv-tab-{tab}").click()
        for panel in panels:
            drawn(page, panel)
        assert f"v={tab}" in page.url


def test_a_cell_selects_everywhere(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    cell(page, "kv-kept-a", 60, 2)
    expect(page.locator("#kv-tokens")).to_contain_text("60")
    got = selection(page)
    assert got["tok"] == [60, 61] and got["layer"] == 2
    expect(page.locator("#kv-layer")).to_have_value("2")
    expect(page.locator("#kv-doc-text .kv-chosen")).to_have_count(1)
    expect(page.locator("#kv-heads-a h3")).to_contain_text("layer 2")
    page.locator("#kv-tab-why").click()
    expect(page.locator("#kv-why-card")).to_contain_text("token 60")
    expect(page.locator("#kv-why-shown")).to_contain_text("layer 2")


def test_a_word_selects_and_the_link_restores_it(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    page.locator("#kv-doc-text .kv-t").nth(3).click()
    tok = selection(page)["tok"]
    assert tok and f"t={tok[0]}-{tok[1]}" in page.url
    again = visit("?" + page.url.split("?")[1])
    assert selection(again)["tok"] == tok


def test_the_slider_moves_numbers_maps_and_cards(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    slider = page.locator("#kv-budget")
    slider.focus()
    slider.press("Home")
    expect(page.locator("#kv-triple")).to_contain_text("1.0% kept".replace(".0", ""))
    expect(page.locator("#kv-kept-a h3")).to_contain_text("1%")
    expect(page.locator(".kv-card-a")).to_contain_text("Not decoded at 1")
    assert "answers not decoded" in slider.get_attribute("aria-valuetext")


def test_swap_and_one_method(visit):
    page = visit()
    before = selection(page)
    page.locator("#kv-swap").click()
    after = selection(page)
    assert (after["a"], after["b"]) == (before["b"], before["a"])
    page.locator("#kv-b").select_option("")
    expect(page.locator(".kv-card")).to_have_count(2)
    expect(page.locator("#kv-versus")).to_be_hidden()


def test_keyboard_in_a_map(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    box = page.locator("#kv-kept-a .kv-plot-box")
    box.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        box.press(key)
    expect(page.locator("#kv-kept-a .kv-readout")).to_contain_text("layer 1, token 2")
    box.press("Enter")
    assert selection(page)["tok"] == [2, 3] and selection(page)["layer"] == 1
    box.press("Escape")
    assert selection(page)["tok"] is None


def test_table_and_downloads(visit):
    page = visit()
    drawn(page, "kv-kept-a")
    page.locator("#kv-kept-a").get_by_role("button", name="Show as table").click()
    expect(page.locator("#kv-kept-a .kv-table tbody tr").first).to_be_visible()
    for name, ending in (("CSV", ".csv"), ("SVG", ".svg"), ("PNG", ".png")):
        names = []
        for panel in ("kv-kept-a", "kv-kept-b"):
            with page.expect_download() as download:
                page.locator(f"#{panel}").get_by_role("button", name=name, exact=True).click()
            names.append(download.value.suggested_filename)
        assert all(one.endswith(ending) for one in names) and names[0] != names[1]


def test_exports(visit):
    page = visit()
    kinds = {"Whole run": ".zip", "Kept masks": ".npz", "Report": ".html", "Python": ".py"}
    page.locator("#kv-a").select_option("dropkv")
    page.locator("#kv-b").select_option("snapkv")
    page.locator("#kv-budget").fill("8")  # a stop that no maker's choice would open on
    share = page.locator("#kv-triple").inner_text().split(" kept")[0]
    for what, ending in kinds.items():
        page.locator("#kv-export summary").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=re.compile(what)).click()
        assert download.value.suggested_filename.endswith(ending)
        if ending == ".html":  # of the view, not of the run's opening
            assert "dropkv-snapkv" in download.value.suggested_filename
            report = download.value.path().read_text(encoding="utf-8")
            assert f"{share} kept</title>" in report and f"A: DropKV, {share}" in report


def test_run_to_answers(visit_fresh):
    page = visit_fresh()
    fill_form(page)
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-live .kv-live-card")).not_to_have_count(0)  # it may be over already
    expect(page.locator("#kv-source")).to_contain_text("Your run")
    expect(page.locator(".kv-card")).to_have_count(3)
    drawn(page, "kv-kept-a")
    page.reload()
    page.wait_for_selector("#kv-app[data-ready]")
    expect(page.locator("#kv-source")).to_contain_text("Your run")


SEEN = """
const seen = window.seen = [];
new MutationObserver(() => {
  const text = document.querySelector('#kv-live:not([hidden]) .kv-live-card p')?.textContent;
  if (text && text !== seen.at(-1)) seen.push(text);
}).observe(document.querySelector('#kv-live'), {subtree: true, childList: true, characterData: true});
"""


def test_answers_appear_as_they_are_written(visit_fresh, served):
    page = visit_fresh()
    fill_form(page, question="slow?")
    page.evaluate(SEEN)
    ended = len(served[1].ended)
    page.locator("#kv-run-button").click()
    page.wait_for_function("seen.length >= 5")
    assert len(served[1].ended) == ended  # still writing
    steps = [int(text.removeprefix("The ")) for text in page.evaluate("seen") if text.startswith("The ")]
    assert len(steps) >= 4 and steps == sorted(set(steps))
    page.locator("#kv-stop-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Stopped.")


def test_stop(visit_fresh, served):
    page = visit_fresh()
    fill_form(page, question="slow?")
    ended = len(served[1].ended)
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-live .kv-live-card").first).to_be_visible()
    page.locator("#kv-stop-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Stopped.")
    assert served[1].ended[ended:] == [True]


def test_errors_keep_fields_and_result(visit_fresh):
    page = visit_fresh()
    fill_form(page, document="")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-run")).to_contain_text("Paste or upload a document first.")
    expect(page.locator("#kv-source")).to_contain_text("Stored example")
    page.locator("#kv-document-field textarea").fill("x")
    page.locator("#kv-question-field input").fill("fail")
    page.locator("#kv-run-button").click()
    expect(page.locator("#kv-run")).to_contain_text("9,310 tokens")
    expect(page.locator("#kv-document-field textarea")).to_have_value("x")


def test_dark_mode_follows(visit_fresh):
    page = visit_fresh("?__theme=dark")
    drawn(page, "kv-kept-a")
    dark = page.evaluate("getComputedStyle(document.getElementById('kv-app')).color")
    assert dark == "rgb(232, 238, 244)"
    fill = "document.querySelector('#kv-kept-a .kv-plot').data[0].colorscale[0][1]"  # evicted
    assert page.evaluate(fill) == "#2A3541"
    page.evaluate("document.body.classList.remove('dark')")
    page.wait_for_function(f"{fill} === '#E6E9ED'")


def test_widths_without_sideways_scroll(visit_fresh):
    page = visit_fresh()
    drawn(page, "kv-kept-a")
    for width in (390, 1024, 2560):
        page.set_viewport_size({"width": width, "height": 900})
        for tab in ("kept", "why", "effect", "sweep", "try"):
            page.locator(f"#kv-tab-{tab}").click()
            page.wait_for_timeout(200)
            fits = page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert fits, (width, tab)


def test_two_visitors_do_not_meet(visit_fresh, served):
    one, two = visit_fresh(), visit_fresh()
    fill_form(one, document="first visitor", question="slow?")
    one.locator("#kv-run-button").click()
    expect(one.locator("#kv-live .kv-live-card").first).to_be_visible()
    two.locator("#kv-b").select_option("")  # the second visitor's views answer during the run
    expect(two.locator(".kv-card")).to_have_count(2)
    expect(two.locator("#kv-live")).to_be_hidden()
    expect(one.locator("#kv-source")).to_contain_text("Your run")
    expect(two.locator("#kv-source")).to_contain_text("Stored example")


def test_a_link_to_a_lost_run_says_so(visit_fresh):
    page = visit_fresh("?r=gone-run-id")
    expect(page.locator(".kv-status:not([hidden])")).to_contain_text("no longer kept here")
    expect(page.locator("#kv-source")).to_contain_text("Stored example")


def test_the_tour_walks_and_stays_away(visit_fresh):
    page = visit_fresh()
    tour = page.locator("#kv-tour")
    expect(tour).to_contain_text("Tour 1 of")
    seen = "document.querySelector('.kv-card-a')?.getBoundingClientRect().bottom <= innerHeight + 1"
    page.wait_for_function(seen)  # the answers it speaks of are in sight, and so is the strip
    expect(tour).to_be_in_viewport()
    page.get_by_role("button", name="Show me why").click()
    expect(tour).to_contain_text("Tour 2 of")
    for spoken_of in (tour, page.locator("#kv-kept-a h3")):  # what the caption speaks of is in sight
        expect(spoken_of).to_be_in_viewport()
    tour.get_by_role("button", name="Back").click()
    expect(tour).to_contain_text("Tour 1 of")
    page.get_by_role("button", name="Skip tour").click()
    expect(tour).to_be_hidden()
    page.get_by_role("button", name="Tour", exact=True).click()
    expect(tour).to_contain_text("Tour 1 of")
    page.get_by_role("button", name="Skip tour").click()
    page.reload()
    page.wait_for_selector("#kv-app[data-ready]")
    expect(tour).to_be_hidden()


def test_gradio_client_can_compare(served):
    from gradio_client import Client

    client = Client(served[0], verbose=False)
    reply = client.predict(
        document="text", question="q?", methods=["snapkv"], budgets=[0.5], api_name="/compare"
    )
    assert [row["method"] for row in reply["answers"]] == ["full", "snapkv"]
    named = client.view_api(return_format="dict")["named_endpoints"]
    assert list(named) == ["/compare"]
