"""The page as one file: it holds what its story asks, and no text in it is markup or code."""

import json
import re
from dataclasses import replace

import pytest
from synthetic import with_turn

from kvviz.results.story import Opening, Step
from kvviz.ui import assets
from kvviz.ui.export_views import Exports
from kvviz.ui.saved_page import page_html
from kvviz.ui.views import answer

EVIL = "</script><script>boom()</script><!--<img src=x onerror=boom()>"


@pytest.fixture
def told(comparison):
    steps = (
        Step(EVIL, "answers", Opening("snapkv", "dropkv", 0.1)),
        Step("One head.", "why", Opening("snapkv", None, 0.2, (80, 85), 1, 2)),
    )
    prompt = replace(comparison.prompt, question=EVIL)
    return replace(comparison, prompt=prompt, story=replace(comparison.story, title=EVIL, steps=steps))


def _part(page, name):
    return json.loads(re.search(rf'id="{name}">(.*?)</script>', page, re.S)[1])


def test_a_saved_page_holds_what_each_step_shows(told):
    page = page_html(told)
    replies = _part(page, "replies")
    assert all("error" not in one["reply"] for one in replies)

    def has(view, **sel):
        return any(one["view"] == view and sel.items() <= one["sel"].items() for one in replies)

    assert has("meta") and has("text") and has("story")
    assert has("cards", a="snapkv", b="dropkv", budget=0.1)
    assert has("why", a="snapkv", b=None, budget=0.2, tok=[80, 85], layer=1, head=2)
    assert {one["sel"]["budget"] for one in replies if one["view"] == "kept"} >= {0.01, 0.05, 0.5, 1.0}
    meta = next(one["reply"] for one in replies if one["view"] == "meta")
    assert meta["opening"]["budget"] == 0.1  # it opens on the first step
    assert "kept" in _part(page, "boot")["tabs"] and "try" not in _part(page, "boot")["tabs"]


def test_a_step_about_the_budget_can_be_played_with_its_own_methods(comparison):
    step = Step("Watch.", "budget", Opening("dropkv", "streaming_llm", 0.1, None, 1, 2))
    steps = (Step("One.", "answers", Opening("snapkv", "dropkv", 0.1)), step)
    page = page_html(replace(comparison, story=replace(comparison.story, steps=steps)))
    played = [one["sel"] for one in _part(page, "replies") if one["view"] == "document"]
    budgets = {sel["budget"] for sel in played if (sel["a"], sel["layer"], sel["head"]) == ("dropkv", 1, 2)}
    assert {0.01, 0.02, 0.05, 0.5, 1.0} <= budgets


def test_further_questions_are_in_a_saved_page_at_each_stop_of_the_slider(comparison):
    asked = with_turn(comparison, "Who wrote it?")
    replies = [one for one in _part(page_html(asked), "replies") if one["view"] == "turns"]
    assert {one["sel"]["budget"] for one in replies} >= {0.01, 0.05, 0.1, 1.0}
    for one in replies:
        (turn,) = one["reply"]["turns"]
        assert turn["question"] == "Who wrote it?" and turn["cards"][0]["words"][0][0].startswith("Full")


def test_texts_in_a_saved_page_are_neither_markup_nor_code(told):
    page = page_html(told)
    assert "boom()</script>" not in page and "<img" not in re.sub(r"(?s)id=\"plotly\">.*?</script>", "", page)
    assert len(re.findall("</script>", page)) == 4  # plotly.js, two parts of data, the modules and the start
    told_again = next(o["reply"] for o in _part(page, "replies") if o["view"] == "story")
    assert told_again["steps"][0]["words"] == EVIL


def test_a_saved_page_imports_nothing_from_elsewhere(told):
    page = page_html(told)
    scripts = re.findall(r"(?s)<script([^>]*)>(.*?)</script>", page)
    code = next(text for tag, text in scripts if 'type="module"' in tag)
    assert all(f"modules['{path}'] = " in code for path in assets.modules())
    assert not re.search(r"^import\b", code, re.M)
    rest = re.sub(r"(?s)id=\"plotly\">.*?</script>", "", page)
    assert not re.search(r"""(?:src|href)=["']""", rest)


def test_exports_carry_the_pages_story_or_say_that_a_step_does_not_fit(store):
    from pathlib import Path

    from kvviz.results.archive import load_comparison

    step = {"words": "One.", "shows": "kept", "view": {"a": "snapkv", "b": None, "budget": 0.1}}

    def export(kind, steps):
        body = {"view": "export", "run": "stored-example", "args": {"kind": kind, "steps": steps}}
        return answer(store, exports, body)

    exports = Exports()
    assert load_comparison(export("zip", [step])["path"]).story.steps[0].words == "One."
    assert '"words":"One."' in Path(export("page", [step])["path"]).read_text(encoding="utf-8")
    assert load_comparison(export("zip", None)["path"]).story.steps == ()
    for odd in ("x", [3], [{**step, "shows": "a b"}], [{**step, "view": {"a": 1}}], [step] * 99):
        assert "does not fit the run" in export("zip", odd)["error"]
