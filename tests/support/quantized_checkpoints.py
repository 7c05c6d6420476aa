"""Checkpoints in the formats that models are downloaded in, packed here bit by bit: from codes,
scales and codes for zero, and what these stand for, in float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tiny_folders import WEIGHTS, change_json

Tensors = dict[str, Tensor]
_MATRICES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")


@dataclass(frozen=True)
class Quantized:
    """One matrix."""

    tensors: Tensors
    """By the ends of their names."""
    plain: Tensor
    """[outputs, inputs] float32."""


Quantize = Callable[[Tensor, torch.Generator], Quantized]


def packed_words(codes: Tensor, bits: int) -> Tensor:
    """[rows, n] whole numbers -> [rows, words] int32, one after the other from the lowest bit on,
    zeros at the end.
    """
    values = codes.numpy().astype(np.uint8)
    ones = (values[..., None] >> np.arange(bits, dtype=np.uint8)) & 1
    rows = ones.reshape(len(values), -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))
    return torch.from_numpy(np.packbits(rows, axis=1, bitorder="little").view(np.int32).copy())


def quantize_folder(
    folder: Path,
    quantize: Quantize,
    config: dict[str, Any],
    *,
    is_quantized: Callable[[str], bool] = lambda name: name.endswith(_MATRICES),
) -> Tensors:
    """Quantizes the matrices of the checkpoint in `folder`; returns the same tensors in float32.

    Args:
        quantize: of one matrix. Its codes need not be near: drawn ones do.
        config: the `quantization_config`.
        is_quantized: by the name of a weight.
    """
    generator = torch.Generator().manual_seed(5)
    stored, plain = load_file(folder / WEIGHTS), {}
    for name in sorted(stored):
        plain[name] = stored[name]
        if is_quantized(name):
            found = quantize(stored.pop(name), generator)
            plain[name] = found.plain
            module = name.removesuffix(".weight")
            stored |= {f"{module}{leaf}": tensor for leaf, tensor in found.tensors.items()}
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})
    change_json(folder / "config.json", quantization_config=config)
    return plain


def plain_folder(folder: Path, tensors: Tensors, other: Path) -> Path:
    """The model of `folder` with these tensors, in `other`."""
    other.mkdir()
    for path in folder.iterdir():
        if path.name != WEIGHTS:
            (other / path.name).write_bytes(path.read_bytes())
    save_file(tensors, other / WEIGHTS, metadata={"format": "pt"})
    values = json.loads((other / "config.json").read_text())
    values.pop("quantization_config", None)
    (other / "config.json").write_text(json.dumps(values))
    return other


def drawn_codes(
    weight: Tensor, bits: int, groups: Tensor, generator: torch.Generator, *, is_even: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [outputs, inputs], scales [groups, outputs] float16, codes for zero [groups, outputs],
    and the numbers that they stand for, [outputs, inputs] float32.

    Args:
        weight: of which only shape and size matter.
        groups: [inputs], the group of each.
        is_even: the middle code stands for zero everywhere.
    """
    outputs, inputs = weight.shape
    count = int(groups.max()) + 1

    def whole(*shape: int) -> Tensor:
        return torch.randint(0, 1 << bits, shape, generator=generator)

    codes, zeros = whole(outputs, inputs), whole(count, outputs)
    if is_even:
        zeros.fill_(1 << (bits - 1))
    noise = torch.rand((count, outputs), generator=generator)
    scales = ((0.5 + noise) * weight.std() / (1 << (bits - 1))).to(torch.float16)
    plain = (codes - zeros.T[:, groups]).float() * scales.float().T[:, groups]
    return codes, scales, zeros, plain


def gptq(
    bits: int = 4, group: int = 32, *, sym: bool = True, order: bool = False, v2: bool = False
) -> Quantize:
    """The tensors of one matrix, as AutoGPTQ and GPTQModel name them."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // (inputs if group == -1 else group)
        if order:
            groups = groups[torch.randperm(inputs, generator=generator)]
        codes, scales, zeros, plain = drawn_codes(weight, bits, groups, generator, is_even=sym)
        stored_zeros = zeros if v2 else (zeros - 1) % (1 << bits)
        tensors = {
            ".qweight": packed_words(codes, bits).T.contiguous(),
            ".qzeros": packed_words(stored_zeros, bits),
            ".scales": scales,
            ".g_idx": groups.to(torch.int32),
        }
        return Quantized(tensors, plain)

    return quantize


def gptq_config(
    bits: int = 4, group: int = 32, *, sym: bool = True, order: bool = False, v2: bool = False
) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "sym": sym,
        "desc_act": order,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }


def awq(group: int = 32) -> Quantize:
    """The tensors of one matrix, as AutoAWQ's "gemm" has them."""

    def in_columns(codes: Tensor) -> Tensor:
        """[rows, columns] -> words of eight columns each, in AWQ's order."""
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        places = (torch.arange(codes.shape[1]).view(-1, 8)[:, order]).flatten()
        return packed_words(codes[:, places], 4)

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // (inputs if group == -1 else group)
        codes, scales, zeros, plain = drawn_codes(weight, 4, groups, generator, is_even=False)
        tensors = {
            ".qweight": in_columns(codes.T),
            ".qzeros": in_columns(zeros),
            ".scales": scales,
        }
        return Quantized(tensors, plain)

    return quantize


def awq_config(group: int = 32) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
