"""Files of the hub in its local cache: what was damaged there is found by its name and removed.

The cache (HF_HOME) holds the bytes of a file in `blobs/`, called by their SHA-256 or, for small files, by the
SHA-1 that git gives them; a snapshot links to them. A file whose bytes do not give its name is no longer what
was fetched. Where the system has no links, files have no such names and nothing can be told.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from kvviz.errors import ModelError

_PIECE = 2**20


def drop_damaged(id: str) -> list[str]:
    """Remove the damaged files of a model from the hub's cache, so that they are fetched again; their names.

    Raises ModelError where they cannot be removed.
    """
    repo = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=id, repo_type="model")
    links = [path for path in repo.glob("snapshots/*/**/*") if path.is_symlink() and path.exists()]
    damaged = {link: link.resolve() for link in links if not _is_its_name(link.resolve())}
    try:
        for link, blob in damaged.items():
            link.unlink()
            blob.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(damaged_sentence(id)) from error
    return sorted({link.name for link in damaged})


def damaged_sentence(id: str) -> str:
    """What is said where the person has to remove what was fetched."""
    return (
        f"What was fetched of {id} earlier is damaged. Remove its folder from the hub's cache (HF_HOME), "
        "then try again."
    )


def _is_its_name(blob: Path) -> bool:
    """Whether the bytes of a file give its name; True for a name that is no such sum."""
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        sum = hashlib.sha256()
    elif re.fullmatch(r"[0-9a-f]{40}", blob.name):
        sum = hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False)
    else:
        return True
    with blob.open("rb") as file:
        while piece := file.read(_PIECE):
            sum.update(piece)
    return sum.hexdigest() == blob.name
