"""Rotary positions (arXiv 2104.09864), in the layout of halves, with their scalings."""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from hearth.quant.families.config import Rope, RopeScaling


def inverse_frequencies(rope: Rope, context: int) -> Tensor:
    """[dimensions / 2] float32 radians a position, on the processor.

    Args:
        context: tokens that a sequence may have. With longrope it decides, once for all, which
            factors are used, as llama.cpp does: keys that were rotated with others would not fit.
    """
    powers = torch.arange(0, rope.dimensions, 2, dtype=torch.float32) / rope.dimensions
    plain = 1.0 / rope.theta**powers
    scaling = rope.scaling
    if scaling is None:
        return plain
    if scaling.frequency_factors:
        return plain / torch.tensor(scaling.frequency_factors, dtype=torch.float32)
    match scaling.kind:
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling)
        case "yarn":
            return _yarn(plain, rope, scaling)
        case "longrope":
            long = context > scaling.original_context
            factors = scaling.long_factors if long else scaling.short_factors
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * rope.theta**powers)


def attention_factor(rope: Rope) -> float:
    """What cosine and sine are multiplied by."""
    return 1.0 if rope.scaling is None else rope.scaling.attention_factor


def cosine_and_sine(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Of every position, computed again for each step: a table for 128k tokens is tens of
    megabytes, and all layers of a step share these.

    Args:
        positions: [tokens] int64.
        frequencies: [d / 2] float32.
        factor: what both are multiplied by.

    Returns:
        Twice [tokens, 1, d] float32: the cosines of both halves, and the sines, which count
        negative for the first half, as `apply_rope` wants them.
    """
    angles = positions[:, None, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    cosine, sine = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return (cosine, sine) if factor == 1.0 else (cosine * factor, sine * factor)


def moved(positions: Tensor, by: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """As `cosine_and_sine`: what brings heads that were rotated for `positions` + `by` to
    `positions`. Angles are differences of those that were rounded to float32, so that nothing adds
    up when heads are moved often. They are computed on the processor: GPUs of Apple have no
    float64.
    """
    device = positions.device
    positions, frequencies = positions.cpu(), frequencies.cpu()
    angles = (positions[:, None, None].float() * frequencies).double()
    angles -= ((positions + by)[:, None, None].float() * frequencies).double()
    cosine, sine = angles.cos().float().to(device), angles.sin().float().to(device)
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)


def apply_rope(heads: Tensor, cosine: Tensor, sine: Tensor, out: Tensor) -> None:
    """Rotates the first d dimensions of each head.

    Args:
        heads: [tokens, heads, head_dim] float32, head_dim at least d.
        cosine: [tokens, 1, d] float32, see `cosine_and_sine`.
        sine: likewise.
        out: the result, [tokens, heads, head_dim] of any float dtype; it may be `heads`.
    """
    size = cosine.shape[-1]
    if heads.shape[-1] > size:
        if out is not heads:
            out[..., size:] = heads[..., size:]
        heads, out = heads[..., :size], out[..., :size]
    halves_swapped = torch.roll(heads, size // 2, dims=-1)
    torch.addcmul(heads * cosine, halves_swapped, sine, out=out)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are slowed down by the factor, short ones left, those between in proportion.
    Source: Llama 3.1's reference code, `apply_scaling`.
    """
    turns = scaling.original_context * plain / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain / scaling.factor * (1.0 - share) + plain * share


def _yarn(plain: Tensor, rope: Rope, scaling: RopeScaling) -> Tensor:
    """Dimensions that turn often within the original context stay, those that hardly turn are
    slowed down by the factor, with a ramp between. Source: arXiv 2309.00071, section 3.2.
    """

    def dimension_of(turns: float) -> float:
        return (
            rope.dimensions
            * log(scaling.original_context / (turns * 2 * pi))
            / (2 * log(rope.theta))
        )

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, rope.dimensions - 1)
    # Borders that meet would divide by zero.
    width = high - low or 0.001
    dimensions = torch.arange(len(plain), dtype=torch.float32)
    slowed = ((dimensions - low) / width).clamp(0.0, 1.0)
    return plain / scaling.factor * slowed + plain * (1.0 - slowed)
