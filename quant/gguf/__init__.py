"""GGUF files: the structure check that runs before C++ code sees a file, and reading of metadata.

`read_header` reads an untrusted file; `check` also verifies what a model must declare to be loaded.
Both are pure Python, use only the standard library and read no tensor data.
"""

from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.values import NumberArray, StringArray

__all__ = [
    "GgufFile",
    "NumberArray",
    "StringArray",
    "TensorInfo",
    "TensorType",
    "ValueType",
    "check",
    "read_header",
]
