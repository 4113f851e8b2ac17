"""Gradio's own scripts and styles, named so that a browser asks for all of them at once.

Gradio's page fetches its first script, learns from it what to fetch next, and so on: the component that holds
our page comes after four such rounds. What each round needs is written in the scripts as shipped, by Vite:
a list of files, and for every `import` the places in that list.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Found without importing it: a stored run is viewed without a server.
_GRADIO = find_spec("gradio")
ASSETS = Path((_GRADIO and _GRADIO.origin) or "").parent / "templates" / "frontend" / "assets"
_ENTRY = re.compile(r'(?:src|href)="\./assets/(index-[^"]+\.(?:js|css))"')
_FILES = re.compile(r"m\.f=\[([^\]]*)\]")
_MAIN = re.compile(r"import\(`\./(?:Index|core)-[^`]+`\)[^_]*?__vite__mapDeps\(\[([\d,]*)\]\)")
_BLOCKS = re.compile(r"import\(`\./Blocks-[^`]+`\).*?__vite__mapDeps\(\[([\d,]*)\]\)")
_COMPONENT = r"[,{{]{}:{{(?:(?!\}}).)*?component:\(\)=>.*?__vite__mapDeps\(\[([\d,]*)\]\)"
_USED = ("column", "html", "state")  # the components our page is put together from


@cache
def needed() -> tuple[str, ...]:
    """Names in Gradio's folder of assets, in the order in which they are needed; () where this Gradio is put
    together in another way. The first are those that the page itself names: whatever is named early would
    otherwise be fetched before them."""
    try:
        page = (ASSETS.parent / "index.html").read_text(encoding="utf-8")
        found = dict.fromkeys(_ENTRY.findall(page))
        found |= _of(next(iter(found)), [_MAIN])
        by_name = {name.partition("-")[0]: name for name in found if name.endswith(".js")}
        found |= _of(by_name["Index"], [_BLOCKS])
        found |= _of(by_name["core"], [re.compile(_COMPONENT.format(name), re.S) for name in _USED])
    except (OSError, KeyError, IndexError, StopIteration):
        return ()
    return tuple(found)


def _of(script: str, imports: list[re.Pattern[str]]) -> dict[str, None]:
    """Files that these imports of a script need."""
    source = (ASSETS / script).read_text(encoding="utf-8")
    files = _FILES.search(source)
    listed = re.findall(r'"\./([^"]+)"', files[1]) if files else []
    places = [match[1] for pattern in imports if (match := pattern.search(source))]
    return {listed[int(place)]: None for one in places for place in one.split(",") if place}
