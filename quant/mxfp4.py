"""Conversion of MXFP4 from gpt-oss's safetensors to GGUF's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def pack_mxfp4(blocks: Tensor, scales: Tensor) -> Tensor:
    """Pack gpt-oss's two tensors into rows of GGUF's MXFP4 blocks, without loss.

    A block holds 32 values of four bits and one exponent. In `blocks`, byte i holds the values 2i
    (low bits) and 2i + 1; in GGUF, byte i holds the values i and i + 16, and the exponent comes
    first. Source: the layout of `block_mxfp4` in ggml-common.h.

    Args:
        blocks: [..., rows, groups, 16] uint8.
        scales: [..., rows, groups] uint8, exponents with a bias of 127.

    Returns:
        [..., rows, groups · 17] uint8.
    """
    import torch

    if blocks.shape[:-1] != scales.shape or blocks.shape[-1] != 16:
        raise ValueError(f"blocks {tuple(blocks.shape)} and scales {tuple(scales.shape)} differ")
    values = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2)
    packed = torch.empty((*scales.shape, 17), dtype=torch.uint8, device=blocks.device)
    packed[..., 0] = scales
    torch.bitwise_or(values[..., :16], values[..., 16:] << 4, out=packed[..., 1:])
    return packed.flatten(-2)
