"""What each colour means, in light and dark.

Figures name a meaning ("role:evicted"), never a colour. A page replaces the names by the CSS
variables of `css()`, again whenever its theme changes; `resolve` does the same in Python.
"""

from __future__ import annotations

from typing import Any

ROLES: dict[str, tuple[str, str]] = {  # role -> (light, dark)
    "page": ("#FFFFFF", "#0F151C"),
    "text": ("#1D2B3A", "#E8EEF4"),
    "muted": ("#5B6673", "#9AA7B4"),
    "kept": ("#1D2B3A", "#E8EEF4"),
    "both": ("#1D2B3A", "#E8EEF4"),
    "evicted": ("#E6E9ED", "#2A3541"),
    "neither": ("#E6E9ED", "#2A3541"),
    "protected": ("#8FD9BF", "#1E7A63"),
    "outside": ("#CDB9E8", "#5B4690"),
    "outside-line": ("#5B4690", "#CDB9E8"),
    "unscored": ("#FFFFFF", "#0F151C"),
    "unscored-line": ("#5B6673", "#9AA7B4"),
    "a": ("#D95F02", "#FF8B3D"),
    "b": ("#1B74C9", "#4FA8FF"),
    "mixed": ("#F5D04A", "#F7E27A"),
    "mark": ("#B0005E", "#FF6FB5"),
    "selection": ("#1D2B3A", "#E8EEF4"),
    "halo": ("#FFFFFF", "#0F151C"),
    "differs": ("#FFF0B3", "#4D4212"),
}

# Lines of many methods ("line-0" ...), told apart by marker and dash as well; the first is the plain text's.
LINES = (
    ROLES["text"], ROLES["a"], ROLES["b"], ("#1E7A63", "#8FD9BF"), ROLES["outside-line"], ROLES["mark"],
    ("#8A6D00", "#F5D04A"), ROLES["muted"],
)  # fmt: skip

PREFIX = "role:"
RAMP_STEPS = 10  # ramp-0 is "evicted", ramp-10 is "kept"
FIRST_STEP = 0.28  # of the way from evicted to kept
AMOUNT_STEPS = 12
STRENGTHS = 3
TEXT_STEPS = 5  # shades of a word in the document


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mix(low: str, high: str, share: float) -> str:
    pairs = zip(_rgb(low), _rgb(high))
    return "#" + "".join(f"{round(x + (y - x) * share):02X}" for x, y in pairs)


def _between(low: tuple[str, str], high: tuple[str, str], share: float) -> tuple[str, str]:
    return _mix(low[0], high[0], share), _mix(low[1], high[1], share)


def luminance(colour: str) -> float:
    """Relative luminance of "#RRGGBB", 0 to 1 (WCAG)."""

    def linear(channel: int) -> float:
        c = channel / 255
        return c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(c) for c in _rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _readable(fill: tuple[str, str]) -> tuple[str, str]:
    """Text colour on a fill, each theme: the page's own if it reads well, else black or white."""

    def pick(background: str, theme: int) -> str:
        for choice in (ROLES["text"][theme], ROLES["page"][theme]):
            if contrast(choice, background) >= 4.5:
                return choice
        return max(("#000000", "#FFFFFF"), key=lambda c: contrast(c, background))

    return pick(fill[0], 0), pick(fill[1], 1)


def _shades() -> dict[str, tuple[str, str]]:
    """Colours that follow from ROLES: steps of a ramp, strengths, text on a fill."""
    evicted, kept = ROLES["evicted"], ROLES["kept"]
    # "Something was kept here" stands off from "nothing was": the first step is a large one.
    shades = {
        f"ramp-{i}": _between(evicted, kept, i and FIRST_STEP + (1 - FIRST_STEP) * (i - 1) / (RAMP_STEPS - 1))
        for i in range(RAMP_STEPS + 1)
    }
    # Amounts that are neither "kept" nor A nor B (errors, counts dropped) take a hue of their own.
    most = ("#00545C", "#8FEDF2")
    for i in range(AMOUNT_STEPS + 1):
        shades[f"amount-{i}"] = _between(evicted, most, i / AMOUNT_STEPS)
        shades[f"on-amount-{i}"] = _readable(shades[f"amount-{i}"])
    # The other way of an effect that has a sign: it comes with a pattern of dashes.
    for i in range(1, STRENGTHS + 1):
        shades[f"against-{i}"] = _between(evicted, ("#8A4B08", "#E0A15E"), (0.4, 0.7, 1.0)[i - 1])
        shades[f"on-against-{i}"] = _readable(shades[f"against-{i}"])
    for side in ("a", "b"):
        for i in range(1, STRENGTHS + 1):
            share = (0.45, 0.7, 1.0)[i - 1]
            shades[f"{side}-{i}"] = _between(evicted, ROLES[side], share)
    for i in range(TEXT_STEPS):
        shades[f"step-{i}"] = _between(evicted, kept, i / (TEXT_STEPS - 1))
        shades[f"on-step-{i}"] = _readable(shades[f"step-{i}"])
    shades["on-step-0"] = ROLES["muted"]  # a dropped word is grey text on the pale fill
    for role in ("a", "b", "mixed", "differs", "protected", "outside"):
        shades[f"on-{role}"] = _readable(ROLES[role])
    shades |= {f"line-{i}": pair for i, pair in enumerate(LINES)}
    shades["grid"] = _between(ROLES["page"], ROLES["muted"], 0.25)
    return shades


SHADES = _shades()
COLOURS = ROLES | SHADES


def role(name: str) -> str:
    """The name of a colour as a figure writes it; an unknown name is a mistake in the figure."""
    if name not in COLOURS:
        raise KeyError(f"no colour role called {name!r}")
    return PREFIX + name


def css() -> str:
    """The CSS variables `--kv-<role>` of both themes; `.dark` on the page switches."""

    def block(theme: int) -> str:
        return "".join(f"--kv-{name}:{pair[theme]};" for name, pair in COLOURS.items())

    return f":root{{{block(0)}}}\n.dark{{{block(1)}}}\n"


def stepped(names: list[str]) -> list[list[Any]]:
    """A Plotly colour scale of flat steps: code i (0-based) is drawn in the i-th role.

    Give the heatmap zmin = -0.5 and zmax = len(names) - 0.5.
    """
    steps = len(names)
    scale: list[list[Any]] = []
    for i, name in enumerate(names):
        scale += [[i / steps, role(name)], [(i + 1) / steps, role(name)]]
    return scale


def resolve(value: Any, theme: str = "light") -> Any:
    """A copy of plain data with every "role:..." string replaced by its colour in `theme`."""
    if isinstance(value, str):
        if value.startswith(PREFIX) and value[len(PREFIX) :] in COLOURS:
            return COLOURS[value[len(PREFIX) :]][theme == "dark"]
        return value
    if isinstance(value, dict):
        return {key: resolve(item, theme) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, theme) for item in value]
    return value
