"""Each family computes the same as transformers, on a tiny random checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from native_decoders import decoder_of, greedy, logits_of
from tiny_checkpoints import FAMILIES, VOCABULARY, WINDOW, tiny_model
from tiny_folders import Tensors, change_json, rewrite

TOLERANCE = 1e-4
# Longer than windows, than longrope's threshold for long texts, and than YaRN's original context.
LENGTH = 48


def text_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()


def assert_same(model: Any, folder: Path, length: int = LENGTH, context: int | None = None) -> None:
    """Require that the checkpoint in `folder` gives the logits of `model`."""
    text = text_of(length)
    found = logits_of(decoder_of(folder, context=context), text)
    assert (found - theirs(model, text)).abs().max() < TOLERANCE


def theirs(model: Any, text: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([text])).logits[0].float()
    return logits


def saved(family: str, folder: Path, **changes: Any) -> Any:
    model = tiny_model(family, **changes)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path)
    decoder = decoder_of(tmp_path)
    text = text_of(LENGTH)
    assert (logits_of(decoder, text) - theirs(model, text)).abs().max() < TOLERANCE
    with torch.no_grad():
        written = model.generate(
            torch.tensor([text]), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
    assert greedy(decoder, text, 64) == written[0, LENGTH:].tolist()


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a window in all layers": ("mistral", {"sliding_window": WINDOW}),
    "a window around experts": ("mixtral", {"sliding_window": WINDOW}),
    "a window in the upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "biases of attention": ("llama2", {"attention_bias": True}),
    "one head of keys": ("llama2", {"num_key_value_heads": 1}),
    "a head of keys for each": ("llama2", {"num_key_value_heads": 4}),
    "an odd number of heads": ("qwen3", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    "linear scaling": (
        "llama2",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "yarn with scales of its own": (
        "llama2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 1.2,
                "mscale_all_dim": 0.8,
            }
        },
    ),
    "a ramp between dimensions": (
        "gpt_oss",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150_000.0,
                "factor": 8.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "weights of experts as they are": ("qwen3_moe", {"norm_topk_prob": False}),
    "another scale of scores": ("gemma2", {"query_pre_attn_scalar": 20}),
    "soft caps that matter": (
        "gemma2",
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "no soft caps": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "a soft cap of the output alone": ("gemma3", {"final_logit_softcapping": 3.0}),
    "six layers of which one is global": (
        "gemma3",
        {"num_hidden_layers": 6, "layer_types": None},
    ),
    "a part of each head": (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                "long_factor": [2.0, 2.1, 2.2, 3.3, 3.4, 3.5],
            }
        },
    ),
    "positions as they are, with a window": (
        "phi3",
        {"rope_parameters": {"rope_type": "default"}, "sliding_window": WINDOW},
    ),
    "no positions in other layers": ("smollm3", {"no_rope_layers": [0, 1, 0, 1]}),
    "a window where there are no positions": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": WINDOW},
    ),
    "an embedding that is not the output": ("gemma3", {"tie_word_embeddings": False}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_family(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    model = saved(family, tmp_path, **changes)
    assert_same(model, tmp_path)


def test_a_context_within_the_original_one_uses_short_factors(tmp_path: Path) -> None:
    model = saved("phi3", tmp_path)
    assert_same(model, tmp_path, 30, context=32)
    text = text_of(30)
    long = logits_of(decoder_of(tmp_path, context=33), text)
    assert (long - theirs(model, text)).abs().max() > TOLERANCE


def test_a_window_of_the_trained_context_is_kept_beyond_it(tmp_path: Path) -> None:
    window = {"sliding_window": WINDOW, "max_position_embeddings": WINDOW}
    model = saved("mistral", tmp_path, **window)
    assert_same(model, tmp_path, context=LENGTH)


@pytest.mark.parametrize("family", ["llama2", "qwen3"])
@pytest.mark.parametrize("rows", [1, 4])
def test_logits_of_bfloat16_are_not_rounded_to_it(family: str, rows: int, tmp_path: Path) -> None:
    saved(family, tmp_path)
    decoder = decoder_of(tmp_path, dtype=torch.bfloat16)
    hidden = torch.randn(rows, decoder.config.width).bfloat16()
    table = decoder.output.rows(torch.arange(decoder.config.vocab_size))
    exact = hidden.double() @ table.double().T
    near = (exact > exact.amax(1, keepdim=True) - 11.0) & (exact.abs() > 2.02)
    assert (decoder.logits(hidden) - exact)[near].abs().max() < 2e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_that_of_transformers(
    family: str, tmp_path: Path
) -> None:
    model = saved(family, tmp_path)
    text = text_of(LENGTH)
    exact = theirs(model, text)
    decoder = decoder_of(tmp_path, dtype=torch.bfloat16)
    logits = logits_of(decoder, text)
    assert logits.dtype is torch.float32
    assert (logits - exact).norm() < 1.5 * (theirs(model.bfloat16(), text) - exact).norm()


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_oss", "mixtral"])
def test_texts_side_by_side_do_not_see_each_other(family: str, tmp_path: Path) -> None:
    saved(family, tmp_path)
    decoder = decoder_of(tmp_path)
    texts = [text_of(length, seed=length) for length in (5, 1, 30, WINDOW)]
    together = logits_of(decoder, *texts)
    apart = torch.cat([logits_of(decoder, text) for text in texts])
    assert (together - apart).abs().max() < 1e-4


def test_a_config_of_the_generation_before(tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling`, with "type" instead of "rope_type"."""
    model = saved("llama3", tmp_path)
    parameters = dict(model.config.rope_parameters)
    theta = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    change_json(
        tmp_path / "config.json", rope_parameters=None, rope_theta=theta, rope_scaling=parameters
    )
    assert_same(model, tmp_path)


ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "in place of the new ones": (
        "qwen2",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "without the theta of the new ones": ("qwen3", {"rope_type": "linear", "factor": 2.0}),
    "over those of full attention": ("gemma3", {"factor": 3.0}),
    "nothing": ("llama3", {}),
}


