"""Root mean square norms (arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def plain_rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) over the last dimension; the caller applies the weight.

    Args:
        x: [..., size] float32.

    Returns:
        [..., size] float32, a new tensor.
    """
    return functional.rms_norm(x, x.shape[-1:], None, eps)


def processor_rms_norm(x: Tensor, eps: float) -> Tensor:
    """`plain_rms_norm` in half as many operations: with few rows an operation costs more than its
    arithmetic (printed by `benchmarks/linear.py`).
    """
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * size.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
