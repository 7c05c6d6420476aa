"""One spelling for tensor names in safetensors files, whichever model class wrote them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
"""The output matrix. Both names are canonical (see `canonical`)."""

_SPELLINGS = (
    # Multimodal models nest their text part: Gemma 3 before and after transformers 4.52.
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    # Bare models without a head: embedding models of these families.
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
    """Whether the other weights have another meaning without this tensor: it belongs to an adapter,
    or to a quantization format that the config does not name.
    """
    return _OTHER_QUANTIZATION.search(name) is not None


def is_needless(name: str) -> bool:
    """Whether a tensor with that canonical name is known and not needed by text models: rotary
    frequencies (the config has them too), vision and audio parts, multi-token prediction heads.
    """
    return _NEEDLESS.search(name) is not None


def canonical(name: str) -> str:
    """`name` as a text model with a head spells it; names of other parts are unchanged."""
    for prefix, ours in _SPELLINGS:
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name


def by_canonical_name(names: Iterable[str]) -> dict[str, str]:
    """The stored `names`, by their canonical spelling."""
    return {canonical(name): name for name in names}
