"""The interface to libggml's quantizer: ctypes bindings to the `ggml-base` library of
llama-cpp-python, and to `ggml-cpu`, which converts numbers with vector instructions.

llama_cpp itself is not imported. Input that would make ggml abort the process (a row that is not a
multiple of the block, a missing importance matrix, weights that are not finite) is rejected here
before the call.
Source: `ggml_quantize_chunk` and `ggml_validate_row_data` in ggml's `ggml.c`, `ggml-quants.c`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.quant.gguf.errors import CannotQuantize, GgmlUnavailable, NeedsImportanceMatrix
from hearth.quant.gguf.mixes import NEEDS_MATRIX
from hearth.quant.gguf.types import NOT_WEIGHTS, TensorType

Floats = NDArray[np.float32]

_REINSTALL = "Install it as docs/install.md says, or run `hearth doctor`."
_Pointer = ctypes.c_void_p
_CONVERTS = (_Pointer, _Pointer, ctypes.c_int64)
"""Arguments of row conversion functions: source, destination, number of elements."""


class Ggml:
    """The loaded quantizer. All methods may be called from several threads, and release the
    interpreter's lock while ggml works.

    Raises:
        GgmlUnavailable: llama-cpp-python is not installed, or its library does not load.
    """

    def __init__(self) -> None:
        self.path = library_path()
        try:
            self._library = ctypes.CDLL(str(self.path))
            self._quantize = self._function(
                "ggml_quantize_chunk",
                ctypes.c_size_t,
                (ctypes.c_int, _Pointer, _Pointer, *[ctypes.c_int64] * 3, _Pointer),
            )
            self._initialize = self._function("ggml_quantize_init", None, (ctypes.c_int,))
            self._is_valid = self._function(
                "ggml_validate_row_data",
                ctypes.c_bool,
                (ctypes.c_int, _Pointer, ctypes.c_size_t),
            )
            version = self._function("ggml_version", ctypes.c_char_p, ())
            self._widen = {
                kind: self._widening(name)
                for kind, name in ((TensorType.F16, "fp16"), (TensorType.BF16, "bf16"))
            }
        except (OSError, AttributeError) as error:
            raise GgmlUnavailable(
                f"{self.path.name} cannot be used: {error}.", _REINSTALL
            ) from None
        self.version = version().decode()
        """Version of ggml, such as "0.9.4"."""

    def prepare(self, kind: TensorType) -> None:
        """Build the tables that `kind` needs, before threads use them."""
        self._initialize(int(kind))

    def quantize_chunk(
        self, kind: TensorType, rows: Floats, importance: Floats | None = None
    ) -> NDArray[np.uint8]:
        """Quantize `rows` to blocks of `kind`.

        Args:
            rows: [n, k] float32, contiguous and finite; k is a multiple of the type's block.
            importance: [k] float32, not negative: how much the error of each column matters.

        Returns:
            [n * k / block elements * block bytes] uint8.

        Raises:
            CannotQuantize: `rows` do not fit the type, or hold NaN or infinity.
            NeedsImportanceMatrix: the type cannot be made without `importance`.
        """
        count, length = rows.shape
        _check_type(kind, length)
        if kind in NEEDS_MATRIX and importance is None:
            raise NeedsImportanceMatrix(f"{kind.name} cannot be made without an importance matrix.")
        if importance is not None and importance.shape != (length,):
            raise CannotQuantize(
                f"The importance of {importance.size:,} columns is given for rows of {length:,}."
            )
        source = np.ascontiguousarray(rows, dtype=np.float32)
        if not np.isfinite(source).all():
            raise CannotQuantize(
                "The weights hold what is no finite number.",
                "The source is damaged, or was converted badly: convert or download it again.",
            )
        weights = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
        size = kind.nbytes(count * length)
        packed = np.empty(size, dtype=np.uint8)
        written = self._quantize(
            int(kind),
            source.ctypes.data,
            packed.ctypes.data,
            0,
            count,
            length,
            None if weights is None else weights.ctypes.data,
        )
        if written != size or not self.is_valid(kind, packed):
            raise CannotQuantize(
                f"ggml packed {count:,} rows of {length:,} weights into {kind.name} wrongly.",
                "Choose another type.",
            )
        return packed

    def is_valid(self, kind: TensorType, data: NDArray[np.uint8]) -> bool:
        """Whether `data` is whole blocks of `kind` without NaN or infinity in scales or numbers."""
        if data.size % kind.block_bytes:
            return False
        return bool(self._is_valid(int(kind), data.ctypes.data, data.size))

    def to_float(self, kind: TensorType, data: NDArray[np.uint8], length: int) -> Floats:
        """[n, length] float32: the weights in `data`, which is n rows of `length` elements of
        `kind`.

        Raises:
            CannotQuantize: `kind` is not a type for weights.
        """
        if kind is TensorType.F32:
            return data.view("<f4").astype(np.float32, copy=False).reshape(-1, length)
        if kind in NOT_WEIGHTS:
            raise CannotQuantize(f"Elements of type {kind.name} are no weights.")
        unpack = self._widen.get(kind)
        if unpack is None:
            name = kind.name.lower()
            if name.endswith("_k"):
                name = name[:-1] + "K"
            unpack = self._function(f"dequantize_row_{name}", None, _CONVERTS)
        elements = data.size // kind.block_bytes * kind.block_elements
        out = np.empty(elements, dtype=np.float32)
        unpack(data.ctypes.data, out.ctypes.data, elements)
        return out.reshape(-1, length)

    def _widening(self, name: str) -> Any:
        """The function that converts a row of "fp16" or "bf16" to float32: eight or sixteen numbers
        at a time if `ggml-cpu` is found (builds for several processors name it otherwise).
        """
        try:
            fast = ctypes.CDLL(str(self.path.with_name(self.path.name.replace("base", "cpu"))))
            return self._function(f"ggml_cpu_{name}_to_fp32", None, _CONVERTS, fast)
        except (OSError, AttributeError):
            return self._function(f"ggml_{name}_to_fp32_row", None, _CONVERTS)

    def _function(
        self,
        name: str,
        result: Any,
        arguments: tuple[Any, ...],
        library: ctypes.CDLL | None = None,
    ) -> Any:
        # A new function object for each call: `CDLL.__getattr__` would share one, whose types
        # another thread might be setting.
        function = (library or self._library)[name]
        function.restype, function.argtypes = result, arguments
        return function


def library_path() -> Path:
    """Path of llama-cpp-python's `ggml-base`. Raises `GgmlUnavailable` if there is none."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise GgmlUnavailable(
            "llama-cpp-python is not installed; it packs the weights.", _REINSTALL
        )
    name = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}.get(
        sys.platform, "libggml-base.so"
    )
    for folder in spec.submodule_search_locations:
        path = Path(folder, "lib", name)
        if path.is_file():
            return path
    raise GgmlUnavailable(
        f"llama-cpp-python is installed without {name}, which packs the weights.", _REINSTALL
    )


def _check_type(kind: TensorType, length: int) -> None:
    if kind in NOT_WEIGHTS:
        raise CannotQuantize(f"{kind.name} is no type for weights.")
    if length < 1 or length % kind.block_elements:
        raise CannotQuantize(
            f"Rows of {length:,} weights cannot be packed into {kind.name}: it needs a multiple of "
            f"{kind.block_elements}."
        )
