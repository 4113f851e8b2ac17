"""Families: what `Model` and `Layer` say is what the modules do; refusals have reasons."""

import pytest
import torch
from tiny import FAMILIES, make_config, make_hf, make_model, make_tokenizer
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, pipeline

from kvviz.errors import ModelError
from kvviz.models import wrap_model
from kvviz.models.adapters import REFUSED, family_of

ALL = [*FAMILIES, "gpt_oss"]


@pytest.fixture(params=ALL)
def model(request):
    return make_model(request.param)


def ids(n=40):
    return torch.randint(4, 320, (1, n), generator=torch.Generator().manual_seed(1))


def attention_calls(model, input_ids, **kwargs):
    """One forward; for each layer the projections before RoPE and what attention received."""
    calls = []

    def record(module, query, key, value, mask, **options):
        calls.append({"module": module, "query": query, "key": key, "options": options})
        weights = torch.softmax(query @ key.repeat_interleave(model.group, 1).mT, -1)
        out = weights @ value.repeat_interleave(model.group, 1)
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register("record_for_test", record)
    before = model.hf.config._attn_implementation
    model.hf.set_attn_implementation("record_for_test")
    try:
        with torch.no_grad():
            model.hf(input_ids, **kwargs)
    finally:
        model.hf.set_attn_implementation(before)
    return calls


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def test_shapes_and_counts(model):
    assert model.n_layers == len(model.layers) == len(model.info.windows)
    assert model.group == model.n_query_heads // model.n_kv_heads == 2
    assert model.head_dim == 16
    assert not model.hf.training
    assert not any(weight.requires_grad for weight in model.hf.parameters())
    assert model.layer(1).index == 1
    assert model.info.dtype == "float32"


def test_w_o_reproduces_o_proj(model):
    for index in range(model.n_layers):
        layer = model.layer(index)
        heads = torch.randn(5, model.n_query_heads, model.head_dim)
        with torch.no_grad():
            expected = layer.attention.o_proj(heads.reshape(5, -1))
            bias = getattr(layer.attention.o_proj, "bias", None)
            ours = torch.einsum("thd,hde->te", heads, layer.w_o) + (0 if bias is None else bias)
        torch.testing.assert_close(ours, expected)
        assert layer.w_o.data_ptr() == layer.attention.o_proj.weight.data_ptr()


def test_rotary_is_what_the_layer_applies(model):
    positions = torch.arange(7, 47)
    calls = attention_calls(model, ids(), position_ids=positions[None])
    calls_at_zero = attention_calls(model, ids(), position_ids=torch.zeros(1, 40, dtype=torch.long))
    # Only the first layer sees the same input in both passes.
    cos, sin = model.rotary(0, positions)
    assert cos.shape == sin.shape and cos.dtype == torch.float32 and cos.shape[-1] <= 16
    scale = (cos**2 + sin**2)[:, :1]
    for name in ("query", "key"):
        rotated = calls[0][name]
        unrotated = calls_at_zero[0][name] / scale.sqrt()  # at position 0 only the scale is left
        torch.testing.assert_close(unrotated * cos + rotate_half(unrotated) * sin, rotated)
        back = (rotated * cos - rotate_half(rotated) * sin) / scale
        torch.testing.assert_close(back, unrotated, atol=1e-5, rtol=1e-4)


def test_rotary_of_every_layer(model):
    """Every layer's angles, against the position embeddings that its module is called with."""
    positions = torch.arange(3, 23)
    seen = {}
    hooks = [
        layer.attention.register_forward_pre_hook(
            lambda module, args, kwargs, index=layer.index: seen.__setitem__(
                index, kwargs["position_embeddings"]
            ),
            with_kwargs=True,
        )
        for layer in model.layers
    ]
    with torch.no_grad():
        model.hf(ids(20), position_ids=positions[None])
    for hook in hooks:
        hook.remove()
    for index, (cos, sin) in seen.items():
        ours = model.rotary(index, positions)
        width = cos.shape[-1]  # GPT-OSS passes one angle a pair
        torch.testing.assert_close(ours[0][:, :width], cos[0])
        torch.testing.assert_close(ours[1][:, -width:], sin[0])


def test_gemma3_angles_differ_between_layer_types():
    model = make_model("gemma3")
    local, full = model.rotary(0, torch.arange(9)), model.rotary(1, torch.arange(9))
    assert not torch.allclose(local[0], full[0])


def test_partial_rotary_is_narrower_than_the_head():
    model = make_model("phi3", partial_rotary_factor=0.5)
    cos, _ = model.rotary(0, torch.arange(4))
    assert cos.shape == (4, 8)


def test_longrope_reads_no_further_than_its_angles_hold():
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8, "original_max_position_embeddings": 512}  # fmt: skip
    model = make_model("phi3", rope_parameters=rope, original_max_position_embeddings=512)
    assert model.info.max_tokens == 512
    before = model.rotary(0, torch.arange(8))[0].clone()
    model.rotary(0, torch.arange(512))
    torch.testing.assert_close(model.rotary(0, torch.arange(8))[0], before)


