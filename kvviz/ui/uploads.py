"""Files that the page has uploaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gradio as gr

from kvviz.errors import InputError


def uploaded(path: Any) -> Path:
    """A file that the page has uploaded; InputError for any other."""
    given, uploads = str(path or ""), Path(gr.utils.get_upload_folder()).resolve()
    if not os.path.isfile(given) or not Path(given).resolve().is_relative_to(uploads):
        raise InputError("This file did not arrive. Try again.")
    return Path(given)
