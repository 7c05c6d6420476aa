"""RoPE scaling as llama.cpp's context parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.rope import SHARED_WITH_WINDOWS, RopeChange, unsupported_rope
from hearth.backends.engine.streaming import obstacle
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import Rope, RopeScaling
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.table import family_of_gguf
from hearth.quant.gguf.file import GgufFile

_TYPES: Final = {"none": 0, "linear": 1, "yarn": 2}
"""`llama_rope_scaling_type` of llama.h."""
_OWN_FACTORS: Final = {"rope_freqs.weight": "llama3", "rope_factors_long.weight": "longrope"}
_OWN_WINDOW_POSITIONS: Final = ("gemma3", "gemma3n", "gemma-embedding")
"""Families whose layers with a window have different rotary settings than the other layers."""


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Fields of `llama_context_params`; 0 stands for the file's own value."""

    scaling_type: int = -1
    freq_base: float = 0.0
    freq_scale: float = 0.0
    original_context: int = 0
    context: int = 0
    """Most tokens of the context; 0 for the file's own limit."""

    @property
    def fields(self) -> dict[str, int | float]:
        """The fields by their names in llama.h."""
        return {
            "rope_scaling_type": self.scaling_type,
            "rope_freq_base": self.freq_base,
            "rope_freq_scale": self.freq_scale,
            "yarn_orig_ctx": self.original_context,
        }


UNCHANGED: Final = RopeParams()


def rope_params(change: RopeChange, header: GgufFile) -> RopeParams:
    """The parameters for llama.cpp that make the change.

    Raises:
        InvalidParameter, UnsupportedParameter: as `RopeChange.applied`; or the model has no rotary
            positions, or llama.cpp would not change layers with a window, which share the positions
            of the other layers.
    """
    if not change:
        return UNCHANGED
    architecture = header.architecture
    if header.is_encoder or not header.kv_bytes_per_token("f16", "f16"):
        raise unsupported_rope(f"llama.cpp cannot change those of {architecture}")
    has_window = bool(header.value(f"{architecture}.attention.sliding_window", 0))
    if has_window and architecture not in _OWN_WINDOW_POSITIONS:
        raise unsupported_rope(SHARED_WITH_WINDOWS)
    own = _own_scaling(header)
    rope, context = change.applied(Rope(0.0, 0, own), header.context_length)
    scaling = rope.scaling
    if scaling is None:
        return RopeParams(_TYPES["none"], rope.theta, 1.0, context=context)
    if scaling == own:
        return RopeParams(freq_base=rope.theta)
    original = scaling.original_context if scaling.kind == "yarn" else 0
    return RopeParams(_TYPES[scaling.kind], rope.theta, 1.0 / scaling.factor, original, context)


def no_streaming(header: GgufFile, change: RopeChange) -> str:
    """Why llama.cpp cannot move keys of a model to other positions; empty if it can.

    llama.cpp rotates all keys of the pool by their change of position, which is 0 for most of them.
    It does this in layers without rotary positions too, and multiplies by YaRN's factor, which keys
    already contain (`build_rope_shift` in llama-kv-cache.cpp).
    """
    try:
        config = family_of_gguf(header.architecture).from_gguf(GgufFields(header))
    except UnsupportedModel:
        return f"it is not known whether llama.cpp moves the keys of {header.architecture} right"
    ropes = {layer.rope for layer in config.layers}
    if None in ropes:
        return "llama.cpp would rotate keys of layers that have no positions"
    is_yarn = any(rope and rope.scaling and rope.scaling.kind == "yarn" for rope in ropes)
    if change.scaling == "yarn" or (is_yarn and change.scaling is None):
        return "llama.cpp would multiply keys by YaRN's factor each time"
    return obstacle(config)


def _own_scaling(header: GgufFile) -> RopeScaling | None:
    """The file's own scaling, with the fields that `RopeChange.applied` uses."""
    for tensor in header.all_tensors:
        if tensor.name in _OWN_FACTORS:
            return RopeScaling("llama3" if tensor.name == "rope_freqs.weight" else "longrope")
    prefix = f"{header.architecture}.rope.scaling."
    kind = header.value(prefix + "type", "linear")
    factor = header.value(prefix + "factor", 0.0) or 1.0
    if kind == "none" or factor == 1.0:
        return None
    original = header.value(prefix + "original_context_length", header.context_length)
    return RopeScaling("yarn" if kind == "yarn" else "linear", factor, int(original))
