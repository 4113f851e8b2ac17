"""The page's ES modules as one: a browser fetches one file instead of fifty.

Every module becomes a function that is called once, in the order in which a browser would run the modules,
and returns what the module exports. That is the same as modules of their own as long as none needs one that
needs it, and no export changes its value: both are refused here, and so is any other way to import or export
than those that the page's modules use.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_IMPORT = re.compile(r"^import (?:(\{[^}]*\}) from )?'(\.{1,2}/[^']+)';$", re.M)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.M)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.M)


def bundled(modules: Mapping[str, str], main: str, export: str) -> str:
    """One module that exports `export` of the module `main`, and `modules`: {path: what it exports}.

    modules  {path: source}; those that `main` does not need run last. ValueError for what cannot be taken in.
    """
    parts: dict[str, str] = {}  # in the order in which they run
    for path in (main, *modules):
        _add(path, modules, parts, ())
    return (
        f"export const modules = {{}};\n{''.join(parts.values())}"
        f"export const {export} = modules['{main}'].{export};\n"
    )


def _add(path: str, modules: Mapping[str, str], parts: dict[str, str], asking: tuple[str, ...]) -> None:
    """Add what a module needs, then the module itself."""
    if path in asking:
        raise ValueError(f"These need each other: {' → '.join((*asking, path))}")
    if path in parts:
        return
    for _, name in _IMPORT.findall(modules[path]):
        _add(_path(path, name), modules, parts, (*asking, path))
    parts[path] = _part(path, modules[path])


def _path(path: str, name: str) -> str:
    """The module that is called `name` in the module at `path`."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


def _part(path: str, source: str) -> str:
    def taken(match: re.Match[str]) -> str:
        names = (match[1] or '{}').replace(' as ', ': ')
        return f"const {names} = modules['{_path(path, match[2])}'];"

    exports = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(taken, source))
    if left := _OTHER.search(body):
        raise ValueError(f"{path}: this is not taken into one file: {left[0]}")
    return f"modules['{path}'] = (() => {{\n{body}\nreturn {{{', '.join(exports)}}};\n}})();\n"
