"""The catalogue: what its models weigh, which fit, which one the page starts with."""

from types import SimpleNamespace

import pytest
import torch
from reference import prompt_of
from tiny import make_config, make_model, make_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from kvviz.engine.trace import block_rows, prefill
from kvviz.errors import ModelError
from kvviz.hardware import Room, lent, room
from kvviz.models import load
from kvviz.models.catalog import CATALOG, LENGTHS, Shape, chosen_first, offer, offered
from kvviz.models.load import pick_device, pick_dtype
from kvviz.settings import settings

PUBLIC = settings({"KVVIZ_PUBLIC": "1"})
GB = 10**9


def built(shape: Shape):
    """transformers' own model of this shape, without memory for its weights."""
    config = AutoConfig.for_model(
        shape.family, num_hidden_layers=shape.layers, hidden_size=shape.hidden,
        intermediate_size=shape.inner, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim, vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("id", ["smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b", "gemma-3-1b", "mistral-7b",
                                "phi-4", "llama-3.3-70b"])  # fmt: skip
def test_weights_are_those_of_a_model_of_that_shape(id):
    shape = offer(id).shape
    count = sum(weight.numel() for weight in built(shape).parameters())
    assert shape.weights == pytest.approx(count, rel=3e-4)  # without norms and biases


def test_every_model_has_the_size_its_name_says_and_stands_in_that_order():
    sizes = [row.weights for row in CATALOG]
    assert sizes[0] < 0.2e9 and sizes[-1] > 70e9
    assert all(small < 1.05 * large for small, large in zip(sizes, sizes[1:]))
    for row in CATALOG:
        (said,) = [float(p[:-1]) for p in row.id.split("-") if p[-1] == "b" and p[0].isdigit()] or [None]
        if said is not None:
            assert row.weights / 1e9 == pytest.approx(said, rel=0.25), row.id


def test_the_cache_takes_what_is_allocated(tiny_llama):
    config = make_config("llama")
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
             "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip
    shape = Shape("llama", *(getattr(config, size) for size in sizes), tied=False)
    trace = prefill(tiny_llama, prompt_of(tiny_llama, 96))
    assert 96 % block_rows(96) == 0 and trace.bytes == 96 * shape.token_values * 4


@pytest.mark.slow
def test_the_embedded_model_takes_what_is_computed(smollm):
    row = offer("smollm2-135m")
    held = sum(weight.nbytes for weight in smollm.hf.parameters())
    assert row.memory("float32") == pytest.approx(held, rel=1e-3)
    n = 512
    assert row.cache(n, "float32") == prefill(smollm, prompt_of(smollm, n)).bytes


def test_needed_memory_grows_with_the_text_and_is_said():
    row = offer("qwen3-8b")
    needs = [row.needed(n, "bfloat16") for n in LENGTHS]
    assert needs == sorted(needs)
    assert needs[0] == row.memory("bfloat16") + row.cache(8192, "bfloat16") + 2 * 2**30 + 2**30
    assert row.needs == "for 8,192 tokens 21 GB on a GPU or 38 GB of memory"
    assert offer("phi-3-mini").needs.startswith("for 4,096 tokens ")


def test_what_fits_is_offered_and_the_largest_of_it_is_first_on_a_gpu():
    def first(on, **variables):
        return chosen_first(settings({"KVVIZ_PUBLIC": "1", **variables}), on).id

    assert first(Room(False, 16 * GB)) == first(Room(False, None)) == "smollm2-135m"
    assert first(Room(True, 1 * GB)) == "smollm2-135m"
    assert first(Room(True, 16 * GB)) == "qwen3-4b"
    assert first(Room(True, 24 * GB)) == "qwen3-8b"
    assert first(Room(True, 16 * GB, half=False)) == "qwen3-1.7b"  # without bfloat16 it takes twice as much
    assert first(Room(True, 80 * GB)) == "qwen3-32b"
    assert first(Room(True, 640 * GB)) == "qwen2.5-72b"
    assert first(Room(True, 80 * GB), KVVIZ_MODELS="qwen3-4b,llama-3.1-8b") == "qwen3-4b"  # one is gated
    small = [row.id for row in offered(PUBLIC, Room(False, 8 * GB))]
    assert small[:4] == ["smollm2-135m", "smollm2-360m", "qwen2.5-0.5b", "qwen3-0.6b"]
    assert "smollm2-1.7b" not in small and len(offered(PUBLIC, Room(True, 640 * GB))) == len(CATALOG)


def test_where_a_gpu_is_lent_cuda_is_left_alone(monkeypatch):
    def touched(*args):
        raise AssertionError("CUDA was touched in the main process")

    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setenv("ZEROGPU_CUDA_TOTAL_MEMORY", str(40 * GB))
    monkeypatch.setattr("kvviz.memory.total", lambda: 64 * GB)
    for name in ("is_available", "device_count", "get_device_properties", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, touched)
    assert lent() and room() == Room(True, 40 * GB)
    assert pick_device("auto") == torch.device("cpu")
    assert pick_dtype("auto", torch.device("cpu")) == torch.bfloat16


def test_the_slice_of_a_lent_gpu_is_48_gb_where_nothing_else_is_said(monkeypatch):
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.delenv("ZEROGPU_CUDA_TOTAL_MEMORY", raising=False)
    monkeypatch.setattr("kvviz.memory.total", lambda: 200 * GB)
    assert room() == Room(True, 48 * GB)


@pytest.mark.parametrize("half", [True, False])
def test_a_gpu_without_bfloat16_is_asked_for_the_float32_that_is_loaded_there(monkeypatch, half):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    one = SimpleNamespace(total_memory=16 * GB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: one)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: half)
    assert room() == Room(True, 32 * GB, half)
    assert room().dtype == str(pick_dtype("auto", torch.device("cuda"))).removeprefix("torch.")


