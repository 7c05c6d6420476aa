"""Packed matrices: prepared once, from rows as a file stores them, so that they can be multiplied.

`prepare` chooses the kernels: those of `kernels/cpu`, `kernels/cuda` or `kernels/metal` if they run
on the device and support the type, else the reference, which unpacks a slice of rows at a time for
each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, Protocol

import torch
from torch import Tensor

from hearth.kernels.cpu.layouts import FLOATS, LAYOUTS
from hearth.kernels.cpu.library import CpuLibrary, Part, can_pack, cpu_library, parts_of
from hearth.kernels.cuda.matrix import TritonGroup, TritonMatrix, can_group, has_triton, reads
from hearth.kernels.linear import DTYPE_NAMES, Route, float_lanes, in_groups, linear_route
from hearth.kernels.metal.packings import NOT_RUN
from hearth.kernels.metal.shaders import FEW, can_multiply, has_metal, multiply
from hearth.kernels.packed_linear import arithmetic_dtype, sliced_linear
from hearth.kernels.packed_weight import PackedWeight, widened
from hearth.kernels.table import LINEAR, pick

_MOST_ROWS: Final = 128
_SLICE_NUMBERS: Final = 1 << 20
"""Weights that are unpacked at a time: four megabytes in float32."""
_HALVES: Final = {torch.bfloat16: "BF16", torch.float16: "F16"}
_INT8_LANES: Final = {
    "plain": "C, int8",
    "avx2": "AVX2, VPMADDUBSW",
    "avx512": "AVX-512 VNNI, VPDPBUSD",
    "amx": "AVX-512 VNNI, VPDPBUSD",
}
"""The instructions that multiply int8, by set of instructions."""


class Prepared(Protocol):
    """A matrix [outputs, inputs] that can be multiplied."""

    @property
    def outputs(self) -> int: ...

    @property
    def inputs(self) -> int: ...

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps in memory."""

    @property
    def is_row_invariant(self) -> bool:
        """Whether a row's product has the same bits whatever the other rows."""

    @property
    def kind(self) -> str:
        """The types of its parts and the kernels that multiply them, for users."""

    def matmul(self, x: Tensor) -> Tensor:
        """x · matrixᵀ: [..., inputs] -> [..., outputs] of the same dtype.

        Raises:
            ValueError: the rows of `x` have a different length.
        """

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """[count, inputs] of `dtype`: the rows `ids` [count] int64."""


def prepare(parts: Sequence[PackedWeight], *, exact: bool) -> Prepared:
    """Make a matrix of parts stacked along its rows. They may have different types, such as queries
    and keys in Q4_K and values in Q6_K.

    Args:
        parts: [rows, ...] each, on one device. The result may keep them or reordered copies.
        exact: activations are not rounded to int8 or FP8; CPUs compute in float32 with the exact
            values of the blocks.

    Raises:
        ValueError: there are no parts, or their rows have different lengths.
    """
    if not parts or len({part.inputs for part in parts}) != 1:
        lengths = ", ".join(f"{part.inputs:,}" for part in parts) or "none"
        raise ValueError(f"rows of a matrix have one length, not {lengths}")
    if any(part.order is not None for part in parts):
        ordered = [
            _in_order([part for _, part in some], exact=exact)
            for _, some in groupby(_numbered_orders(parts), key=lambda one: one[0])
        ]
        return _joined(ordered)
    device_type = parts[0].weight.device.type
    if has_triton(device_type):
        parts = [widened(part) for part in parts]
        made: list[Prepared] = []
        for is_read, group in groupby(parts, key=reads):
            some = list(group)
            made += [TritonMatrix(some, exact=exact)] if is_read else map(BlockMatrix, some)
        return _joined(made)
    if has_metal(device_type):
        return _joined([MetalMatrix(widened(part)) for part in parts])
    library = cpu_library() if device_type == "cpu" else None
    if library is not None and all(_tiled_as(part) for part in parts):
        return TiledMatrix(library, parts, exact=exact)
    return _joined([BlockMatrix(part) for part in parts])


