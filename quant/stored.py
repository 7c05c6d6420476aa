"""What a file declares about a tensor."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.kernels.block_sizes import BLOCKS

ELEMENT_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
"""Bytes per element of the plain number types: all that can be read from safetensors."""
CODES = frozenset({"INT2", "INT3", "INT4", "INT6", "INT8", "FP8", "FP8_E5M2", "NF4"})
"""Codes with scales in separate tensors: the types of matrices in quantized safetensors."""
STAYS_PACKED = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4"}) | CODES
"""Types that can stay packed without a kernel: if memory is short, they are unpacked in each step.
For the types that CPU kernels multiply in packed form, see `hearth.kernels.cpu.layouts`.
"""
DEQUANTIZED = frozenset(BLOCKS) - {"F32", "F16", "BF16"}
"""Packed GGUF types that can be unpacked."""
LOADED = DEQUANTIZED | CODES | {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
"""Tensor types that the native runner can load."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, before its data is read."""

    name: str
    shape: tuple[int, ...]
    """In PyTorch's order: a matrix that maps i inputs to o outputs is (o, i)."""
    kind: str
    """The type as named by safetensors or GGUF, e.g. "BF16" or "Q4_K"."""
    nbytes: int

    @property
    def packing(self) -> str:
        """The GGUF type of a packed tensor, or one of `CODES`; "" for plain numbers."""
        return "" if self.kind in ELEMENT_BYTES else self.kind
