"""Norms, rotary positions, storing keys and values, gates, rounding and sampling helpers on NVIDIA
GPUs. Each function launches kernels of `fused.py`, `codes.py` or `draw.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.cuda.launch import early
from hearth.kernels.cuda.planes import BLOCK

_GATE_LANES: Final = 1024
_ROUNDED_LANES: Final = 1024
_PEAK_LANES: Final = 4096
_FEW_TOKENS: Final = 64
"""Up to this many tokens each head of each token has its own program."""
_TOGETHER: Final = 8
_TOGETHER_WARPS: Final = 4
_MOST_ROUNDED: Final = 1 << 15
"""Most inputs that a program can keep in registers."""


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rows of activations as codes of eight bits.

    Attributes:
        codes: [rows, inputs padded to whole blocks] float8_e4m3fn or int8, in the order of
            `planes.Planes`.
        scales: [groups, rows] float32; NaN if a number of the group is not finite.
        dtype: dtype of the activations.
    """

    codes: Tensor
    scales: Tensor
    dtype: torch.dtype


def can_round(inputs: int) -> bool:
    """Whether the functions below can return rows of `inputs` numbers as `RoundedRows`."""
    return inputs % BLOCK == 0 and inputs <= _MOST_ROUNDED


def add_and_normalise(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of hidden + added; the sum is stored in `hidden`.

    Args:
        hidden, added: [..., width] of any float dtypes, `hidden` contiguous.
        weight: [width] float32.

    Returns:
        [..., width] of the dtype of `hidden`.
    """
    out = torch.empty_like(hidden)
    _normalise(hidden, added, weight, eps, out, None)
    return out


def add_and_round(hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float) -> RoundedRows:
    """`add_and_normalise` with the result rounded to E4M3, if `can_round` is true.

    Args:
        hidden: [rows, width].
    """
    rounded = _unwritten(hidden, hidden.shape[1])
    _normalise(hidden, added, weight, eps, rounded.codes.view(torch.uint8), rounded.scales)
    return rounded


def _unwritten(rows: Tensor, inputs: int) -> RoundedRows:
    codes = rows.new_empty((len(rows), inputs), dtype=torch.float8_e4m3fn)
    return RoundedRows(codes, rows.new_empty((1, len(rows)), dtype=torch.float32), rows.dtype)


def _normalise(
    hidden: Tensor,
    added: Tensor | None,
    weight: Tensor,
    eps: float,
    out: Tensor,
    scales: Tensor | None,
) -> None:
    from hearth.kernels.cuda.fused import norm_kernel

    width = hidden.shape[-1]
    rows = hidden.numel() // width
    if rows:
        lanes = _lanes(width)
        norm_kernel[(rows,)](
            hidden,
            hidden if added is None else added.contiguous(),
            weight,
            out,
            weight if scales is None else scales,
            eps,
            WIDTH=width,
            LANES=lanes,
            HAS_ADDED=added is not None,
            ROUNDS=scales is not None,
            num_warps=min(max(lanes // 512, 1), 16),
            **early(hidden.device),
        )


def finish_heads(
    heads: Tensor,
    queries: int,
    norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor] | None,
) -> None:
    """Norm and rotary positions of queries and keys, in place.

    Args:
        heads: [tokens, heads, head_dim], the heads of a token contiguous, of any float dtype.
        queries: number of heads that are queries; the others are keys.
        norms: weights [head_dim] float32 for queries and for keys, and epsilon; None: no norm.
        rotary: cosine and sine [tokens, 1, d] float32, of which the second halves are used, d at
            most head_dim; None: no positions.
    """
    from hearth.kernels.cuda.fused import heads_kernel

    if norms is None and rotary is None:
        return
    tokens, count, size = heads.shape
    turned = 0 if rotary is None else rotary[0].shape[-1]
    unused = heads
    weights = (unused, unused, 0.0) if norms is None else norms
    together = _together(tokens)
    heads_kernel[-(-tokens // together), count](
        heads,
        *weights[:2],
        *((unused, unused) if rotary is None else rotary),
        weights[2],
        tokens,
        heads.stride(0),
        QUERIES=queries,
        SIZE=size,
        TURNED=turned,
        LANES=_lanes(turned // 2),
        REST_LANES=_lanes(size - turned),
        HAS_NORMS=norms is not None,
        TOKENS=together,
        num_warps=_TOGETHER_WARPS if together > 1 else 1,
        **early(heads.device),
    )


def store_tokens(
    keys: Tensor, values: Tensor, slots: Tensor, key_value: Tensor, most: float
) -> None:
    """Store keys and values of new tokens in a layer of a pool.

    Args:
        keys, values: [slots, kv_heads, row], the last dimension contiguous, as for `sides_of`.
        slots: [tokens] int64.
        key_value: [tokens, 2, kv_heads, head_dim], the last three dimensions contiguous.
        most: the value that replaces infinities; NaN becomes 0.
    """
    from hearth.kernels.cuda.fused import store_kernel

    tokens, _, heads, size = key_value.shape
    rows, scales, kinds = sides_of(keys, values, size)
    together = _together(tokens)
    store_kernel[-(-tokens // together), 2 * heads](
        key_value,
        slots,
        *rows,
        *scales,
        tokens,
        key_value.stride(0),
        *keys.stride()[:2],
        *values.stride()[:2],
        most,
        HEADS=heads,
        SIZE=size,
        LANES=_lanes(size),
        **kinds,
        TOKENS=together,
        num_warps=_TOGETHER_WARPS if together > 1 else 1,
        **early(keys.device),
    )


def finish_and_store(
    heads: Tensor,
    queries: int,
    norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor] | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    most: float,
) -> None:
    """`finish_heads` of queries and keys, and `store_tokens` of keys and values.

    Args:
        heads: [tokens, heads, head_dim], the heads of a token contiguous: queries, keys, values.
    """
    from hearth.kernels.cuda.fused import finish_and_store_kernel

    tokens, count, size = heads.shape
    turned = 0 if rotary is None else rotary[0].shape[-1]
    rows, scales, kinds = sides_of(keys, values, size)
    weights = (heads, heads, 0.0) if norms is None else norms
    together = _together(tokens)
    finish_and_store_kernel[-(-tokens // together), count](
        heads,
        *weights[:2],
        *((heads, heads) if rotary is None else rotary),
        weights[2],
        slots,
        *rows,
        *scales,
        tokens,
        heads.stride(0),
        *keys.stride()[:2],
        *values.stride()[:2],
        most,
        QUERIES=queries,
        HEADS=(count - queries) // 2,
        SIZE=size,
        TURNED=turned,
        LANES=_lanes(turned // 2),
        REST_LANES=_lanes(size - turned),
        HEAD_LANES=_lanes(size),
        HAS_NORMS=norms is not None,
        **kinds,
        TOKENS=together,
        num_warps=_TOGETHER_WARPS if together > 1 else 1,
        **early(heads.device),
    )


def sides_of(
    keys: Tensor, values: Tensor, size: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], dict[str, str]]:
    """Kernel arguments for keys and values, whose types may differ: rows [..., row] whose last axis
    is contiguous, of a float dtype, of float8_e4m3fn, or int8 for Q8_0, where `size` codes are
    followed by a float16 scale for each 32.

    Returns:
        The rows of both, their scales (a tensor that is not read for other types), and the
        constants KEYS and VALUES.
    """
    rows, scales, kinds = [], [], []
    for side in (keys, values):
        is_fp8, is_q8 = side.dtype == torch.float8_e4m3fn, side.dtype == torch.int8
        rows.append(side.view(torch.uint8) if is_fp8 else side)
        scales.append(side.view(torch.float16)[..., size // 2 :] if is_q8 else rows[-1])
        kinds.append("fp8" if is_fp8 else "q8_0" if is_q8 else "plain")
    return (rows[0], rows[1]), (scales[0], scales[1]), {"KEYS": kinds[0], "VALUES": kinds[1]}


def silu_up(both: Tensor) -> Tensor:
    """silu(gate) · up.

    Args:
        both: [rows, 2 · width], the last dimension contiguous, gate before up.

    Returns:
        [rows, width] of the same dtype.
    """
    from hearth.kernels.cuda.fused import gate_kernel

    rows, width = len(both), both.shape[1] // 2
    out = both.new_empty((rows, width))
    if rows:
        grid = (rows, -(-width // _GATE_LANES))
        sizes = (width, both.stride(0))
        gate_kernel[grid](both, out, *sizes, LANES=_GATE_LANES, **early(both.device))
    return out


def silu_up_rounded(both: Tensor) -> RoundedRows:
    """`silu_up` with the result rounded to E4M3, if `can_round` is true."""
    from hearth.kernels.cuda.fused import rounded_gate_kernel

    width = both.shape[1] // 2
    rounded = _unwritten(both, width)
    if len(both):
        lanes = _lanes(width)
        rounded_gate_kernel[(len(both),)](
            both,
            rounded.codes.view(torch.uint8),
            rounded.scales,
            both.stride(0),
            WIDTH=width,
            LANES=lanes,
            num_warps=min(max(lanes // 512, 1), 16),
            **early(both.device),
        )
    return rounded


def row_peaks(logits: Tensor) -> Tensor:
    """The values that greedy sampling needs of each row, in one pass over the logits.

    Args:
        logits: [rows, width] float32, the last dimension contiguous, width at most 2²⁴.

    Returns:
        [rows, 3] float32: the largest logit, the sum of exp(logit - largest) over the row, and the
        index of the largest, the first of equal ones. The sum is NaN if a logit is NaN or +inf, or
        all are -inf.
    """
    from hearth.kernels.cuda.fused import peaks_kernel, row_peaks_kernel

    rows, width = logits.shape
    parts = -(-width // _PEAK_LANES)
    peaks, totals = logits.new_empty((2, rows, parts))
    bests = logits.new_empty((rows, parts), dtype=torch.int32)
    out = logits.new_empty((rows, 3))
    if rows:
        sizes, start = (width, logits.stride(0), parts), early(logits.device)
        peaks_kernel[rows, parts](logits, peaks, totals, bests, *sizes, LANES=_PEAK_LANES, **start)
        arguments = (peaks, totals, bests, out, parts, width)
        row_peaks_kernel[(rows,)](*arguments, LANES=_lanes(parts), num_warps=1, **start)
    return out


def guess_tokens(values: Tensor, ids: Tensor, peaks: Tensor, about: Tensor) -> Tensor:
    """[rows] int64: the token that will probably be drawn for each row.

    Args:
        values, ids: [rows, n] float32 and int64: the largest logits, largest first.
        peaks: [rows, 3] float32, from `row_peaks`.
        about: [rows, 5] int64, see `draw.guess_kernel`.
    """
    from hearth.kernels.cuda.draw import guess_kernel

    rows, count = values.shape
    out = torch.empty(rows, dtype=torch.int64, device=values.device)
    places = (values.contiguous(), ids.contiguous(), peaks.contiguous(), about, out)
    guess_kernel[(rows,)](*places, count, LANES=_lanes(count), num_warps=8, **early(values.device))
    return out


def round_rows(x: Tensor, *, fp8: bool, group: int = 0) -> RoundedRows:
    """Round `x` to codes, scaled by the largest number of each row or group of inputs.

    Args:
        x: [rows, inputs], the last dimension contiguous, of any float dtype.
        fp8: round to E4M3; otherwise to int8.
        group: inputs that share a scale; 0: all.
    """
    from hearth.kernels.cuda.codes import rounding_kernel

    rows, inputs = x.shape
    groups = -(-inputs // group) if group else 1
    filled = -(-inputs // BLOCK) * BLOCK
    codes = x.new_empty((rows, filled), dtype=torch.uint8 if fp8 else torch.int8)
    scales = x.new_empty((groups, rows), dtype=torch.float32)
    rounding_kernel[rows, groups](
        x,
        codes,
        scales,
        rows,
        inputs,
        x.stride(0),
        GROUP=group,
        LANES=group or _ROUNDED_LANES,
        IS_FP8=fp8,
        num_warps=1 if group else 4,
    )
    return RoundedRows(codes.view(torch.float8_e4m3fn) if fp8 else codes, scales, x.dtype)


def _together(tokens: int) -> int:
    """Tokens per program in the kernels that process heads."""
    return _TOGETHER if tokens > _FEW_TOKENS else 1


def _lanes(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