@pytest.mark.parametrize(
    ("family", "windows"),
    [
        ("llama", (None, None, None)),
        ("mistral", (24, 24, 24)),
        ("qwen2", (None, None, None)),
        ("gemma3", (8, None, 8, None)),
        ("gpt_oss", (8, None, 8)),
    ],
)
def test_windows(family, windows):
    assert make_model(family).info.windows == windows


def test_qwen2_windows_follow_its_layer_types():
    model = make_model("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=2)
    assert model.info.windows == (None, None, 16)


def test_windows_scaling_and_sinks_are_what_attention_receives(model):
    for layer, call in zip(model.layers, attention_calls(model, ids())):
        assert call["module"] is layer.attention
        assert call["options"].get("sliding_window") == layer.window
        assert call["options"]["scaling"] == layer.scaling
        assert call["options"].get("s_aux") is layer.sinks
    assert (model.layer(0).sinks is not None) == (model.id == "tiny-gpt_oss")


def test_a_key_at_the_windows_edge_is_seen_and_the_next_is_not():
    model = make_model("mistral", num_hidden_layers=1)
    base = ids()
    with torch.no_grad():
        reference = model.hf(base).logits[0, -1]
        for back, changes in ((23, True), (24, False)):
            other = base.clone()
            other[0, -1 - back] = (other[0, -1 - back] + 1) % 300 + 4
            differs = not torch.allclose(model.hf(other).logits[0, -1], reference, atol=1e-6)
            assert differs is changes


def test_nested_gemma3_is_served_through_its_language_model():
    text = make_config("gemma3").to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    model = wrap_model(AutoModelForCausalLM.from_config(config), make_tokenizer(), "nested")
    assert model.info.windows == (8, None, 8, None)
    assert model.layer(0).w_o.shape == (4, 16, 48)
    assert model.rotary(1, torch.arange(3))[0].shape == (3, 16)


def test_stop_ids_are_generates_and_the_tokenizers():
    hf = make_hf("llama")
    hf.generation_config.eos_token_id = [7, 9]
    assert wrap_model(hf, make_tokenizer()).stop_ids == {7, 9, 3}
    hf.generation_config.eos_token_id = None
    assert wrap_model(hf, make_tokenizer()).stop_ids == {3}


def test_weights_hash_tells_models_apart():
    assert make_model("llama").weights_hash == make_model("llama").weights_hash
    assert make_model("llama").weights_hash != make_model("llama", seed=1).weights_hash


def test_w_o_follows_a_model_that_changes_its_dtype():
    model = make_model("llama")
    model.hf.to(torch.bfloat16)
    assert model.layer(0).w_o.dtype == torch.bfloat16


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_refusals_name_model_and_reason(model_type):
    with pytest.raises(ModelError) as refusal:
        family_of(AutoConfig.for_model(model_type), "some/model")
    assert str(refusal.value).startswith(f"some/model is a {model_type} model, which kvviz cannot")
    assert REFUSED[model_type] in str(refusal.value)


def test_a_family_nobody_described_is_refused():
    with pytest.raises(ModelError, match="has not been described"):
        family_of(AutoConfig.for_model("opt"), "some/model")


def test_capped_or_bidirectional_gemma3_is_refused():
    with pytest.raises(ModelError, match="caps attention logits"):
        make_model("gemma3", attn_logit_softcapping=50.0)
    with pytest.raises(ModelError, match="looks forward"):
        make_model("gemma3", use_bidirectional_attention=True)


def test_wrapped_objects_get_a_clear_sentence():
    tokenizer = make_tokenizer()
    hf = make_hf("llama")
    with pytest.raises(ModelError, match=r"pass its \.model"):
        wrap_model(pipeline("text-generation", model=hf, tokenizer=tokenizer), tokenizer)
    with pytest.raises(ModelError, match="needs a transformers model"):
        wrap_model(nn.Linear(2, 2), tokenizer)
    with pytest.raises(ModelError, match="without a tokenizer"):
        wrap_model(hf, None)
    with pytest.raises(ModelError, match="no language-model head"):
        wrap_model(hf.model, tokenizer)
    with pytest.raises(ModelError, match=r"before torch\.compile"):
        wrap_model(torch.compile(make_hf("llama")), tokenizer)


def test_adapters_are_refused():
    class Adapted(nn.Module):
        def merge_and_unload(self):
            return self

    with pytest.raises(ModelError, match="merge_and_unload"):
        wrap_model(Adapted(), make_tokenizer())


def test_packed_weights_are_refused():
    hf = make_hf("llama")
    for block in hf.model.layers:
        packed = torch.zeros(64, 32, dtype=torch.uint8)
        block.self_attn.o_proj.weight = nn.Parameter(packed, requires_grad=False)
    with pytest.raises(ModelError, match="quantised"):
        wrap_model(hf, make_tokenizer())
