"""The page's modules as one file: in the order of their imports, and nothing taken in that would change."""

import shutil
import subprocess

import pytest

from kvviz.ui import assets
from kvviz.ui.bundle import bundled

MODULES = {
    "main.js": "import {f} from './lib/a.js';\nimport './lib/c.js';\nexport async function start() {}\n",
    "lib/a.js": "import {\n  x as y} from './b.js';\nexport const f = () => y;\n",
    "lib/b.js": "export const x = 3;\nexport class Odd {}\n",
    "lib/c.js": "import {x} from './b.js';\nf(x);\n",
    "lib/apart.js": "import {x} from './b.js';\n",
}


def test_modules_run_once_in_the_order_in_which_they_are_imported():
    one = bundled(MODULES, "main.js", "start")
    order = ("lib/b.js", "lib/a.js", "lib/c.js", "main.js", "lib/apart.js")
    assert [one.count(f"modules['{path}'] =") for path in order] == [1] * 5
    places = [one.index(f"modules['{path}'] =") for path in order]
    assert places == sorted(places)
    assert "const {\n  x: y} = modules['lib/b.js'];" in one and "return {x, Odd};" in one
    assert "export const start = modules['main.js'].start;" in one


@pytest.mark.parametrize(
    "source",
    ["export default 3;", "export let x = 3;", "export {x};", "import x from './b.js';",
     "import {x} from 'elsewhere';", "import {start} from '../main.js';"],
)  # fmt: skip
def test_what_would_not_stay_the_same_is_refused(source):
    with pytest.raises(ValueError):
        bundled({**MODULES, "lib/a.js": source}, "main.js", "start")


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_the_pages_modules_can_be_read(tmp_path):
    (tmp_path / "page.mjs").write_text(assets.page_js(), encoding="utf-8")
    found = subprocess.run(["node", "--check", str(tmp_path / "page.mjs")], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
