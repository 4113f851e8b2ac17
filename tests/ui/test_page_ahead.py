"""Which of Gradio's files the page names early."""

from kvviz.ui import ahead


def test_every_file_named_early_is_one_that_gradio_ships():
    names = ahead.needed()
    assert len(names) == len(set(names)) > 20
    assert all((ahead.ASSETS / name).is_file() for name in names)


def test_the_first_files_are_those_that_the_page_itself_names():
    first, second = ahead.needed()[:2]
    page = (ahead.ASSETS.parent / "index.html").read_text(encoding="utf-8")
    assert first.endswith(".js") and f'src="./assets/{first}"' in page
    assert second.endswith(".css") and f'href="./assets/{second}"' in page


def test_the_script_that_draws_our_component_is_among_them():
    drawing = [name for name in ahead.needed() if name.startswith("HTML-")]
    assert {name.rpartition(".")[2] for name in drawing} == {"js", "css"}


def test_a_gradio_put_together_in_another_way_is_left_to_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "ASSETS", tmp_path / "assets")
    for page in (None, "<html></html>", '<script src="./assets/index-1.js"></script>'):
        if page is not None:
            (tmp_path / "index.html").write_text(page)
        assert ahead.needed.__wrapped__() == ()
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "index-1.js").write_text("import(`./Index-2.js`)")
    assert ahead.needed.__wrapped__() == ()
