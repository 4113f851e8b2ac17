"""Colours: the table of meanings, readable text, role names."""

import numpy as np
import pytest

from kvviz.figures import palette


def test_the_table_of_meanings():
    assert palette.ROLES["a"] == ("#D95F02", "#FF8B3D")
    assert palette.ROLES["b"] == ("#1B74C9", "#4FA8FF")
    assert palette.ROLES["kept"] == palette.ROLES["both"] == ("#1D2B3A", "#E8EEF4")
    assert palette.ROLES["evicted"] == palette.ROLES["neither"] == ("#E6E9ED", "#2A3541")
    assert palette.ROLES["protected"] == ("#8FD9BF", "#1E7A63")
    assert palette.ROLES["mark"] == ("#B0005E", "#FF6FB5")


def test_no_colour_has_two_meanings():
    """Apart from both = kept and neither = evicted, which are the same thing said of two."""
    names = ["kept", "evicted", "protected", "outside", "unscored", "a", "b", "mixed", "mark"]
    for theme in (0, 1):
        colours = [palette.ROLES[name][theme] for name in names]
        assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_on_every_shade_is_readable(theme):
    for name, pair in palette.SHADES.items():
        if name.startswith("on-"):
            fill = palette.COLOURS[name.removeprefix("on-")]
            assert palette.contrast(pair[theme], fill[theme]) >= 4.5, name


def test_ramp_goes_straight_from_evicted_to_kept():
    ramp = [palette.COLOURS[f"ramp-{i}"] for i in range(palette.RAMP_STEPS + 1)]
    assert ramp[0] == palette.ROLES["evicted"]
    assert ramp[-1] == palette.ROLES["kept"]
    light = [palette.luminance(pair[0]) for pair in ramp]
    assert np.all(np.diff(light) < 0)


@pytest.mark.parametrize("theme", [0, 1])
def test_something_kept_stands_off_from_nothing(theme):
    nothing, little = (palette.COLOURS[f"ramp-{i}"][theme] for i in (0, 1))
    assert palette.contrast(nothing, little) >= 1.5


def test_css_has_both_themes_and_every_role():
    light, dark = palette.css().split(".dark")
    for name, pair in palette.COLOURS.items():
        assert f"--kv-{name}:{pair[0]};" in light
        assert f"--kv-{name}:{pair[1]};" in dark


def test_resolve_replaces_roles_only():
    figure = {"color": "role:a", "list": ["role:page", "role:unheard", "text"], "n": 3}
    assert palette.resolve(figure, "dark") == {
        "color": "#FF8B3D",
        "list": ["#0F151C", "role:unheard", "text"],
        "n": 3,
    }


def test_an_unknown_role_is_refused():
    with pytest.raises(KeyError):
        palette.role("chartreuse")