@pytest.mark.parametrize("added", ADDED)
def test_rope_scaling_beside_rope_parameters(added: str, tmp_path: Path) -> None:
    """Added by hand, as users do: it takes effect, as in transformers."""
    import transformers

    family, scaling = ADDED[added]
    saved(family, tmp_path)
    change_json(tmp_path / "config.json", rope_scaling=scaling)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    assert_same(model, tmp_path)


def test_gemma_3_of_the_generation_before(tmp_path: Path) -> None:
    model = saved("gemma3", tmp_path)
    change_json(
        tmp_path / "config.json",
        rope_parameters=None,
        layer_types=None,
        _sliding_window_pattern=None,
        sliding_window_pattern=2,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        tie_word_embeddings=None,
    )
    assert_same(model, tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_gemma_3_with_eyes(prefix: str, tmp_path: Path) -> None:
    model = saved("gemma3", tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values.pop("tie_word_embeddings")
    config = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": values,
        "vision_config": {"hidden_size": 32},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = load_file(tmp_path / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in stored.items()}
    renamed["vision_tower.vision_model.post_layernorm.weight"] = torch.ones(32)
    save_file(renamed, tmp_path / "model.safetensors")
    assert_same(model, tmp_path)


def test_names_without_a_prefix(tmp_path: Path) -> None:
    model = saved("qwen2", tmp_path)

    def change(tensors: Tensors) -> None:
        for name in [*tensors]:
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    rewrite(tmp_path, change)
    assert_same(model, tmp_path)


def test_experts_that_are_stored_stacked(tmp_path: Path) -> None:
    model = saved("qwen3_moe", tmp_path)
    save_file(
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        tmp_path / "model.safetensors",
    )
    assert "model.layers.0.mlp.experts.gate_up_proj" in model.state_dict()
    assert_same(model, tmp_path)
