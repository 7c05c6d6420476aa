"""Checks that a model's weights are finite: every tensor of a file is read, none is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hearth.kernels.blocks import block_of, packings, scale_offsets
from hearth.kernels.dequantize import dequantize
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.safetensors import SafetensorsFile, SafetensorsFolder, SafetensorsTensors

Progress = Callable[[int, int], None]
"""Called with the number of bytes checked so far, and the total."""

_PIECE_BYTES = 16 << 20
_EXPONENTS = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
}
"""Integer type of the same size, and the exponent bits: all set only in NaN and infinity."""
_LARGE_EXPONENT = 253
"""From this exponent on, MXFP4's largest number, 12, times half of 2 ** (exponent - 127) is
infinite."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A tensor with NaN or infinite numbers."""

    name: str
    rows: int
    """Number of rows that contain such numbers."""
    first_row: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify_model` found."""

    tensors: int
    nbytes: int
    not_finite: tuple[NotFinite, ...]
    unread: tuple[str, ...]
    """Tensors of packed types that cannot be checked."""


def verify_model(path: str | Path, progress: Progress = lambda done, total: None) -> VerifyReport:
    """Check every weight of a GGUF file (with its other shards), a safetensors file or a folder of
    safetensors files, at about the speed of the disk.

    Args:
        progress: called after each piece, from this thread; an exception from it ends the check.

    Raises:
        CorruptFile, UnsupportedModel: the files violate their format.
        OSError: a file cannot be opened.
    """
    file = _open(Path(path))
    total = sum(tensor.nbytes for tensor in file.stored.values())
    done, bad, unread = 0, [], []
    for name, tensor in file.stored.items():
        if tensor.packing and tensor.packing not in packings():
            unread.append(name)
        else:
            problem = _look_at(name, file, progress, done, total)
            bad += [problem] if problem else []
        done += tensor.nbytes
        file.release(name)
        progress(done, total)
    report = VerifyReport(len(file.stored), total, tuple(bad), tuple(unread))
    file.close()
    return report


def _look_at(
    name: str,
    file: SafetensorsTensors | GgufTensorFile,
    progress: Progress,
    done: int,
    total: int,
) -> NotFinite | None:
    """Check one tensor; `done` of `total` bytes were checked before."""
    first, count = -1, 0
    for start, piece in _pieces(_rows(file, name)):
        wrong = ~finite_rows(piece, file.stored[name].packing)
        if first < 0 and wrong.any():
            first = start + int(wrong.nonzero()[0])
        count += int(wrong.sum())
        done += piece.nbytes
        progress(done, total)
    return NotFinite(name, count, first) if count else None


def finite_rows(rows: Tensor, packing: str = "") -> Tensor:
    """[n] bool: whether all numbers of each row are finite.

    Args:
        rows: [n, length] of any dtype, or [n, bytes of a row] uint8 with the `packing`.
    """
    if not packing:
        return _finite_plain(rows)
    blocks = rows.reshape(len(rows), -1, block_of(packing)[1])
    offsets = scale_offsets(packing)
    if offsets:
        # A product of finite scales and small whole numbers is finite. A half-precision scale that
        # is not finite has all exponent bits set.
        tops = torch.stack([blocks[:, :, start + 1] for start in offsets], -1)
        return ((tops & 0x7C) != 0x7C).flatten(1).all(1)
    suspicious = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    if packing == "MXFP4":
        suspicious = (blocks[:, :, 0] >= _LARGE_EXPONENT).any(1)
    finite = ~suspicious
    finite[suspicious] = _finite_plain(dequantize(packing, rows[suspicious]))
    return finite


def finite_weights(rows: PackedWeight) -> Tensor:
    """[n] bool: whether all numbers of each row [n, ...] are finite; for codes, their scales."""
    if rows.scales is None:
        return finite_rows(rows.weight, rows.packing)
    finite = _finite_plain(rows.scales)
    if rows.packing == "FP8":
        finite &= (rows.weight & 0x7F).amax(1) < 0x7F
    elif rows.packing == "FP8_E5M2":
        finite &= (rows.weight & 0x7F).amax(1) < 0x7C
    return finite


def _finite_plain(rows: Tensor) -> Tensor:
    if not rows.dtype.is_floating_point:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    if rows.dtype not in _EXPONENTS:
        rows = rows.float()  # The two kinds of eight-bit floats.
    # Many times faster than torch.isfinite, which checks number by number.
    integers, exponent = _EXPONENTS[rows.dtype]
    return (rows.view(integers) & exponent).amax(1) != exponent


def _open(path: Path) -> SafetensorsTensors | GgufTensorFile:
    if path.is_dir():
        return SafetensorsFolder(path)
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)
    return GgufTensorFile(check(path))


def _rows(file: SafetensorsTensors | GgufTensorFile, name: str) -> Tensor:
    """[rows, ...]: the tensor as a matrix."""
    tensor = file.read(name)
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1] if tensor.ndim else 1)


def _pieces(rows: Tensor) -> list[tuple[int, Tensor]]:
    """`rows` in pieces of a few megabytes, each with the index of its first row."""
    if not rows.numel():
        return []
    step = max(1, _PIECE_BYTES // (rows.shape[1] * rows.dtype.itemsize))
    return [(start, rows[start : start + step]) for start in range(0, len(rows), step)]
