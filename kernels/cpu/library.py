"""The library in C, called with the addresses of tensors. It runs on torch's own threads."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from hearth.kernels.blocks import block_of
from hearth.kernels.cpu.build_library import library_path, version
from hearth.kernels.cpu.layouts import FORCE, HALVES, LAYOUTS, SETS, Instructions, instructions
from hearth.kernels.dequantize_codes import CODE_BITS, group_of
from hearth.kernels.dequantize_codes import inputs_of as inputs_of_codes
from hearth.kernels.large_memory import LargeMemory

log = logging.getLogger(__name__)

_KINDS: Final = {name: index for index, name in enumerate((*LAYOUTS, *HALVES))}
_SCALES: Final = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
"""As `ScaleForm` in layouts.h."""
_PLAIN: Final = {torch.float16: 0, torch.float32: 1, torch.bfloat16: 3}
"""As `KvType` in tiles_api.h."""
Activations = Literal["f32", "int8", "bf16"]
"""Types in which activations are multiplied, in the order of packed.c; bf16 is for AMX."""
_RUN: Final = 32
"""Inputs that are multiplied at a time; groups must be multiples of this, see `can_pack`."""
_FAULTS: Final = {
    1: "out of memory",
    2: "an unknown type",
    3: "a shape that does not fit",
    4: "instructions that this processor does not have",
}

_POINTER = ctypes.c_void_p
_LONG = ctypes.c_int64
_INT = ctypes.c_int32


class Rows(ctypes.Structure):
    """Rows as files store them: `Rows` in packed.c."""

    _fields_ = (
        *(("rows", _POINTER), ("scales", _POINTER), ("zeros", _POINTER)),
        *(("outputs", _LONG), ("inputs", _LONG), ("kind", _INT), ("runs", _INT), ("scale", _INT)),
    )


class Part(ctypes.Structure):
    """Some packed rows of a matrix: `Part` in packed.c."""

    _fields_ = (("packed", _POINTER), ("outputs", _LONG), ("kind", _INT))


class CpuLibrary:
    """The functions of the library.

    Args:
        path: path of the built library.
        wanted: a set of instructions; default the best one.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: the library or torch lacks a function.
        ValueError: the library was built from other sources, or this CPU lacks the instructions.
    """

    def __init__(self, path: Path, wanted: Instructions | None = None) -> None:
        library = ctypes.CDLL(str(path))
        library.hearth_version.restype = ctypes.c_char_p
        if library.hearth_version().decode() != version():
            raise ValueError(f"{path} was built from other sources: run `make`")
        library.hearth_packed_bytes.restype = _LONG
        library.hearth_packed_bytes.argtypes = (ctypes.POINTER(Rows),)
        library.hearth_pack.argtypes = (ctypes.POINTER(Rows), _POINTER)
        library.hearth_multiply.argtypes = (
            *(_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER),
            *(_INT, _INT),
        )
        library.hearth_activations.argtypes = (_INT, _LONG, _INT, _INT)
        library.hearth_multiply_groups.argtypes = (
            *(_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _POINTER),
            *(_INT, _INT),
        )
        library.hearth_multiply_plain.argtypes = (
            *(_INT, _POINTER, _LONG, _LONG, _POINTER, _LONG, _INT, _POINTER, _INT),
        )
        library.hearth_rows.argtypes = (_INT, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER)
        library.hearth_use_threads.argtypes = (_POINTER, _POINTER)
        functions = _torch().torch_parallel_for, _torch().torch_get_num_threads
        library.hearth_use_threads(*(ctypes.cast(one, _POINTER) for one in functions))
        best = library.hearth_instructions()
        number = best if wanted is None else SETS.index(wanted)
        if number > best:
            raise ValueError(f"this processor has {SETS[best]}, not {wanted}")
        self._library = library
        self.set: int = number
        """Index of `instructions` in `SETS`."""
        self.multiplies_bf16 = bool(library.hearth_multiplies_bf16(number))
        self._memory = LargeMemory()

    @property
    def instructions(self) -> Instructions:
        """The set of instructions that it uses."""
        return SETS[self.set]

    def function(self, name: str, arguments: Sequence[Any]) -> Callable[..., int]:
        """Another function of the library, which returns a code for `check`."""
        function = self._library[name]
        function.argtypes = arguments
        return function

    def pack(
        self, packing: str, rows: Tensor, scales: Tensor | None = None, zeros: Tensor | None = None
    ) -> Tensor:
        """Rows in the order in which they are multiplied.

        Args:
            packing: one of `LAYOUTS` or `HALVES`.
            rows: [outputs, bytes of a row] uint8, or [outputs, inputs] of half precision, on the
                CPU.
            scales, zeros: for codes, as for `codes_into`, if `can_pack` is true.

        Returns:
            [bytes] uint8, for all functions here. No value of a row is changed.

        Raises:
            ValueError: shapes do not match.
        """
        tensors = [rows.contiguous()]
        outputs, inputs = len(rows), inputs_of(packing, rows)
        about = Rows(tensors[0].data_ptr(), None, None, outputs, inputs, _KINDS[packing], 1, 0)
        if packing in CODE_BITS:
            if scales is None or len(scales) != outputs:
                raise ValueError(f"{outputs:,} rows of {packing} without as many of scales")
            if zeros is not None and zeros.shape != scales.shape:
                raise ValueError(f"{tuple(scales.shape)} scales, {tuple(zeros.shape)} zeros")
            about.runs = -(-group_of(packing, inputs, scales.shape[1]) // _RUN)
            about.scale = _SCALES[scales.dtype]
            tensors.append(scales.contiguous())
            about.scales = tensors[-1].data_ptr()
            if zeros is not None:
                tensors.append(zeros.contiguous())
                about.zeros = tensors[-1].data_ptr()
        size = self._library.hearth_packed_bytes(ctypes.byref(about))
        packed = self._memory.empty(size)
        check(self._library.hearth_pack(ctypes.byref(about), packed.data_ptr()))
        return packed

    def multiply(
        self, parts: ctypes.Array[Part], outputs: int, x: Tensor, *, exact: bool
    ) -> Tensor:
        """x · matrixᵀ, for a matrix of `parts` stacked along its rows.

        Args:
            outputs: outputs of all parts together.
            x: [rows, inputs] float32, contiguous.
            exact: activations stay float32; otherwise they are rounded to int8 with a scale for
                each 32 of a row, except for parts of half precision and of `FRACTIONS`. With AMX,
                activations of many rows are rounded to bfloat16 instead (`activations`).

        Returns:
            [rows, outputs] float32. A row's result has the same bits for any number of rows that
            use the same activations.
        """
        y = torch.empty((len(x), outputs), dtype=torch.float32)
        code = self._library.hearth_multiply(
            *(parts, len(parts), x.shape[1], x.data_ptr(), len(x), y.data_ptr()),
            *(exact, self.set),
        )
        if code:
            check(code)
        return y

    def taken_with(self, dtype: torch.dtype, inputs: int) -> torch.dtype:
        """The dtype of activations for `multiply_plain`: bfloat16 if the CPU has instructions that
        multiply pairs of bfloat16, else float32.
        """
        is_paired = dtype == torch.bfloat16 and self.multiplies_bf16 and inputs % _RUN == 0
        return torch.bfloat16 if is_paired else torch.float32

    def multiply_plain(self, weight: Tensor, x: Tensor) -> Tensor:
        """x · weightᵀ, for few rows and a matrix that is not packed.

        Args:
            weight: [outputs, inputs] float32, float16 or bfloat16, contiguous; inputs are a
                multiple of 16.
            x: [rows, inputs] float32, or of the dtype of `taken_with`; contiguous.

        Returns:
            [rows, outputs] float32; sums are float32 too. A row's result has the same bits for any
            number of rows.
        """
        outputs, inputs = weight.shape
        y = torch.empty((len(x), outputs), dtype=torch.float32)
        code = self._library.hearth_multiply_plain(
            *(_PLAIN[weight.dtype], weight.data_ptr(), outputs, inputs),
            *(x.data_ptr(), len(x), x.dtype == torch.bfloat16, y.data_ptr(), self.set),
        )
        if code:
            check(code)
        return y

    def activations(self, packing: str, rows: int, *, exact: bool) -> Activations:
        """The type of activations in `multiply`, for `rows` rows and a matrix of `packing`."""
        number = self._library.hearth_activations(_KINDS[packing], rows, exact, self.set)
        activations: Activations = get_args(Activations)[number]
        return activations

    def multiply_groups(
        self, parts: ctypes.Array[Part], outputs: int, x: Tensor, offsets: Tensor, *, exact: bool
    ) -> Tensor:
        """As `multiply`, for groups of rows that each have their own matrix.

        Args:
            parts: the parts of all matrices, one after the other, equally many of each.
            offsets: [groups + 1] int64: the first row of each group, and the number of all rows.

        Returns:
            [rows, outputs] float32.
        """
        groups = len(offsets) - 1
        offsets = offsets.contiguous()
        y = torch.empty((len(x), outputs), dtype=torch.float32)
        check(
            self._library.hearth_multiply_groups(
                *(parts, len(parts) // groups, groups, offsets.data_ptr(), x.shape[1]),
                *(x.data_ptr(), y.data_ptr(), exact, self.set),
            )
        )
        return y

    def rows(
        self, packing: str, packed: Tensor, outputs: int, inputs: int, wanted: Tensor
    ) -> Tensor:
        """[count, inputs] float32: the rows `wanted` [count] int64 of a packed matrix.

        Raises:
            ValueError: a row number is out of range.
        """
        out = torch.empty((len(wanted), inputs), dtype=torch.float32)
        wanted = wanted.contiguous()
        check(
            self._library.hearth_rows(
                *(_KINDS[packing], packed.data_ptr(), outputs, inputs),
                *(wanted.data_ptr(), len(wanted), out.data_ptr()),
            )
        )
        return out


def parts_of(packed: Sequence[tuple[str, Tensor, int]]) -> ctypes.Array[Part]:
    """The parts for `CpuLibrary.multiply`, from (packing, packed rows, outputs) of each. The
    tensors must live as long as the result.
    """
    made = [
        Part(tensor.data_ptr(), outputs, _KINDS[packing]) for packing, tensor, outputs in packed
    ]
    return (Part * len(made))(*made)


@functools.cache
def cpu_library() -> CpuLibrary | None:
    """The library; None if it was not built, is disabled, or does not work here."""
    wanted = instructions()
    if wanted is None:
        if forced := os.environ.get(FORCE, ""):
            log.warning("%s=%s: no kernels; here are off, %s", FORCE, forced, ", ".join(SETS))
        return None
    try:
        return CpuLibrary(library_path(), wanted)
    except (OSError, AttributeError, ValueError) as error:
        log.warning("the kernels for processors are not used: %s", error)
        return None


def _torch() -> ctypes.CDLL:
    """torch's CPU library, which is already loaded."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise OSError(f"there is no libtorch_cpu in {folder}")


def inputs_of(packing: str, rows: Tensor) -> int:
    """Inputs of the rows given to `CpuLibrary.pack`."""
    if packing in HALVES:
        return rows.shape[-1]
    if packing in CODE_BITS:
        return inputs_of_codes(packing, rows.shape[-1])
    elements, size = block_of(packing)
    return rows.shape[-1] // size * elements


def can_pack(packing: str, inputs: int, groups: int) -> bool:
    """Whether `CpuLibrary.pack` supports such codes: each run of 32 inputs must share a scale.

    Raises:
        ValueError: rows of `inputs` numbers cannot be split into `groups` groups.
    """
    return inputs % _RUN == 0 and group_of(packing, inputs, groups) % _RUN == 0


def check(code: int) -> None:
    """Raise `MemoryError` or `ValueError` for the code that a function of the library returned."""
    if code == 1:
        raise MemoryError("no memory for activations")
    if code:
        raise ValueError(f"the library was given {_FAULTS.get(code, f'fault {code}')}")
