"""How keys and values of a head are stored: plain numbers, E4M3 without a scale, or Q8_0.

In a Q8_0 row, `head_dim` int8 codes are followed by the bytes of one float16 scale for each 32
codes: the same numbers as in ggml's blocks, but with the codes of a head contiguous. The kernels
for processors read and write the same layout (`kernels/cpu/rows.h`).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

Q8_0: Final = torch.int8
"""The dtype of tensors with rows of Q8_0."""
FP8: Final = torch.float8_e4m3fn
"""The dtype of tensors with rows of E4M3 (arXiv 2209.05433)."""
LARGEST_FP8: Final = 448.0
RUN: Final = 32
"""Numbers that share a scale."""
LARGEST: Final = 65504.0
"""Stored in place of infinities: the largest float16 number, whose products stay finite."""


def row_elements(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a row in a tensor of `dtype`."""
    return head_dim + head_dim // RUN * 2 if dtype == Q8_0 else head_dim


def to_rows(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert [..., head_dim] to rows [..., row_elements] of finite numbers; NaN becomes 0."""
    if dtype == FP8:
        clamped = torch.nan_to_num(numbers.float(), 0.0).clamp(-LARGEST_FP8, LARGEST_FP8)
        return clamped.to(FP8)
    if dtype != Q8_0:
        return torch.nan_to_num(numbers.to(dtype), 0.0, LARGEST, -LARGEST)
    runs = numbers.float().reshape(*numbers.shape[:-1], -1, RUN)
    runs = torch.nan_to_num(runs, 0.0, LARGEST, -LARGEST).clamp(-LARGEST, LARGEST)
    scales = runs.abs().amax(-1, keepdim=True) / 127
    codes = (runs * torch.where(scales > 0, 1 / scales, 0)).round().to(Q8_0)
    return torch.cat((codes.flatten(-2), scales.flatten(-2).half().view(Q8_0)), dim=-1)


def from_rows(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers [..., head_dim] of `rows`, as `dtype`."""
    if rows.dtype != Q8_0:
        return rows.to(dtype)
    head_dim = rows.shape[-1] * RUN // (RUN + 2)
    codes = rows[..., :head_dim].float()
    scales = rows[..., head_dim:].contiguous().view(torch.float16).float()
    return (codes * scales.repeat_interleave(RUN, dim=-1)).to(dtype)
