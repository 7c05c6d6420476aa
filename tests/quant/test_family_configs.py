"""config.json and GGUF metadata: the values that are read, and refusals by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.table import FAMILIES, family_of_gguf, family_of_hf
from hearth.quant.json_fields import Fields, read_fields

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}


def config(model_type: str = "llama", **changes: Any) -> ModelConfig:
    fields = Fields(Path("config.json"), {**LLAMA, "model_type": model_type, **changes})
    return family_of_hf(fields).from_hf(fields)


def named(model_type: str, *classes: str) -> Fields:
    values = {"model_type": model_type, "architectures": list(classes)}
    return Fields(Path("config.json"), values)


def test_every_family_is_found_by_its_names() -> None:
    for family in FAMILIES:
        for model_type in family.model_types:
            assert family_of_hf(named(model_type)) is family
        for architecture in family.architectures:
            assert family_of_gguf(architecture) is family


def test_an_unknown_family_is_refused_with_its_name_and_the_list() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama.*gpt_oss"):
        family_of_hf(named("mamba"))
    with pytest.raises(UnsupportedModel, match=r"'rwkv7'.*llama.*gpt-oss"):
        family_of_gguf("rwkv7")
    with pytest.raises(UnsupportedModel, match="LlamaForSequenceClassification"):
        family_of_hf(named("llama", "LlamaForSequenceClassification"))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"type": "mrope"}}, "rope_scaling.type"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "rope_parameters.rope_type"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"is_causal": False}, "is_causal"),
    ],
)
def test_what_the_decoder_has_no_code_for_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        config(**changes)
    assert raised.value.data["field"] == field
    assert "config.json" in raised.value.message


@pytest.mark.parametrize(
    ("model_type", "changes", "field"),
    [
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
        ("gpt_oss", {"num_local_experts": 4, "swiglu_limit": 5.0}, "swiglu_limit"),
        ("qwen3_moe", {"mlp_only_layers": [0], "num_experts": 4}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 2, "num_experts": 4}, "decoder_sparse_step"),
    ],
)
def test_variants_of_a_family_that_are_refused(
    model_type: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        config(model_type, **changes)
    assert raised.value.data["field"] == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads"),
        ({"head_dim": 17}, "partial_rotary_factor"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"partial_rotary_factor": 1e308}, "partial_rotary_factor"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": 4.0}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e308}}, "rope_scaling.factor"),
        (
            # Its logarithm times that of the factor is -10: the divisor would be 0.
            {
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}
                | {"mscale_all_dim": -7.213475204444817}
            },
            "mscale_all_dim",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}, "short_factor"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [10**400]}}, "short_factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 1}},
            "original_max_position_embeddings",
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_values_that_cannot_be_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(CorruptFile) as raised:
        config(**changes)
    assert str(raised.value.data["field"]).endswith(field)
    assert field in raised.value.message


def test_layers_and_their_types_must_agree() -> None:
    with pytest.raises(CorruptFile, match="layer_types"):
        config("gemma2", layer_types=["sliding_attention"])
    with pytest.raises(CorruptFile, match="no_rope_layers"):
        config("smollm3", no_rope_layers=[1])


def test_a_config_that_leaves_almost_everything_out() -> None:
    """google/gemma-3-4b-it has only these values for its text model."""
    family = family_of_hf(named("gemma3", "Gemma3ForConditionalGeneration"))
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    found = family.from_hf(Fields(Path("config.json"), {"text_config": text}))
    assert (found.vocab_size, found.heads, found.kv_heads, found.head_dim) == (262_208, 8, 4, 256)
    assert found.tied and found.context == 131_072 and found.attention_scale == 1 / 16
    windows = [layer.window for layer in found.layers]
    assert windows[:6] == [1024] * 5 + [None] and windows[-1] == 1024
    local, whole = found.layers[0].rope, found.layers[5].rope
    assert local is not None and local.theta == 1e4 and local.scaling is None
    assert whole is not None and whole.theta == 1e6
    assert whole.scaling is not None and whole.scaling.factor == 8.0


def test_a_window_that_holds_the_whole_context_in_use_is_none() -> None:
    found = config("mistral", sliding_window=512)
    assert found.context == 512 and found.for_context(512).groups == (None,)
    assert found.for_context(513).groups == (512,), "a context beyond the trained one"
    assert config("mistral", sliding_window=511).for_context(512).groups == (511,)
    gemma = config("gemma3", sliding_window=512, sliding_window_pattern=2, head_dim=16)
    assert gemma.for_context(4096).groups == (None, 512)


def test_scaling_that_was_added_by_hand_makes_the_context_longer() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert config("qwen2", rope_scaling=scaling).context == 2048


def test_gpt_oss_has_experts_with_biases_and_sinks() -> None:
    found = config("gpt_oss", num_local_experts=4)
    assert found.experts is not None and found.experts.biases and found.sinks
    assert found.layers[0].window == 128 and found.layers[1].window is None


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"[" * 100_000, b"\xff\xfe{}"])
def test_files_that_are_no_json_object(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"config\.json"):
        read_fields(path)


def test_a_config_that_is_far_too_long(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"a": "x" * (5 << 20)}))
    with pytest.raises(CorruptFile, match="longer than"):
        read_fields(path)
