"""RoPE scaling that a user sets in place of the scaling in a model's file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.quant.families.config import ModelConfig, Rope, RopeScaling
from hearth.quant.families.ropes import yarn_mscale

RopeScalingName = Literal["none", "linear", "yarn"]
_FIXED: Final = ("llama3", "longrope")
"""Scalings whose list of numbers belongs to the weights, so that they cannot be replaced."""

SHARED_WITH_WINDOWS: Final = "its layers with a sliding window share them with the others"


@dataclass(frozen=True, slots=True)
class RopeChange:
    """The user's settings; None: as in the file."""

    scaling: RopeScalingName | None = None
    factor: float | None = None
    """Factor by which the original context is extended."""
    base: float | None = None
    """Theta, from which the frequencies are computed."""
    original_context: int | None = None
    """For YaRN: tokens that the model was trained for before any scaling."""

    def __bool__(self) -> bool:
        return self != RopeChange()

    def applied(self, rope: Rope, trained: int) -> tuple[Rope, int]:
        """The changed rotary positions of a model, and the most tokens of its context.

        Args:
            rope: as in the file.
            trained: tokens that the model was trained for, with the file's own scaling.

        Raises:
            InvalidParameter: a value is missing, or has no effect.
            UnsupportedParameter: the model's scaling cannot be replaced.
        """
        own = rope.scaling
        rope = replace(rope, theta=self.base or rope.theta)
        if self.scaling is None and self.factor is None and self.original_context is None:
            return rope, trained
        if own is not None and own.kind in _FIXED:
            raise unsupported_rope(f"its frequencies are scaled by numbers of its own ({own.kind})")
        kind = self.scaling or (own.kind if own is not None else "linear")
        if kind != "yarn" and self.original_context is not None:
            raise InvalidParameter(
                "rope_original_context",
                f"rope_original_context has no effect with rope_scaling {kind}.",
                "Set rope_scaling to yarn (--rope-scaling yarn), or leave it out.",
            )
        before = trained
        if own is not None:
            is_yarn = own.kind == "yarn" and own.original_context
            before = own.original_context if is_yarn else round(trained / own.factor)
        if kind == "none":
            if self.factor is not None:
                raise InvalidParameter(
                    "rope_factor",
                    f"rope_factor {self.factor:g} has no effect with rope_scaling none.",
                    "Set rope_scaling to linear or yarn, or leave the factor out.",
                )
            return replace(rope, scaling=None), before
        factor = self.factor or (own.factor if own is not None else None)
        if factor is None:
            raise InvalidParameter(
                "rope_factor",
                f"rope_scaling {kind} needs a factor, and the model has none of its own.",
                "Set rope_factor, e.g. --rope-factor 4 for four times the context.",
            )
        if kind == "linear":
            scaling = RopeScaling("linear", factor=factor)
            return replace(rope, scaling=scaling), round(before * factor)
        original = self.original_context or before
        scaling = own if own is not None and own.kind == "yarn" else RopeScaling("yarn")
        # The file's factor of cosine and sine beyond YaRN's own formula is kept.
        more = scaling.attention_factor / yarn_mscale(scaling.factor)
        scaling = replace(
            scaling,
            factor=factor,
            original_context=original,
            attention_factor=more * yarn_mscale(factor),
        )
        return replace(rope, scaling=scaling), round(original * factor)

    def applied_to(self, config: ModelConfig) -> ModelConfig:
        """The changed `config`. Layers with a sliding window keep their own positions.

        Raises:
            InvalidParameter, UnsupportedParameter: as `applied`. UnsupportedParameter also if
                layers with a window share the positions of the others, or if the layers without a
                window do not all have the same rotary positions.
        """
        if not self:
            return config
        ropes = {layer.rope for layer in config.layers if layer.rope and layer.window is None}
        windowed = {layer.rope for layer in config.layers if layer.window is not None}
        if len(ropes) != 1 or ropes & windowed:
            raise unsupported_rope(SHARED_WITH_WINDOWS)
        [own] = ropes
        rope, context = self.applied(own, config.context)
        layers = tuple(
            replace(layer, rope=rope) if layer.rope == own else layer for layer in config.layers
        )
        return replace(config, layers=layers, context=context)


def unsupported_rope(reason: str) -> UnsupportedParameter:
    """The error for a model whose rotary positions cannot be changed, for `reason`."""
    return UnsupportedParameter(
        "rope_scaling",
        f"The rotary positions of this model cannot be changed: {reason}.",
        "Leave the settings rope_scaling, rope_factor, rope_base and rope_original_context out.",
    )
