"""The library in C, called on the addresses of tensors. It computes on torch's own threads."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor

from hearth.kernels.blocks import block_of
from hearth.kernels.cpu.build_library import library_path, version
from hearth.kernels.cpu.layouts import FORCE, HALVES, LAYOUTS, multiplied

log = logging.getLogger(__name__)

Instructions = Literal["plain", "avx2", "avx512", "amx"]
_SETS: Final[tuple[Instructions, ...]] = ("plain", "avx2", "avx512", "amx")
_KINDS: Final = {name: index for index, name in enumerate((*LAYOUTS, *HALVES))}
_FAULTS: Final = {
    1: "out of memory",
    2: "an unknown type",
    3: "a shape that does not fit",
    4: "instructions that this processor does not have",
}

_POINTER = ctypes.c_void_p
_LONG = ctypes.c_int64
_INT = ctypes.c_int32


class Part(ctypes.Structure):
    """Some packed rows of a matrix, as packed.c knows them."""

    _fields_ = (("packed", _POINTER), ("outputs", _LONG), ("kind", _INT))


class CpuLibrary:
    """The functions of the library.

    Args:
        path: of the built library.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it, or torch, lacks a function.
        ValueError: it was built from other sources, or `instructions` are not there.
    """

    def __init__(self, path: Path, instructions: Instructions | None = None) -> None:
        found = ctypes.CDLL(str(path))
        found.hearth_version.restype = ctypes.c_char_p
        if found.hearth_version().decode() != version():
            raise ValueError(f"{path} was built from other sources: run `make`")
        found.hearth_packed_bytes.restype = _LONG
        found.hearth_packed_bytes.argtypes = (_INT, _LONG, _LONG)
        found.hearth_pack.argtypes = (_INT, _POINTER, _LONG, _LONG, _POINTER)
        found.hearth_multiply.argtypes = (
            *(_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER),
            *(_INT, _INT),
        )
        found.hearth_plain.argtypes = (_INT, _POINTER, _LONG, _LONG, _LONG, _POINTER, _INT, _INT)
        found.hearth_rows.argtypes = (_INT, _POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER)
        found.hearth_use_threads.argtypes = (_POINTER,)
        found.hearth_use_threads(ctypes.cast(_torch().torch_parallel_for, _POINTER))
        best = found.hearth_instructions()
        wanted = best if instructions is None else _SETS.index(instructions)
        if wanted > best:
            raise ValueError(f"this processor has {_SETS[best]}, not {instructions}")
        self._library = found
        self.set: int = wanted
        """The number of `instructions`."""

    @property
    def instructions(self) -> Instructions:
        """What it computes with."""
        return _SETS[self.set]

    def function(self, name: str, arguments: Sequence[Any]) -> Callable[..., int]:
        """Another function of the library, which returns a fault for `check`."""
        found = self._library[name]
        found.argtypes = arguments
        return found

    def pack(self, packing: str, rows: Tensor) -> Tensor:
        """Rows in the order in which they are multiplied.

        Args:
            packing: one of `LAYOUTS` or `HALVES`.
            rows: [outputs, bytes of a row] uint8, or [outputs, inputs] of half precision, on the
                processor.

        Returns:
            [bytes] uint8, for all functions here. What a row holds is there exactly.
        """
        kind = _KINDS[packing]
        rows = rows.contiguous()
        outputs = len(rows)
        inputs = rows.shape[1] if packing in HALVES else _inputs(packing, rows)
        packed = torch.empty(
            self._library.hearth_packed_bytes(kind, outputs, inputs), dtype=torch.uint8
        )
        check(self._library.hearth_pack(kind, rows.data_ptr(), outputs, inputs, packed.data_ptr()))
        return packed

    def multiply(
        self, parts: ctypes.Array[Part], outputs: int, x: Tensor, *, exact: bool
    ) -> Tensor:
        """x · matrixᵀ, of a matrix whose rows are those of `parts`, one below the other.

        Args:
            outputs: of all parts.
            x: [rows, inputs] float32, contiguous.
            exact: activations stay float32; otherwise they are rounded to int8 with a scale for
                each 32 of a row, but for parts of half precision.

        Returns:
            [rows, outputs] float32. A row's result has the same bits for any number of rows.
        """
        y = torch.empty((len(x), outputs), dtype=torch.float32)
        found = self._library.hearth_multiply(
            *(parts, len(parts), x.shape[1], x.data_ptr(), len(x), y.data_ptr()),
            *(exact, self.set),
        )
        if found:
            check(found)
        return y

    def plain(
        self, packing: str, packed: Tensor, inputs: int, tiles: range, room: Tensor
    ) -> Tensor:
        """Tiles of 16 rows as plain numbers, transposed.

        Args:
            tiles: without a step.
            room: [inputs · 16 · tiles] or more numbers of float32, or of bfloat16, to which they
                are rounded; contiguous.

        Returns:
            [inputs, 16 · tiles], over `room`; rows that fill up the last tile are zero.
        """
        out = room[: inputs * 16 * len(tiles)].view(inputs, -1)
        check(
            self._library.hearth_plain(
                *(_KINDS[packing], packed.data_ptr(), inputs, tiles.start, tiles.stop),
                *(out.data_ptr(), room.dtype == torch.bfloat16, self.set),
            )
        )
        return out

    def rows(
        self, packing: str, packed: Tensor, outputs: int, inputs: int, wanted: Tensor
    ) -> Tensor:
        """[count, inputs] float32: the rows `wanted` [count] int64 of a packed matrix.

        Raises:
            ValueError: there is no such row.
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
    """For `CpuLibrary.multiply`: (packing, packed rows, outputs) of each part. The tensors must
    live as long as the result.
    """
    made = [
        Part(tensor.data_ptr(), outputs, _KINDS[packing]) for packing, tensor, outputs in packed
    ]
    return (Part * len(made))(*made)


@functools.cache
def cpu_library() -> CpuLibrary | None:
    """The library, or None: it was not built, or it does not work here."""
    if not multiplied():
        return None
    forced = os.environ.get(FORCE, "")
    if forced and forced not in _SETS:
        log.warning("%s=%s is none of off, %s", FORCE, forced, ", ".join(_SETS))
        return None
    try:
        return CpuLibrary(library_path(), next((one for one in _SETS if one == forced), None))
    except (OSError, AttributeError, ValueError) as error:
        log.warning("the kernels for processors are not used: %s", error)
        return None


def _torch() -> ctypes.CDLL:
    """torch's library for processors, which is loaded already."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise OSError(f"there is no libtorch_cpu in {folder}")


def _inputs(packing: str, rows: Tensor) -> int:
    elements, size = block_of(packing)
    return rows.shape[-1] // size * elements


def check(code: int) -> None:
    """Raises `MemoryError` or `ValueError` for what a function of the library returned."""
    if code == 1:
        raise MemoryError("no memory for activations")
    if code:
        raise ValueError(f"the library was given {_FAULTS.get(code, f'fault {code}')}")
