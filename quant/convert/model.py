"""The GGUF metadata of a model, from its `config.json`. Features that GGUF cannot express or that
llama.cpp does not support are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hearth.quant.checkpoints.config import read_checkpoint, refuse_quantized
from hearth.quant.checkpoints.modules import resolve
from hearth.quant.checkpoints.scheme import Checkpoint
from hearth.quant.convert.ropes import check_ropes, rope_values
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import ModelConfig, Rope, RopeKind
from hearth.quant.families.family import Family
from hearth.quant.families.gemma import gemma3_windows
from hearth.quant.families.ropes import rope_section
from hearth.quant.families.shapes import all_but_every, alternating_windows
from hearth.quant.families.table import family_of_hf
from hearth.quant.hf_defaults import GEMMA2_CAPS, GEMMA_LAYERS_OF_27B
from hearth.quant.hf_names import HEAD
from hearth.quant.json_fields import Fields
from hearth.quant.safetensors_header import SafetensorsHeader
from hearth.quant.stored import StoredTensor
from hearth.quant.tied_weights import as_stored

Value = int | float | bool | str | tuple[bool, ...]
"""An int is stored as U32, a float as F32."""
_ALWAYS_TIED = "gemma2"
"""llama.cpp uses the embedding as the output matrix of this family, whatever the file has."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model in terms of GGUF."""

    architecture: str
    family: Family
    config: ModelConfig
    values: Mapping[str, Value]
    """Keys without the prefix of the architecture."""
    factors: Mapping[str, tuple[float, ...]]
    """Tensors of rotary factors, which follow from the config."""
    stored: Mapping[str, StoredTensor]
    """The tensors of the folder, see `resolve`."""
    checkpoint: Checkpoint | None
    """How matrices are packed; None if they are not."""


@dataclass(frozen=True, slots=True)
class _Words:
    """The features that GGUF can express and llama.cpp supports for a family."""

    scalings: tuple[RopeKind, ...]
    """Kinds of rotary scaling."""
    is_partial: bool = False
    """Heads may be rotated partly."""
    has_biases: bool = False
    """Attention may have biases, according to the config."""
    is_square: bool = False
    """The heads together must be as wide as the embedding."""
    window: Literal["", "none", "one", "pattern"] = ""
    """How GGUF expresses windows: not at all ("none"), one window for all layers ("one"), or a
    pattern of layers ("pattern"); "" if a `config.json` of the family has no windows.
    """


_LLAMA = _Words(("linear", "llama3", "yarn"), has_biases=True)
_QWEN = _Words(("linear", "yarn"), window="none")
_GEMMA = _Words(("linear",), window="pattern")
_WORDS: Mapping[str, _Words] = {
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, window="one"),
    "mixtral": replace(_LLAMA, window="one"),
    "qwen2": replace(_QWEN, has_biases=True, is_square=True),
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "smollm3": _QWEN,
    "phi3": _Words(("longrope",), is_partial=True, is_square=True, window="one"),
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gpt_oss": _Words(("yarn",), has_biases=True, window="pattern"),
}
"""By the name of the family."""


def describe(
    fields: Fields, headers: Sequence[SafetensorsHeader], *, keeps_packed: bool = False
) -> Model:
    """The model of a `config.json` in terms of GGUF.

    Args:
        headers: of the folder's files; a stored output matrix that is not the embedding overrides
            the config.
        keeps_packed: matrices may be packed; `hearth.quant.folders.convert` checks how.

    Raises:
        UnsupportedModel: the family is unknown, the class does not generate text, or GGUF cannot
            express or llama.cpp not run the variant.
        CorruptFile: a value is invalid.
    """
    family = family_of_hf(fields)
    checkpoint = read_checkpoint(fields)
    if not keeps_packed:
        refuse_quantized(fields.path, checkpoint)
    fields = family.complete(fields)
    _check_fields(family.name, fields)
    config = family.from_complete(fields)
    _check_config(family.name, fields, config)
    stored = resolve(headers, checkpoint)
    was_tied, config = config.tied, as_stored(config, headers, stored)
    if was_tied and not config.tied and family.name == _ALWAYS_TIED:
        raise UnsupportedModel(
            f"The folder has a tensor '{HEAD}' that differs from the embedding, though config.json "
            f"says that they are one; llama.cpp has no place for it in {_ALWAYS_TIED} models.",
            "Run the folder with --backend native.",
            field=HEAD,
            architecture=_ALWAYS_TIED,
        )
    sliding: tuple[bool, ...] = (False,) * len(config.layers)
    if _WORDS[family.name].window == "pattern":
        windows = gemma3_windows if family.name == "gemma3" else alternating_windows
        sliding = windows(fields, len(config.layers))
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    wide = [layer.rope for layer, slides in zip(config.layers, sliding, strict=True) if not slides]
    rope = next((one for one in wide if one is not None), ropes[0])
    rotary, factors = rope_values(rope)
    more = _values_of_family(family.name, fields, config, sliding)
    values: dict[str, Value] = {**_shape_values(config), **rotary, **more}
    architecture = family.architectures[0] if family.architectures else "llama"
    return Model(architecture, family, config, values, factors, stored, checkpoint)


