"""Rotary positions (arXiv 2104.09864), in the half-split layout, with their scalings."""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from hearth.quant.families.config import Rope, RopeScaling


def inverse_frequencies(rope: Rope, context: int) -> Tensor:
    """[dimensions / 2] float32 radians per position, on the processor.

    Args:
        context: most tokens of a sequence. With longrope it decides once for all sequences which
            factors are used, as in llama.cpp, because keys rotated with different factors do not
            match.
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
    """The factor that cosine and sine are multiplied by."""
    return 1.0 if rope.scaling is None else rope.scaling.attention_factor


def cosine_and_sine(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position.

    They are computed again for each step and shared by its layers, because a table for 128k tokens
    would take tens of megabytes.

    Args:
        positions: [tokens] int64.
        frequencies: [d / 2] float32.
        factor: multiplies both results.

    Returns:
        Two tensors [tokens, 1, d] float32: the cosines of both halves, and the sines, negated for
        the first half, as `apply_rope` expects.
    """
    angles = positions[:, None, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    cosine, sine = torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)
    return (cosine, sine) if factor == 1.0 else (cosine * factor, sine * factor)


def moved(positions: Tensor, by: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines that move heads rotated for `positions` + `by` to `positions`.

    The layout is that of `cosine_and_sine`. Each angle is the difference of two angles that were
    rounded to float32, so that errors do not accumulate when heads are moved repeatedly. Angles are
    computed on the processor, because Apple GPUs have no float64.
    """
    device = positions.device
    positions, frequencies = positions.cpu(), frequencies.cpu()
    angles = (positions[:, None, None].float() * frequencies).double()
    angles -= ((positions + by)[:, None, None].float() * frequencies).double()
    cosine, sine = angles.cos().float().to(device), angles.sin().float().to(device)
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)


def apply_rope(heads: Tensor, cosine: Tensor, sine: Tensor, out: Tensor) -> None:
    """Rotate the first d dimensions of each head.

    Args:
        heads: [tokens, heads, head_dim] float32, head_dim at least d.
        cosine: [tokens, 1, d] float32, see `cosine_and_sine`.
        sine: [tokens, 1, d] float32.
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
    """Divide low frequencies by the factor, keep high ones, and interpolate in between.

    Source: Llama 3.1's reference code, `apply_scaling`.
    """
    turns = scaling.original_context * plain / (2 * pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain / scaling.factor * (1.0 - share) + plain * share


def _yarn(plain: Tensor, rope: Rope, scaling: RopeScaling) -> Tensor:
    """Interpolate between original frequencies and frequencies divided by the factor.

    Dimensions with many rotations within the original context keep their frequency; those with few
    are divided by the factor; there is a linear ramp in between. Source: arXiv 2309.00071,
    section 3.2.
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
    # Equal bounds would divide by zero.
    width = high - low or 0.001
    dimensions = torch.arange(len(plain), dtype=torch.float32)
    slowed = ((dimensions - low) / width).clamp(0.0, 1.0)
    return plain / scaling.factor * slowed + plain * (1.0 - slowed)
