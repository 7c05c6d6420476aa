"""Reads the numbers of a small tensor without torch, as the host and the front ends need them."""

from __future__ import annotations

import struct
from typing import Final

from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.types import TensorType

_FORMATS: Final = {TensorType.F32: "f", TensorType.F16: "e", TensorType.F64: "d"}
"""`struct` codes; bfloat16 is the upper half of a float32."""
_BF16_BYTES: Final = 2


def find_tensor(file: GgufFile, name: str) -> TensorInfo | None:
    """The tensor called `name` in the file or its other shards; None if there is none."""
    return next((tensor for tensor in file.all_tensors if tensor.name == name), None)


def read_numbers(file: GgufFile, name: str) -> tuple[float, ...]:
    """All numbers of the tensor called `name`, which must exist.

    Raises:
        CorruptFile: its type is not F32, F16, BF16 or F64, or the file has become shorter.
        OSError: the file cannot be read.
    """
    part, tensor = next(
        (part, tensor)
        for part in (file, *file.shards)
        for tensor in part.tensors
        if tensor.name == name
    )
    if tensor.type not in _FORMATS and tensor.type is not TensorType.BF16:
        kind = f"is of type {tensor.type.name}, not of plain numbers"
        raise corrupt(part.path, f"tensor {quoted(name)}", kind)
    with part.path.open("rb") as stream:
        stream.seek(part.data_offset + tensor.offset)
        data = stream.read(tensor.nbytes)
    if len(data) != tensor.nbytes:
        raise corrupt(part.path, f"tensor {quoted(name)}", "is not all there any more")
    if tensor.type is TensorType.BF16:
        data = b"".join(
            bytes(_BF16_BYTES) + data[start : start + _BF16_BYTES]
            for start in range(0, len(data), _BF16_BYTES)
        )
        return struct.unpack(f"<{tensor.elements}f", data)
    return struct.unpack(f"<{tensor.elements}{_FORMATS[tensor.type]}", data)
