"""Random weights in the layouts of GGUF: rows of numbers, or of quantized blocks made directly.

The quantized numbers of a block are random bytes; only its scales are chosen, so that the
dequantized weights have mean 0 and the requested deviation. Layouts: ggml's `ggml-common.h`;
`gguf.quants` reads them.
"""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Kind = gguf.GGMLQuantizationType
Blocks = NDArray[np.uint8]
"""[blocks, bytes per block]"""

KINDS = (Kind.F32, Kind.F16, Kind.Q4_0, Kind.Q5_0, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K)
"""The types that `random_rows` can write."""

_PLAIN: dict[Any, np.dtype[Any]] = {Kind.F32: np.dtype("<f4"), Kind.F16: np.dtype("<f2")}
_BITS = {Kind.Q4_0: 4, Kind.Q5_0: 5, Kind.Q8_0: 8}
"""Types with one signed scale at the start of the block, followed by integers of this many bits."""
_Q4_K_SCALES = (32, 64)
_Q6_K_SCALES = (64, 128)
"""Range of a sub-block's integer scale: the upper half of what the format can hold."""


def row_bytes(kind: Kind, columns: int) -> int:
    """Bytes of one row.

    Raises:
        ValueError: the type's blocks do not divide `columns`.
    """
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if columns % elements:
        raise ValueError(f"{kind.name} has blocks of {elements}, which do not divide {columns}")
    return columns // elements * int(size)


def random_rows(
    kind: Kind, rows: int, columns: int, deviation: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Random weights of mean 0; plain numbers are uniformly rather than normally distributed.

    Args:
        kind: one of `KINDS`.
        deviation: standard deviation of the numbers.

    Returns:
        [rows, columns] of F32 or F16, else [rows, row_bytes] uint8.

    Raises:
        ValueError: the type's blocks do not divide `columns`, or the type cannot be written.
    """
    width = row_bytes(kind, columns)
    if kind in _PLAIN:
        values = rng.random((rows, columns), np.float32)
        values -= np.float32(0.5)
        values *= np.float32(deviation * 12**0.5)
        return values.astype(_PLAIN[kind], copy=False)
    blocks = _random_bytes(rng, rows * width).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    if kind in _BITS:
        _scale_simple(blocks, _BITS[kind], deviation, rng)
    elif kind is Kind.Q4_K:
        _scale_q4_k(blocks, deviation, rng)
    elif kind is Kind.Q6_K:
        _scale_q6_k(blocks, deviation, rng)
    else:
        raise ValueError(f"{kind.name} cannot be written; the types are {_names()}")
    return blocks.reshape(rows, width)


def _scale_simple(blocks: Blocks, bits: int, deviation: float, rng: np.random.Generator) -> None:
    """d * q with q from -2**(bits-1) on: q has one more negative value, so d has a random sign."""
    size = deviation / _deviation_of_signed(bits)
    signs = rng.integers(0, 2, len(blocks)) * 2 - 1
    blocks[:, 0:2] = _half_bytes(signs * size)


def _scale_q4_k(blocks: Blocks, deviation: float, rng: np.random.Generator) -> None:
    """d * s * q - dmin * m for eight sub-blocks; m = s and dmin = 7.5 d make the mean 0."""
    scales = rng.integers(*_Q4_K_SCALES, (len(blocks), 8)).astype(np.uint8)
    size = deviation / (_root_mean_square(*_Q4_K_SCALES) * ((16**2 - 1) / 12) ** 0.5)
    blocks[:, 0:2] = _half_bytes(np.array([size]))
    blocks[:, 2:4] = _half_bytes(np.array([7.5 * size]))
    low, high = scales[:, :4], scales[:, 4:]
    blocks[:, 4:8] = blocks[:, 8:12] = low | (high >> 4) << 6
    blocks[:, 12:16] = (high & 15) * 17  # four bits each of the scale and the equal minimum


def _scale_q6_k(blocks: Blocks, deviation: float, rng: np.random.Generator) -> None:
    """d * s * (q - 32) for sixteen sub-blocks; s has a random sign, as in `_scale_simple`."""
    shape = (len(blocks), 16)
    scales = rng.integers(*_Q6_K_SCALES, shape) * (rng.integers(0, 2, shape) * 2 - 1)
    blocks[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    size = deviation / (_root_mean_square(*_Q6_K_SCALES) * _deviation_of_signed(6))
    blocks[:, 208:210] = _half_bytes(np.array([size]))


def _deviation_of_signed(bits: int) -> float:
    """Root mean square of the integers from -2**(bits-1) to 2**(bits-1) - 1."""
    return float(((4**bits + 2) / 12) ** 0.5)


def _root_mean_square(low: int, end: int) -> float:
    return float(np.sqrt(np.mean(np.arange(low, end) ** 2)))


def _half_bytes(values: NDArray[Any]) -> Blocks:
    """[n, 2]: each value as a little-endian half-precision number."""
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _random_bytes(rng: np.random.Generator, count: int) -> Blocks:
    words = rng.integers(0, 2**64, -(-count // 8), np.uint64)
    return words.view(np.uint8)[:count]


def _names() -> str:
    return ", ".join(kind.name for kind in KINDS)
