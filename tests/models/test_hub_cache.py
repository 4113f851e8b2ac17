"""A model of the hub whose files in the local cache are damaged: fetched again, or one sentence."""

import hashlib
import os
import shutil

import pytest
from tiny import make_hf, make_tokenizer

from kvviz.errors import ModelError
from kvviz.models import hub_cache, load, load_model

FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]


def blob_name(path):
    """What the hub calls a file: weights by their SHA-256, small files as git does."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """(snapshot folder of owner/model in the cache, the same files as they are on the hub)."""
    source, repo = tmp_path / "on the hub", tmp_path / "hub" / "models--owner--model"
    make_hf("qwen2").save_pretrained(source)
    make_tokenizer().save_pretrained(source)
    snapshot = repo / "snapshots" / ("a" * 40)
    for folder in (snapshot, repo / "blobs", repo / "refs"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    for path in source.iterdir():
        shutil.copy(path, repo / "blobs" / blob_name(path))
        (snapshot / path.name).symlink_to(repo / "blobs" / blob_name(path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return snapshot, source


def damage(path, how):
    data = path.read_bytes()
    changed = {"cut": data[: len(data) // 2], "zeros": bytes(len(data)), "empty": b""}[how]
    path.resolve().write_bytes(changed)


@pytest.mark.parametrize("how", ["cut", "zeros", "empty"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_removed_and_said_where_there_is_no_network(hub, monkeypatch, name, how):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    snapshot, _ = hub
    damage(snapshot / name, how)
    with pytest.raises(ModelError) as refused:
        load_model("owner/model", dtype="float32")
    assert str(refused.value) == (
        f"What was fetched of owner/model earlier was damaged ({name}) and is removed; try again when there "
        "is a network."
    )
    assert not os.path.lexists(snapshot / name)
    assert {path.name for path in snapshot.iterdir()} >= {*FILES} - {name}


def test_a_damaged_file_is_fetched_again(hub, monkeypatch):
    snapshot, source = hub
    damage(snapshot / "model.safetensors", "cut")
    said, asked = [], []
    plain = load._read

    def read(place, *rest, local_files_only, **given):
        if not local_files_only:  # what the hub's client does of files that are not there
            for path in source.iterdir():
                if not (snapshot / path.name).exists():
                    asked.append(path.name)
                    shutil.copy(path, snapshot / path.name)
        return plain(place, *rest, local_files_only=True, **given)

    monkeypatch.setattr(load, "get_hf_file_metadata", lambda *a, **k: None)
    monkeypatch.setattr(load, "_read", read)
    model = load_model("owner/model", dtype="float32", progress=lambda text, part: said.append(text))
    assert model.id == "owner/model" and asked == ["model.safetensors"]
    assert "Fetching owner/model again: it was damaged" in said


def test_whole_files_stay_and_unknown_names_are_left_alone(hub):
    snapshot, _ = hub
    other = snapshot / "notes.txt"
    (snapshot / "a-name").write_text("x")
    other.symlink_to(snapshot / "a-name")
    assert hub_cache.drop_damaged("owner/model") == []
    assert hub_cache.drop_damaged("nobody/nothing") == []
    assert other.exists() and all((snapshot / name).exists() for name in FILES)


def test_what_cannot_be_removed_is_said(hub, monkeypatch):
    snapshot, _ = hub
    damage(snapshot / "config.json", "cut")

    def refuse(self, **rest):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(ModelError, match="^What was fetched of owner/model earlier is damaged. Remove its "):
        load_model("owner/model", dtype="float32")
