"""One spelling for the names of safetensors files, whichever class of model wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
"""The output matrix; both as `canonical` spells them."""

_SPELLINGS = (
    # A model with eyes keeps its text part inside: Gemma 3 before and after transformers 4.52.
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    # The bare model, without a head: embedding models of these families.
    ("layers.", "model.layers."),
    ("embed_tokens.", "model.embed_tokens."),
    ("norm.", "model.norm."),
)
_OTHER_QUANTIZATION = re.compile(
    r"\.(qweight|qzeros|scales|g_idx|weight_packed|weight_scale|weight_scale_inv|weight_zero_point"
    r"|input_scale|scale|absmax|quant_map|quant_state\.\w+|SCB|weight_global_scale|codebooks"
    r"|trellis|lora_[AB]\.weight)$|_scale_inv$"
)
_NEEDLESS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias)$"
    r"|^(model\.)?(vision_tower|vision_model|visual|vision_embed_tokens|multi_modal_projector"
    r"|mm_projector|audio_tower|embed_vision|embed_audio|mtp)\."
)


def is_of_another_quantization(name: str) -> bool:
    """Whether the weights beside a tensor mean something else without it: an adapter, or a format
    that the config does not name.
    """
    return _OTHER_QUANTIZATION.search(name) is not None


def is_needless(name: str) -> bool:
    """Whether a tensor of that canonical name is known, and no text model needs it: rotary
    frequencies, which the config says too; eyes and ears; heads that guess further tokens.
    """
    return _NEEDLESS.search(name) is not None


def canonical(name: str) -> str:
    """`name` as a text model with a head would have it; names of other parts stay."""
    for found, ours in _SPELLINGS:
        if name.startswith(found):
            return ours + name.removeprefix(found)
    return name


def by_canonical_name(names: Iterable[str]) -> dict[str, str]:
    """The stored `names`, by their canonical spelling."""
    return {canonical(name): name for name in names}
