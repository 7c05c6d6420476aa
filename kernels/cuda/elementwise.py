"""Norms and positions of heads, keeping keys and values, and gates on NVIDIA cards: one launch of a
kernel of `fused.py` each.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

_GATE_LANES: Final = 1024


def finish_heads(
    heads: Tensor,
    queries: int,
    norms: tuple[Tensor, Tensor, float] | None,
    rotary: tuple[Tensor, Tensor] | None,
) -> None:
    """Norm and rotary positions of queries and keys, in place.

    Args:
        heads: [tokens, heads, head_dim], the heads of a token contiguous, of any float dtype.
        queries: how many of the heads are queries; the others are keys.
        norms: weights [head_dim] float32 of queries and of keys, and epsilon; or none.
        rotary: cosine and sine [tokens, 1, d] float32, of which the second halves count, d at most
            head_dim; None: no positions.
    """
    from hearth.kernels.cuda.fused import heads_kernel

    if norms is None and rotary is None:
        return
    tokens, count, size = heads.shape
    turned = 0 if rotary is None else rotary[0].shape[-1]
    unused = heads
    weights = (unused, unused, 0.0) if norms is None else norms
    heads_kernel[tokens, count](
        heads,
        *weights[:2],
        *((unused, unused) if rotary is None else rotary),
        weights[2],
        heads.stride(0),
        QUERIES=queries,
        SIZE=size,
        TURNED=turned,
        LANES=_lanes(turned // 2),
        REST_LANES=_lanes(size - turned),
        HAS_NORMS=norms is not None,
        num_warps=1,
    )


def store_tokens(
    keys: Tensor, values: Tensor, slots: Tensor, key_value: Tensor, most: float
) -> None:
    """Keep keys and values of new tokens in a layer of a pool.

    Args:
        keys, values: [slots, kv_heads, head_dim], the last contiguous: views of one layout.
        slots: [tokens] int64.
        key_value: [tokens, 2, kv_heads, head_dim], the last three contiguous.
        most: what infinities become; NaN becomes 0.
    """
    from hearth.kernels.cuda.fused import store_kernel

    tokens, _, heads, size = key_value.shape
    store_kernel[tokens, 2 * heads](
        key_value,
        slots,
        keys,
        values,
        key_value.stride(0),
        *keys.stride()[:2],
        most,
        HEADS=heads,
        SIZE=size,
        LANES=_lanes(size),
        num_warps=1,
    )


def silu_up(both: Tensor) -> Tensor:
    """silu(gate) · up.

    Args:
        both: [rows, 2 · width], the last contiguous, gate before up.

    Returns:
        [rows, width] of the same dtype.
    """
    from hearth.kernels.cuda.fused import gate_kernel

    rows, width = len(both), both.shape[1] // 2
    out = both.new_empty((rows, width))
    if rows:
        grid = (rows, -(-width // _GATE_LANES))
        gate_kernel[grid](both, out, width, both.stride(0), LANES=_GATE_LANES)
    return out


def _lanes(count: int) -> int:
    return 1 << max(count - 1, 0).bit_length()