def test_a_model_too_large_for_one_gpu_is_spread_over_several(monkeypatch):
    hf = make_model().hf
    seen = []

    def loaded(place, **given):
        seen.append(given.get("device_map"))
        hf.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
        return hf, {"missing_keys": []}

    monkeypatch.setattr(load.AutoConfig, "from_pretrained", lambda *a, **k: hf.config)
    monkeypatch.setattr(load.AutoTokenizer, "from_pretrained", lambda *a, **k: None)
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", loaded)
    size = sum(weight.nbytes for weight in hf.parameters())
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for free, wanted in ((size, "auto"), (2 * size, gpu)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu, free=free: (free, free))
        load._read("x", "x", torch.float32, gpu, True, True)
        assert seen.pop() == wanted
    load._read("x", "x", torch.float32, torch.device("cpu"), False, True)
    assert seen == [None] and load.on_several(hf, "x")
    hf.hf_device_map = {"model.layers.0": 0, "model.layers.1": "cpu"}
    with pytest.raises(ModelError, match="x does not fit into the memory of all GPUs here"):
        load.on_several(hf, "x")
    del hf.hf_device_map
    assert not load.on_several(hf, "x")


def test_weights_go_straight_to_a_gpu_and_are_weighed_against_its_memory(tmp_path, monkeypatch):
    """A rented GPU has often more memory than the machine around it: 24 GB beside 15."""
    make_model("qwen2").hf.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    hf, seen = make_model("qwen2").hf, []
    size = sum(weight.nbytes for weight in hf.parameters())

    def loaded(place, **given):
        seen.append(given.get("device_map"))
        return hf, {"missing_keys": []}

    monkeypatch.setattr(hf, "to", lambda where: hf)
    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", loaded)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("kvviz.memory.available", lambda: size // 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (2 * size, 2 * size))
    load.load_model(str(tmp_path), dtype="float32", device="cuda")
    assert seen == [torch.device("cuda")]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (size // 2, 2 * size))
    with pytest.raises(ModelError, match="takes about .* choose a smaller model"):
        load.load_model(str(tmp_path), dtype="float32", device="cuda")