def _joined(matrices: Sequence[Prepared]) -> Prepared:
    return matrices[0] if len(matrices) == 1 else JoinedMatrix(matrices)


def _numbered_orders(parts: Sequence[PackedWeight]) -> list[tuple[int, PackedWeight]]:
    """Each of `parts` with a number, which is that of the part before it if their inputs are in the
    same order.
    """
    numbered: list[tuple[int, PackedWeight]] = []
    for part in parts:
        number = 0
        if numbered:
            number, before = numbered[-1]
            number += not _is_same_order(before.order, part.order)
        numbered.append((number, part))
    return numbered


def _is_same_order(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _in_order(parts: Sequence[PackedWeight], *, exact: bool) -> Prepared:
    """A matrix of parts whose inputs are in the same order."""
    matrix = prepare([replace(part, order=None) for part in parts], exact=exact)
    order = parts[0].order
    return matrix if order is None else OrderedMatrix(matrix, order)


def _tiled_as(part: PackedWeight) -> str:
    """The kind of `part` for the kernels of `kernels/cpu`; "" if they do not support it, or if its
    groups of inputs are not a multiple of 32.
    """
    if not part.packing:
        return _HALVES.get(part.weight.dtype, "")
    if part.scales is not None and not can_pack(part.packing, part.inputs, part.scales.shape[-1]):
        return ""
    return part.packing if part.packing in LAYOUTS else ""


class OrderedMatrix:
    """A matrix whose inputs are stored in a different order than activations have them."""

    def __init__(self, matrix: Prepared, order: Tensor) -> None:
        """
        Args:
            order: as in `PackedWeight`.
        """
        self.matrix = matrix
        self.order = order
        self._places = order.argsort()
        self.outputs, self.inputs = matrix.outputs, matrix.inputs
        self.is_row_invariant = matrix.is_row_invariant
        self.kind = f"{matrix.kind}, in activation order"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.matrix.tensors, self.order, self._places)

    def matmul(self, x: Tensor) -> Tensor:
        return self.matrix.matmul(x.index_select(-1, self.order))

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.matrix.rows(ids, dtype).index_select(-1, self._places)


class JoinedMatrix:
    """Matrices stacked along their rows that cannot share one product."""

    def __init__(self, matrices: Sequence[Prepared]) -> None:
        self.matrices = tuple(matrices)
        self.inputs = matrices[0].inputs
        self.outputs = sum(one.outputs for one in matrices)
        self.is_row_invariant = all(one.is_row_invariant for one in matrices)
        self.kind = " over ".join(one.kind for one in matrices)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for one in self.matrices for tensor in one.tensors)

    def matmul(self, x: Tensor) -> Tensor:
        return torch.cat([one.matmul(x) for one in self.matrices], -1)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        raise ValueError("rows are those of a matrix of one part")


class BlockMatrix:
    """The reference, for every type on every device: the part is kept as stored."""

    is_row_invariant = False

    def __init__(self, part: PackedWeight) -> None:
        self.part = part
        self.inputs = part.inputs
        self.outputs = part.weight.shape[-2]
        self.kind = part.packing or "plain"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.part.tensors

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self.part.rows(ids).unpacked(dtype)

    def route(self, rows: int, dtype: torch.dtype) -> Route:
        """How `rows` activations of `dtype` are multiplied."""
        part, device = self.part, self.part.weight.device
        if not part.packing:
            return linear_route(rows, part.weight.dtype, device, part.weight.shape[1])
        return Route(
            "PyTorch, slices unpacked each time",
            DTYPE_NAMES[arithmetic_dtype(device, dtype)],
            "there is no kernel for it",
        )

    def matmul(self, x: Tensor) -> Tensor:
        part = self.part
        if not part.packing:
            return pick(LINEAR, x.device)(x, part.weight, None)
        if x.shape[-1] != part.inputs:
            raise ValueError(f"a matrix of {part.inputs:,} inputs, not {x.shape[-1]:,}")
        outputs = len(part.weight)
        return sliced_linear(x, outputs, lambda some, place: part.rows(some).unpack_into(place))


