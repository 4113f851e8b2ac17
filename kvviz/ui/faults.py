"""What the server's log says of a fault of ours."""

from __future__ import annotations

import sys
import traceback

from kvviz.settings import settings


def log(error: BaseException) -> None:
    """Where it happened and what kind it is. Its message, which may quote a visitor's text, only on a server
    that is not public."""
    if settings().public:
        places = "".join(traceback.format_tb(error.__traceback__))
        print(f"Traceback (most recent call last):\n{places}{type(error).__name__}", file=sys.stderr)
    else:
        traceback.print_exception(error)
