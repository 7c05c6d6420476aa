"""The defaults of transformers for keys that a `config.json` may leave out, for each family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hearth.quant.json_fields import Fields

LLAMA: Final[Mapping[str, object]] = {"rms_norm_eps": 1e-6}
MIXTRAL: Final[Mapping[str, object]] = {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0}
PHI3: Final[Mapping[str, object]] = {"rms_norm_eps": 1e-5}
SMOLLM3: Final[Mapping[str, object]] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
}
QWEN: Final[Mapping[str, object]] = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32_768}
QWEN3: Final[Mapping[str, object]] = {**QWEN, "head_dim": 128}
GEMMA2_CAPS: Final = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA: Final[Mapping[str, object]] = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
# Multimodal checkpoints leave out of `text_config` the values that equal the defaults of
# transformers' Gemma3TextConfig.
_GEMMA3: Final[Mapping[str, object]] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
}
GEMMA_LAYERS_OF_27B: Final = {"gemma2": 46, "gemma3": 62}
"""The number of layers of the only size (27B) that scales scores by the embedding width divided by
the number of heads."""
_GPT_OSS_ROPE: Final[Mapping[str, object]] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_GPT_OSS: Final[Mapping[str, object]] = {
    "attention_bias": True,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
}
_GPT_OSS_FIXED: Final = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def gemma2_fields(fields: Fields) -> Fields:
    """`fields` with Gemma 2's defaults for missing keys."""
    return _causal(fields.over({**_GEMMA, **GEMMA2_CAPS}))


def gemma3_fields(fields: Fields) -> Fields:
    """`fields` with Gemma 3's defaults for missing keys; of a multimodal checkpoint, those of its
    text part in `text_config`.
    """
    text = fields.section("text_config")
    if text is not None:
        outer = ("tie_word_embeddings",)
        fields = text.over({key: fields.values[key] for key in outer if fields.has(key)})
    return _causal(fields.over({**_GEMMA, **_GEMMA3}))


def _causal(fields: Fields) -> Fields:
    if fields.flag("use_bidirectional_attention", False):
        raise fields.unsupported("use_bidirectional_attention", "causal attention")
    return fields


def gpt_oss_fields(fields: Fields) -> Fields:
    """`fields` with the defaults of gpt-oss for missing keys.

    Raises:
        UnsupportedModel: the parameters of the gate differ from those of gpt-oss.
    """
    fields = fields.over(_GPT_OSS)
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        fields = fields.over({"rope_parameters": _GPT_OSS_ROPE})
    for key, value in _GPT_OSS_FIXED.items():
        if fields.number(key, value) != value:
            raise fields.unsupported(key, f"{value}")
    return fields


def require_experts(fields: Fields) -> str:
    """The key that holds a Qwen model's number of experts.

    Raises:
        UnsupportedModel: some layers have no experts.
    """
    if fields.numbers("mlp_only_layers"):
        raise fields.unsupported("mlp_only_layers", "experts in every layer")
    if fields.integer("decoder_sparse_step", 1) != 1:
        raise fields.unsupported("decoder_sparse_step", "experts in every layer")
    return "num_experts" if fields.has("num_experts") else "num_local_experts"
