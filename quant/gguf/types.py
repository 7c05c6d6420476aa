"""The numbers of the GGUF format: value types, and tensor types with their blocks.

Source: ggml's `gguf.h`, `ggml.h` and `llama.h`, as of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from enum import IntEnum

from hearth.kernels.block_sizes import BLOCKS


class ValueType(IntEnum):
    """Type of a metadata value."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


NUMBER_FORMATS: dict[ValueType, str] = {
    ValueType.U8: "B",
    ValueType.I8: "b",
    ValueType.U16: "H",
    ValueType.I16: "h",
    ValueType.U32: "I",
    ValueType.I32: "i",
    ValueType.F32: "f",
    ValueType.BOOL: "B",
    ValueType.U64: "Q",
    ValueType.I64: "q",
    ValueType.F64: "d",
}
"""`struct` and `array` code of each value type of fixed size."""


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class TensorType(IntEnum):
    """Type of a tensor's elements. The missing numbers were removed from ggml."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    @property
    def block_elements(self) -> int:
        """Elements in one block; the length of a row is a multiple of it."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]

    def nbytes(self, elements: int) -> int:
        """Bytes of `elements` elements, a multiple of the block."""
        return elements // self.block_elements * self.block_bytes


_BLOCKS = {TensorType[name]: size for name, size in BLOCKS.items()} | {
    TensorType.Q8_1: (32, 36),
    TensorType.Q8_K: (256, 292),
    TensorType.I8: (1, 1),
    TensorType.I16: (1, 2),
    TensorType.I32: (1, 4),
    TensorType.I64: (1, 8),
    TensorType.F64: (1, 8),
    TensorType.Q1_0: (128, 18),
    TensorType.Q2_0: (64, 18),
}

NOT_WEIGHTS = frozenset(
    {
        TensorType.I8,
        TensorType.I16,
        TensorType.I32,
        TensorType.I64,
        TensorType.F64,
        TensorType.Q8_1,
        TensorType.Q8_K,
    }
)
"""Types that ggml cannot multiply as a weight matrix: integers, doubles and activation formats."""
