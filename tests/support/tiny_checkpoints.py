"""Tiny random checkpoints of every family, written by transformers (test extra).

Shapes are chosen so that every feature of a family is used: several heads to a key, windows shorter
than the texts of the tests, and layers of all kinds. They are also chosen so that llama.cpp reads a
GGUF of the same weights in the same way, because it takes some numbers from the family rather than
from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY = 300
WINDOW = 8
Values = dict[str, Any]

_COMMON: Values = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.05 * index for index in range(8)],
    "long_factor": [1.5 + 0.75 * index for index in range(8)],
}
# The ramp ends at dimension 3.9999: llama.cpp rounds it up to 4, whatever `truncate` is.
_GPT_OSS_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_766.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
SLIDING_FIRST = ["sliding_attention", "full_attention"]

FAMILIES: Mapping[str, tuple[str, Values]] = {
    "llama2": ("Llama", {}),
    "llama3": ("Llama", {"rope_parameters": _LLAMA3, "head_dim": 32}),
    "smollm2": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True, "rope_parameters": _YARN}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "gemma2": (
        "Gemma2",
        {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": WINDOW},
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": WINDOW,
            "layer_types": SLIDING_FIRST * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": (
        "Phi3",
        {
            "original_max_position_embeddings": 32,
            "rope_parameters": _LONGROPE,
            "sliding_window": None,
        },
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
    "gpt_oss": (
        "GptOss",
        {
            "intermediate_size": 64,
            "head_dim": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": SLIDING_FIRST,
            "rope_parameters": _GPT_OSS_YARN,
        },
    ),
}
"""By family: the prefix of transformers' classes, and the differences from the other families."""


def tiny_checkpoint(family: str, folder: Path, **changes: Any) -> Path:
    """Writes model.safetensors (float32) and config.json into `folder`, and returns it.

    Args:
        family: a key of `FAMILIES`.
        changes: of the values of its config.
    """
    tiny_model(family, **changes).save_pretrained(folder)
    return folder


def tiny_model(family: str, **changes: Any) -> PreTrainedModel:
    """The same model in memory, with transformers' "eager" attention."""
    import transformers

    kind, values = FAMILIES[family]
    config_class = getattr(transformers, f"{kind}Config")
    model_class = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")
    config = config_class(**_COMMON | values | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(len(family))
    model: PreTrainedModel = model_class(config).float().eval()
    _scatter(model.named_parameters)
    return model


def _scatter(parameters: Callable[[], Any]) -> None:
    """Set weights for which every part of a layer matters: matrices that keep the scale of their
    inputs, and norms and biases that are not identities.
    """
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight") or "layernorm" in name:
                weight += 0.2 * noise
            elif name.endswith("embed_tokens.weight"):
                weight.copy_(noise)
            elif weight.dim() == 1 or name.endswith("bias"):
                weight.copy_(0.3 * noise)
            else:
                weight.copy_(noise * 1.5 / weight.shape[-1] ** 0.5)
