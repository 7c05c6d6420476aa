"""How quantized matrices are stored: the tensors with their types and shapes. Without torch;
`encode.py` makes the tensors, and `hearth.quant.checkpoints` reads them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from hearth.quant.checkpoints.modules import STATE
from hearth.quant.checkpoints.scheme import Layout, Scheme
from hearth.quant.gguf.errors import BadRecipe, CannotQuantize

if TYPE_CHECKING:
    from hearth.quant.rounding.grid import Grid

Kind = Literal["int", "fp8", "e5m2", "nf4"]
"""Integers, 8-bit floats with three or with two fraction bits, and 4-bit floats."""
Scope = Literal["tensor", "row", "group", "block"]
Leaf = tuple[str, str, tuple[int, ...]]
"""A tensor of a matrix: the suffix of its name, its safetensors type, its shape."""

FP8_BLOCK: Final = 128
"""Outputs and inputs of a square block."""
_GROUPS: Final = (256, 128, 64, 32, 16, 8)
_LABELS: Final = {
    ("int", 4): "INT4",
    ("int", 6): "INT6",
    ("int", 8): "INT8",
    ("fp8", 8): "FP8",
    ("e5m2", 8): "FP8_E5M2",
    ("nf4", 4): "NF4",
}
_WEIGHT_KINDS: Final = {"int": "I8", "fp8": "F8_E4M3", "e5m2": "F8_E5M2"}
"""Safetensors types of the weights in the layout "scaled"."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The numbers that weights are rounded to, and the tensors that hold the result.

    Raises:
        BadRecipe: the layout cannot hold such numbers.
    """

    layout: Layout
    kind: Kind
    bits: int
    scope: Scope
    group: int | None
    """Inputs that share a scale, for the scopes "group" and "block"."""
    symmetric: bool = True
    has_order: bool = False
    """For GPTQ: inputs may be in any group. compressed-tensors supported this until 0.20."""
    has_wide_scales: bool = False
    """Scales must be float32, since not all of them are representable in float16."""

    def __post_init__(self) -> None:
        bits = {"gptq": (4, 8), "packed": (4, 6, 8), "awq": (4,), "scaled": (8,), "nf4": (4,)}
        is_possible = (
            (self.kind, self.bits) in _LABELS
            and self.bits in bits[self.layout]
            and (self.kind == "nf4") == (self.layout == "nf4")
            and (self.kind == "int" or self.layout in ("scaled", "nf4"))
            and (self.scope != "tensor" or self.layout == "scaled")
            and (self.kind != "nf4" or self.scope == "group")
        )
        if not is_possible:
            raise BadRecipe(
                f"{self.label} with a scale for each {self.scope} cannot be stored as "
                f"{LAYOUT_NAMES[self.layout]}.",
                "Choose other bits, another scope, or another format.",
            )

    @property
    def label(self) -> str:
        """The packing of the stored weight, such as "INT4" or "FP8"."""
        return _LABELS.get((self.kind, self.bits), f"{self.kind.upper()}{self.bits}")

    @property
    def grid(self) -> Grid:
        """The grid for `hearth.quant.rounding`. Raises `BadGrid`."""
        import torch

        from hearth.quant.rounding.grid import Grid

        return Grid(
            kind="fp8" if self.kind == "e5m2" else self.kind,
            bits=self.bits,
            group=self.group,
            scope=self.scope,
            symmetric=self.symmetric,
            e5m2=self.kind == "e5m2",
            scales=torch.float16 if self.scale_kind == "F16" else torch.float32,
        )

    @property
    def is_float8(self) -> bool:
        return self.kind in ("fp8", "e5m2")

    @property
    def needs_dequantizing(self) -> bool:
        """Whether transformers must dequantize the model on load: compressed-tensors (0.20) cannot
        run packed zero points or E5M2 in a model that stays packed.
        """
        return self.kind == "e5m2" or (self.layout == "packed" and not self.symmetric)

    @property
    def scale_kind(self) -> str:
        """The type of scales. float32 costs next to nothing for 8 bits with a scale for each row.
        compressed-tensors dequantizes in the type of the scales, so float16 scales would round the
        weights to float16.
        """
        is_half = self.bits == 4 and self.kind == "int" and not self.needs_dequantizing
        is_half = is_half and not self.has_wide_scales
        return "F16" if is_half or self.layout in ("gptq", "awq") else "F32"

    @property
    def scheme(self) -> Scheme:
        """The scheme that `hearth.quant.checkpoints.config` reads from the new config.json."""
        group = self.group if self.scope == "group" else None
        block = None
        if self.is_float8 and self.group is not None:
            block = (self.group if self.scope == "block" else 1, self.group)
            group = None
        return Scheme(self.layout, self.bits, group or 0, is_ordered=self.has_order, block=block)

    def check(self, name: str, outputs: int, inputs: int) -> None:
        """Raises `CannotQuantize`, naming the matrix, for a shape that cannot be stored."""
        words = 32 // self.bits
        problem, hint = "", "Choose another format or method."
        if inputs % 2 and not self.is_float8:
            problem = "an odd number of inputs"
        elif inputs * self.bits % 8:
            problem = f"{inputs:,} inputs, whose {self.bits} bits do not fill whole bytes"
        elif self.scope == "group" and self.group and inputs % self.group:
            fitting = next((one for one in _GROUPS if inputs % one == 0), None)
            problem = f"{inputs:,} inputs, no multiple of the group of {self.group}"
            hint = f"Choose --group {fitting or -1}."
        elif self.layout in ("gptq", "awq") and outputs % words:
            problem = f"{outputs:,} outputs, no multiple of {words}"
        elif self.layout == "gptq" and inputs % words:
            problem = f"{inputs:,} inputs, no multiple of {words}"
        if problem:
            raise CannotQuantize(
                f"{name} has {problem}: it cannot be stored as {self.label} in the format of "
                f"{LAYOUT_NAMES[self.layout]}.",
                hint,
                tensor=name,
            )

    def leaves(self, outputs: int, inputs: int) -> list[Leaf]:
        """The tensors of a matrix [outputs, inputs], those with the widest elements first."""
        bits = self.bits
        groups = -(-inputs // self.group) if self.group else 1
        words = -(-inputs * bits // 32)
        match self.layout:
            case "gptq":
                return [
                    (".qweight", "I32", (words, outputs)),
                    (".qzeros", "I32", (groups, outputs * bits // 32)),
                    (".g_idx", "I32", (inputs,)),
                    (".scales", "F16", (groups, outputs)),
                ]
            case "awq":
                return [
                    (".qweight", "I32", (inputs, outputs // 8)),
                    (".qzeros", "I32", (groups, outputs // 8)),
                    (".scales", "F16", (groups, outputs)),
                ]
            case "packed":
                zeros: Leaf = (".weight_zero_point", "I32", (-(-outputs * bits // 32), groups))
                return [
                    (".weight_shape", "I64", (2,)),
                    (".weight_packed", "I32", (outputs, words)),
                    *([] if self.symmetric else [zeros]),
                    (".weight_scale", self.scale_kind, (outputs, groups)),
                ]
            case "scaled":
                return self._scaled(outputs, inputs, groups)
            case "nf4":
                scales = outputs * inputs // self._nf4_block
                return [
                    (".weight.absmax", "F32", (scales,)),
                    (".weight.quant_map", "F32", (16,)),
                    (".weight", "U8", (outputs * inputs // 2, 1)),
                    (STATE, "U8", (len(self.nf4_state(outputs, inputs)),)),
                ]

    def _scaled(self, outputs: int, inputs: int, groups: int) -> list[Leaf]:
        shape: tuple[int, ...] = (outputs, groups)
        if self.scope == "tensor":
            shape = (1,)
        elif self.scope == "block":
            shape = (-(-outputs // FP8_BLOCK), groups)
        zeros = [] if self.symmetric else [(".weight_zero_point", "I8", shape)]
        return [
            (".weight_scale", self.scale_kind, shape),
            (".weight", _WEIGHT_KINDS[self.kind], (outputs, inputs)),
            *zeros,
        ]

    @property
    def _nf4_block(self) -> int:
        assert self.group is not None
        return self.group

    def nf4_state(self, outputs: int, inputs: int) -> bytes:
        """The metadata that bitsandbytes stores for a matrix, as JSON."""
        state: dict[str, Any] = {
            "quant_type": "nf4",
            "blocksize": self._nf4_block,
            "dtype": "bfloat16",
            "shape": [outputs, inputs],
        }
        return json.dumps(state).encode()


LAYOUT_NAMES: Final[dict[Layout, str]] = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "packed": "compressed-tensors (pack-quantized)",
    "scaled": "compressed-tensors",
    "nf4": "bitsandbytes NF4",
}
