"""Calibrated files: found by weights in any dtype, checked, atomic; the shipped ones are complete."""

import json
from importlib import import_module

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import make_hf, make_model, make_tokenizer

from kvviz.errors import InputError, NeedError
from kvviz.methods import artefacts, list_methods
from kvviz.models import wrap_model

NAMES = [method.artefact.name for method in list_methods() if method.artefact is not None]
SHIPPED = artefacts.SHIPPED / "smollm2-135m"


def filled(name, info, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = artefacts.spec_of(name).shapes(info)
    return {key: torch.rand(shape, generator=draw) for key, shape in shapes.items()}


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path))
    return tmp_path


def test_every_artefact_can_be_calibrated():
    for name in NAMES:
        assert callable(import_module(f"kvviz.calibrate.{name}").run)
        spec = artefacts.spec_of(name)
        assert spec.steps >= 1 and spec.step_word


@pytest.mark.parametrize("name", NAMES)
def test_saved_is_found_and_the_same(name, own_cache, tiny_llama):
    tensors = filled(name, tiny_llama.info)
    path = artefacts.save(tiny_llama, name, tensors, {"seed": 7}, artefacts.folder_for(tiny_llama))
    assert artefacts.find(tiny_llama, name) == path
    assert artefacts.missing(tiny_llama, name, "X") == ""
    loaded = artefacts.load(tiny_llama, name)
    assert all(torch.equal(loaded.tensors[key], value) for key, value in tensors.items())
    about = loaded.about
    assert about["model"] == "tiny-llama"
    assert about["seed"] == 7
    assert {"date", "version", "sha256", "weights", "format"} <= set(about)
    assert path.stat().st_mode & 0o444 == 0o444
    assert [f.name for f in path.parent.iterdir()] == [path.name]


def test_found_in_any_dtype_and_under_any_name_but_not_for_other_weights(own_cache, tiny_llama):
    name = "qfilters"
    artefacts.save(
        tiny_llama, name, filled(name, tiny_llama.info), {}, artefacts.folder_for(tiny_llama)
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        same = wrap_model(make_hf("llama").to(dtype), make_tokenizer(), "renamed")
        assert artefacts.find(same, name) is not None
    other = make_model("llama", seed=1)
    assert artefacts.find(other, name) is None
    with pytest.raises(NeedError, match="python -m kvviz calibrate qfilters --model tiny-llama"):
        artefacts.load(other, name)


def test_damage_is_a_sentence_and_another_models_damage_is_not_ours(own_cache, tiny_llama):
    folder = artefacts.folder_for(tiny_llama)
    tensors = filled("qfilters", tiny_llama.info)
    path = artefacts.save(tiny_llama, "qfilters", tensors, {}, folder)
    about = artefacts.read(path).about
    changed = {key: value + 1 for key, value in load_file(path).items()}
    save_file(changed, path, {"kvviz": json.dumps({**about, "note": "x"})})
    with pytest.raises(InputError, match="checksum does not match"):
        artefacts.load(tiny_llama, "qfilters")
    path.write_bytes(b"nothing of the kind")
    assert artefacts.find(tiny_llama, "qfilters") is None
    with pytest.raises(InputError, match="not a calibrated file"):
        artefacts.read(path)


def test_a_truncated_file_is_called_damaged_not_uncalibrated(own_cache, tiny_llama):
    folder = artefacts.folder_for(tiny_llama)
    path = artefacts.save(tiny_llama, "qfilters", filled("qfilters", tiny_llama.info), {}, folder)
    path.write_bytes(path.read_bytes()[:200])
    sentence = "for tiny-llama is damaged. Make it again: python -m kvviz calibrate qfilters"
    with pytest.raises(NeedError, match=sentence):
        artefacts.load(tiny_llama, "qfilters")


OTHER_ANGLES = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}


