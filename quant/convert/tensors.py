"""The tensors of a GGUF file, and where each comes from in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from hearth.quant.convert.model import Model
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.inventory import Wanted, rows_of_parts, take_inventory
from hearth.quant.families.source import Part
from hearth.quant.gguf.faults import quoted
from hearth.quant.gguf.file import TensorInfo
from hearth.quant.gguf.quantize_types import may_change
from hearth.quant.gguf.types import TensorType
from hearth.quant.stored import StoredTensor

PACKED = {"INT4": TensorType.Q4_0, "INT8": TensorType.Q8_0}
"""The types of packed matrices in GGUF; see `hearth.quant.convert.blocks`."""
_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16} | PACKED
_KINDS = (*_TYPES, "F64")
"""Types that can be converted; F64 is stored as F32."""
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor of the GGUF file, and where it comes from."""

    name: str
    shape: tuple[int, ...]
    """In PyTorch's order."""
    type: TensorType
    """The stored type; F32 for tensors that llama.cpp needs as F32."""
    part: Part
    """The stored tensors that it is made of, by their names in the files."""
    picked: slice | None = None
    """Rows of stacked matrices or biases, along their second axis; None: all."""
    heads: int = 0
    """Number of heads whose rows have to alternate between their two rotary halves; 0: no change.
    """
    values: tuple[float, ...] = ()
    """Numbers that follow from the config instead of stored ones."""

    @property
    def rows(self) -> int:
        """Rows of one matrix of a stack."""
        return self.shape[-2] if len(self.shape) > 1 else 1

    @property
    def info(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        """Name, shape in ggml's order, type, bytes."""
        shape = self.shape[::-1]
        blocks = -(-shape[0] // self.type.block_elements)
        return self.name, shape, self.type, blocks * self.type.block_bytes * prod(shape[1:])


def find_tensors(folder: Path, model: Model) -> tuple[Found, ...]:
    """All tensors of the GGUF file of `model`, located in `folder`.

    Raises:
        CorruptFile: a tensor is missing or misshapen; `field` in `data` names it.
        UnsupportedModel: a tensor is of a type that cannot be used, or there is a tensor that such
            a model does not have: without it, the GGUF would be another model.
    """
    stored = model.stored
    inventory = take_inventory(model.family, model.config, stored, is_gguf=False, kinds=_KINDS)
    if inventory.unknown:
        names = inventory.unknown
        shown = ", ".join(quoted(name) for name in names[:_SHOWN_NAMES])
        more = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
        raise UnsupportedModel(
            f"{folder.name} has tensors that no {model.architecture} model of its config has: "
            f"{shown}{more}.",
            "A file without them would be another model. Check config.json, or take a GGUF of it.",
            field=names[0],
            path=str(folder),
        )
    tensors = [
        Found(name, (len(factors),), TensorType.F32, Part(()), values=factors)
        for name, factors in model.factors.items()
    ]
    for wanted in inventory.wanted.values():
        tensors += _made_of(wanted, model, stored)
    return tuple(tensors)


def _made_of(wanted: Wanted, model: Model, entries: Mapping[str, StoredTensor]) -> Iterator[Found]:
    """The GGUF tensors that make up the decoder's parameter `wanted`. Raises `UnsupportedModel` if
    a packed matrix would become a tensor that must hold plain numbers.
    """
    parts, stored = wanted.source.gguf[0], wanted.choice
    axis, shape = wanted.axis, wanted.shape
    rows = rows_of_parts(shape, axis, len(parts), model.config)
    for index, (part, count) in enumerate(zip(parts, rows, strict=True)):
        origin, picked = stored[min(index, len(stored) - 1)], None
        if len(stored) < len(parts):  # Gate and up are one tensor.
            picked = slice(index * count, (index + 1) * count)
            if origin.alternates:
                picked = slice(index, None, 2)
        name, own_shape = part.names[0], (*shape[:axis], count, *shape[axis + 1 :])
        kind = TensorType.F32
        if origin.is_mxfp4:
            kind = TensorType.MXFP4
        elif may_change(TensorInfo(name, own_shape[::-1], kind, 0, 0), model.architecture):
            kinds = {entries[one].kind for one in origin.names}
            kind = _TYPES.get(kinds.pop(), kind) if len(kinds) == 1 else kind
        packed = next((one for one in origin.names if entries[one].kind in PACKED), None)
        if packed is not None and kind not in PACKED.values():
            raise UnsupportedModel(
                f"Tensor '{packed}' is packed, and GGUF's {name} holds plain numbers here.",
                "Run the folder with --backend native.",
                field=packed,
            )
        yield Found(name, own_shape, kind, origin, picked, part.heads)