class MetalMatrix(BlockMatrix):
    """On Apple GPUs: few rows by the kernels of `kernels/metal`, more by the reference."""

    def __init__(self, part: PackedWeight) -> None:
        super().__init__(part)
        self.kind += ", Metal"

    def route(self, rows: int, dtype: torch.dtype) -> Route:
        if not self._is_for_kernel(rows):
            return super().route(rows, dtype)
        why = f"blocks are unpacked in registers, for each row; {NOT_RUN}"
        return Route("Metal", DTYPE_NAMES[dtype], why)

    def matmul(self, x: Tensor) -> Tensor:
        part, rows = self.part, x.reshape(-1, x.shape[-1])
        if not self._is_for_kernel(len(rows)) or x.shape[-1] != part.inputs:
            return super().matmul(x)
        product = multiply(rows, part.packing, part.weight, part.scales, part.zeros)
        return product.view(*x.shape[:-1], -1)

    def _is_for_kernel(self, rows: int) -> bool:
        part = self.part
        groups = 1 if part.scales is None else part.scales.shape[-1]
        return 0 < rows <= FEW and can_multiply(part.packing, part.inputs, groups)


class TiledMatrix:
    """On a CPU: packed in the order in which the kernels of `kernels/cpu` read it.

    Unless products must be exact, many rows are multiplied in bfloat16 on a CPU with AMX. On other
    CPUs torch multiplies many rows by weights unpacked slice by slice, if activations stay float32
    for all parts.
    """

    def __init__(self, library: CpuLibrary, parts: Sequence[PackedWeight], *, exact: bool) -> None:
        self.library = library
        self._packed = [
            (kind, library.pack(kind, part.weight, part.scales, part.zeros), len(part.weight))
            for kind, part in ((_tiled_as(part), part) for part in parts)
        ]
        self.parts = parts_of(self._packed)
        """Arguments for the library, valid as long as the matrix."""
        self.is_exact = exact
        self._has_amx = library.instructions == "amx"
        stays_float = all(kind in FLOATS for kind, _, _ in self._packed)
        self.most_rows = None if exact or self._has_amx or not stays_float else _MOST_ROWS
        """Most rows that the library multiplies, torch takes more; None: no limit."""
        self.inputs = parts[0].inputs
        self.outputs = sum(outputs for _, _, outputs in self._packed)

    @property
    def is_row_invariant(self) -> bool:
        return self.is_exact or (self.most_rows is None and not self._has_amx)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(tensor for _, tensor, _ in self._packed)

    @property
    def kind(self) -> str:
        packings = "+".join(packing for packing, _, _ in self._packed)
        return f"{packings}, {self.library.instructions}{', exact' if self.is_exact else ''}"

    def matmul(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.inputs:
            raise ValueError(f"a matrix of {self.inputs:,} inputs, not {x.shape[-1]:,}")
        # Operations that change nothing can take as long as a small product.
        rows = x if x.ndim == 2 else x.reshape(-1, self.inputs)
        rows = rows.to(torch.float32).contiguous()
        if self._is_for_torch(len(rows)):
            product = self._dense(rows)
        else:
            product = self.library.multiply(self.parts, self.outputs, rows, exact=self.is_exact)
        product = product.to(x.dtype)
        return product if x.ndim == 2 else product.view(*x.shape[:-1], self.outputs)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """As in `Prepared`, for a matrix of one part."""
        ((packing, packed, outputs),) = self._packed
        return self.library.rows(packing, packed, outputs, self.inputs, ids).to(dtype)

    def route(self, rows: int) -> Route:
        """How `rows` activations are multiplied, for a matrix of one part."""
        ((packing, _, _),) = self._packed
        if self._is_for_torch(rows):
            return Route(
                "PyTorch, slices unpacked each time",
                "f32",
                "unpacking is little beside this many rows",
            )
        instructions = self.library.instructions
        match self.library.activations(packing, rows, exact=self.is_exact):
            case "bf16":
                return Route(
                    "AMX, bf16 tiles",
                    "bf16",
                    "tiles are read as they are"
                    if packing == "BF16"
                    else "unpacking into tiles is little beside this many rows",
                )
            case "int8":
                lanes = _INT8_LANES[instructions]
                return Route(lanes, "int8", "integer codes; a scale for each 32 activations")
        exact = "nothing may be rounded"
        return Route(
            float_lanes(instructions),
            "f32",
            exact if self.is_exact else "these are no integer codes",
        )

    def _is_for_torch(self, rows: int) -> bool:
        return self.most_rows is not None and rows > self.most_rows

    def _dense(self, rows: Tensor) -> Tensor:
        """[rows, inputs] float32 -> [rows, outputs] float32."""
        product = torch.empty((len(rows), self.outputs), dtype=torch.float32)
        step = max(1, _SLICE_NUMBERS // self.inputs)
        column = 0
        for packing, packed, outputs in self._packed:
            for start in range(0, outputs, step):
                ids = torch.arange(start, min(start + step, outputs))
                weight = self.library.rows(packing, packed, outputs, self.inputs, ids)
                product[:, column : column + len(ids)] = torch.mm(rows, weight.T)
                column += len(ids)
        return product


class GroupedLinear:
    """Matrices of one shape that each multiply their own rows, such as experts: in one call if the
    kernels of `kernels/cpu` or of `kernels/cuda` multiply all of them.
    """

    def __init__(self, matrices: Sequence[Prepared]) -> None:
        """
        Args:
            matrices: at least one.

        Raises:
            ValueError: the matrices have different shapes.
        """
        shapes = {(one.outputs, one.inputs) for one in matrices}
        if len(shapes) != 1:
            raise ValueError(f"matrices of one shape, not of {len(shapes)}")
        on_card = [one for one in matrices if isinstance(one, TritonMatrix)]
        is_one = len(on_card) == len(matrices) and can_group(on_card)
        self.on_card = TritonGroup(on_card) if is_one else None
        """All matrices, if a GPU multiplies them in one call; offsets may be on the GPU then."""
        self.matrices = tuple(matrices)
        ((self.outputs, self.inputs),) = shapes
        self.is_row_invariant = all(one.is_row_invariant for one in matrices)
        self.kind = f"{len(matrices)} × {matrices[0].kind}"
        tiled = [one for one in matrices if isinstance(one, TiledMatrix)]
        counts = {len(one.parts) for one in tiled}
        self.tiled = tiled[0] if len(tiled) == len(matrices) and len(counts) == 1 else None
        """One of the matrices, if a CPU multiplies all in one call."""
        every = [part for one in tiled for part in one.parts]
        self.parts = (Part * len(every))(*every)
        """Arguments for that call: the parts of all matrices, one after the other."""
        limits = [one.most_rows for one in tiled if one.most_rows is not None]
        self.most_rows = min(limits, default=None)
        """Most rows of a matrix in that call; None: no limit."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps in memory."""
        return tuple(tensor for one in self.matrices for tensor in one.tensors)

    def matmul(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Each group of rows times the transpose of its matrix.

        Args:
            x, offsets: as for `in_groups`.

        Returns:
            [rows, outputs] of the same dtype.

        Raises:
            ValueError: rows have a different length, or there are not as many groups as matrices.
        """
        if x.shape[-1] != self.inputs or len(offsets) != len(self.matrices) + 1:
            raise ValueError(
                f"{len(self.matrices)} matrices of {self.inputs:,} inputs, not {len(offsets) - 1} "
                f"of {x.shape[-1]:,}"
            )
        if self.on_card is not None:
            return self.on_card.matmul(x, offsets.to(x.device))
        is_few = self.most_rows is None or int(offsets.diff().max()) <= self.most_rows
        if self.tiled is None or not is_few:
            return in_groups(lambda group, rows: self.matrices[group].matmul(rows), x, offsets)
        rows, exact = x.to(torch.float32).contiguous(), self.tiled.is_exact
        library = self.tiled.library
        product = library.multiply_groups(self.parts, self.outputs, rows, offsets, exact=exact)
        return product.to(x.dtype)