@pytest.mark.parametrize("changes", [OTHER_ANGLES, {"rms_norm_eps": 0.1}], ids=["angles", "norm"])
def test_the_same_weights_under_another_configuration_are_another_model(changes, own_cache, tiny_llama):
    """Filters are read off rotated queries: other angles need others."""
    name = "qfilters"
    artefacts.save(tiny_llama, name, filled(name, tiny_llama.info), {}, artefacts.folder_for(tiny_llama))
    other = make_model("llama", **changes)
    assert other.weights_hash == tiny_llama.weights_hash
    assert artefacts.find(other, name) is None
    assert artefacts.find(make_model("llama"), name) is not None


CRAFTED = ["[1]", '"x"', "null", "3", "{}", "[" * 100_000,
           '{"format": 1, "name": "qfilters", "weights": [1, 2]}',
           '{"format": 1, "name": 7, "weights": {}}', '{"format": 1, "weights": {"float32": "HASH"}}',
           '{"format": 1, "name": "indexmem", "weights": {"float32": "HASH"}}',
           '{"format": 1, "name": "qfilters", "weights": {"float32": ["HASH"]}}']  # fmt: skip


@pytest.mark.parametrize("metadata", CRAFTED, ids=range(len(CRAFTED)))
def test_a_crafted_file_concerns_no_model(metadata, own_cache, tiny_llama):
    """Every model looks at all files that there are."""
    folder = own_cache / "artefacts" / "crafted"
    folder.mkdir(parents=True)
    tensors = filled("qfilters", tiny_llama.info)
    text = metadata.replace("HASH", tiny_llama.weights_hash)
    save_file(tensors, folder / "qfilters.safetensors", {"kvviz": text})
    assert artefacts.find(tiny_llama, "qfilters") is None
    path = artefacts.save(tiny_llama, "qfilters", tensors, {}, artefacts.folder_for(tiny_llama))
    assert artefacts.find(tiny_llama, "qfilters") == path


@pytest.mark.parametrize("wrong", ["shape", "missing", "nan"])
def test_what_does_not_fit_is_not_saved(wrong, own_cache, tiny_llama):
    tensors = filled("duoattention", tiny_llama.info)
    if wrong == "shape":
        tensors["gates"] = tensors["gates"][:1]
    elif wrong == "missing":
        del tensors["path"]
    else:
        tensors["path"][0, 0] = float("nan")
    folder = artefacts.folder_for(tiny_llama)
    with pytest.raises(InputError, match="does not fit|not finite"):
        artefacts.save(tiny_llama, "duoattention", tensors, {}, folder)
    assert not list(folder.iterdir())


def test_lent_is_for_this_block_alone(tiny_llama, own_cache):
    lent = artefacts.Artefact("qfilters", filled("qfilters", tiny_llama.info), {})
    with artefacts.lend(lent):
        assert artefacts.load(tiny_llama, "qfilters") is lent
    with pytest.raises(NeedError):
        artefacts.load(tiny_llama, "qfilters")


# -- what ships ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_are_whole_and_say_where_they_come_from(name):
    artefact = artefacts.read(SHIPPED / f"{name}.safetensors")
    about = artefact.about
    assert about["name"] == name
    assert about["model"] == "smollm2-135m"
    assert set(about["weights"]) == {"float32", "bfloat16", "float16"}
    assert about["command"].startswith(f"python -m kvviz calibrate {name} --model smollm2-135m")
    assert about["texts"]
    assert about["steps"] == artefacts.spec_of(name).steps
    assert about["date"] > "2026"
    assert (SHIPPED / f"{name}.safetensors").stat().st_size < 4e6
    assert not any("held_out" in str(text) or "constitution" in str(text) for text in about["texts"])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_shipped_files_are_found_for_the_embedded_model(name, smollm):
    assert artefacts.find(smollm, name) == SHIPPED / f"{name}.safetensors"
    artefacts.check(artefacts.load(smollm, name), smollm.info, name)
    method = next(m for m in list_methods() if m.id == name)
    assert method.available(smollm) == ""