def _check_fields(name: str, fields: Fields) -> None:
    """Raises `UnsupportedModel` for features that GGUF cannot express or llama.cpp not run."""
    words = _WORDS[name]
    check_ropes(
        fields,
        "full_attention" if name == "gemma3" else "",
        words.scalings,
        is_partial=words.is_partial,
        truncates=name != "gpt_oss",
    )
    if words.window == "none" and fields.flag("use_sliding_window", False):
        raise fields.unsupported("use_sliding_window", "false: GGUF has no word for such layers")
    has_biases, is_tied = (
        fields.flag(key, False) for key in ("attention_bias", "tie_word_embeddings")
    )
    if has_biases and not words.has_biases:
        raise fields.unsupported("attention_bias", "attention without biases")
    if name == "gpt_oss" and not has_biases:
        raise fields.unsupported("attention_bias", "attention with biases")
    if name == "gpt_oss" and is_tied:
        raise fields.unsupported("tie_word_embeddings", "false")
    if name == "qwen3_moe" and not fields.flag("norm_topk_prob", False):
        raise fields.unsupported("norm_topk_prob", "true")
    if name == "gemma3" and fields.has("attn_logit_softcapping"):
        raise fields.unsupported("attn_logit_softcapping", "none")
    if name == "gemma2":
        if not is_tied:
            raise fields.unsupported("tie_word_embeddings", "true")
        for key in GEMMA2_CAPS:
            if not fields.has(key):
                raise fields.unsupported(key, "a number: llama.cpp always caps")


def _check_config(name: str, fields: Fields, config: ModelConfig) -> None:
    """Like `_check_fields`, for features that follow from several values."""
    if _WORDS[name].is_square and config.heads * config.head_dim != config.width:
        raise fields.unsupported(
            "head_dim", f"heads that together have the width of {config.width:,}"
        )
    places = enumerate(config.layers, start=1)
    if name == "smollm3" and any(
        (layer.rope is None) != (place % 4 == 0) for place, layer in places
    ):
        # llama.cpp always leaves out positions in every fourth layer.
        key = "no_rope_layers" if fields.has("no_rope_layers") else "no_rope_layer_interval"
        raise fields.unsupported(key, "no positions in every fourth layer")


def _shape_values(config: ModelConfig) -> dict[str, Value]:
    """The keys that every architecture has."""
    return {
        "vocab_size": config.vocab_size,
        "context_length": config.context,
        "embedding_length": config.width,
        "block_count": len(config.layers),
        "feed_forward_length": config.feed_forward,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }


def _values_of_family(
    name: str, fields: Fields, config: ModelConfig, sliding: tuple[bool, ...]
) -> dict[str, Value]:
    values: dict[str, Value] = {}
    if config.experts is not None:
        values["expert_count"] = config.experts.count
        values["expert_used_count"] = config.experts.active
        if name != "mixtral":
            values["expert_feed_forward_length"] = config.experts.width
    window = fields.integer("sliding_window", 0, least=0)
    words = _WORDS[name]
    if words.window == "one" and window:  # llama.cpp ignores it.
        values["attention.sliding_window"] = window
    if words is _GEMMA:
        values |= {key: fields.positive(key) for key in GEMMA2_CAPS if fields.has(key)}
        values |= _scale(name, fields, config)
    if name == "gemma3":
        if not any(sliding):
            return values
        if not window:
            raise fields.wrong("sliding_window", "must be given, as layers have windows")
        values["rope.freq_base_swa"] = _local_theta(fields, config.layers[sliding.index(True)].rope)
    if words.window == "pattern":
        values |= _windows(window, sliding, config.context)
    return values


def _scale(name: str, fields: Fields, config: ModelConfig) -> dict[str, Value]:
    """The key for the factor of attention scores, if that differs from llama.cpp's: the factor
    follows from the head size, or for the 27B model, which is recognized by its number of layers,
    from the width. The native runner reads the key; llama.cpp does not.
    """
    by_width = len(config.layers) == GEMMA_LAYERS_OF_27B[name]
    usual = config.width // config.heads if by_width else config.head_dim
    wanted = fields.positive("query_pre_attn_scalar")
    return {} if wanted == usual else {"attention.scale": wanted**-0.5}


def _local_theta(fields: Fields, rope: Rope | None) -> float:
    """The rotary base of the layers with windows, whose positions llama.cpp never scales."""
    assert rope is not None
    if rope.scaling is not None:
        raise rope_section(fields, "sliding_attention").unsupported("rope_type", "default")
    return rope.theta


def _windows(window: int, sliding: tuple[bool, ...], context: int) -> dict[str, Value]:
    """The keys for windows in the layers that are `sliding`. If there are none, the window covers
    the whole context, since llama.cpp uses a default window without the key.
    """
    if not window or not any(sliding):
        return {"attention.sliding_window": context}
    pattern: Value = sliding
    for period in range(2, len(sliding) + 1):  # A number n for "all but every n-th".
        if sliding == all_but_every(period, len(sliding)):
            pattern = period
            break
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}
