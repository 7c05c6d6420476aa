"""GGUF files: the structure check that comes before C++ sees one, and reading of metadata.

Pure Python, standard library only. No tensor data is read and no model is run here.
`read_header` reads a file whose bytes are not trusted; `check` adds what a model must say to be
loaded.
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
