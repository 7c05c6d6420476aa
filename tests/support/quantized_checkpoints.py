"""Checkpoints in the common download formats, packed here bit by bit: from codes, scales and zero
points, and the values that they represent, in float32.
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
from torch.nn import functional

from hearth.kernels.dequantize_codes import NF4
from tiny_folders import WEIGHTS, change_json

Tensors = dict[str, Tensor]
_MATRICES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")


@dataclass(frozen=True)
class Quantized:
    """One matrix."""

    tensors: Tensors
    """By the suffixes of their names."""
    plain: Tensor
    """[outputs, inputs] float32."""


Quantize = Callable[[Tensor, torch.Generator], Quantized]
Codes = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
"""`drawn_codes` or `nearest_codes`."""


def packed_words(codes: Tensor, bits: int) -> Tensor:
    """[rows, n] integers -> [rows, words] int32, packed consecutively from the lowest bit,
    zero-padded.
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
    """Quantize the matrices of the checkpoint in `folder`; returns the same tensors in float32.

    Args:
        quantize: quantizes one matrix. Its codes need not approximate the matrix: random ones do.
        config: the `quantization_config`.
        is_quantized: takes the name of a weight.
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
    """Codes [outputs, inputs], scales [groups, outputs] float16, zero points [groups, outputs], and
    the values that they represent, [outputs, inputs] float32.

    Args:
        weight: only its shape and magnitude are used.
        groups: [inputs], the group of each.
        is_even: the middle code is the zero point everywhere.
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


def nearest_codes(
    weight: Tensor, bits: int, groups: Tensor, generator: torch.Generator, *, is_even: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Like `drawn_codes`, but with codes that approximate `weight` as well as possible."""
    count, most = int(groups.max()) + 1, (1 << bits) - 1
    spread = groups.expand(weight.shape)
    shape = (len(weight), count)
    low = torch.zeros(shape).scatter_reduce(1, spread, weight, "amin")
    high = torch.zeros(shape).scatter_reduce(1, spread, weight, "amax")
    if is_even:
        high = torch.maximum(high, -low)
        low = -high
    scales = ((high - low) / most).clamp(min=1e-6).half().float()
    zeros = torch.full(shape, 1 << (bits - 1)) if is_even else (-low / scales).round().long()
    zeros = zeros.clamp(0, most)
    codes = (weight / scales[:, groups]).round().long() + zeros[:, groups]
    codes = codes.clamp(0, most)
    plain = (codes - zeros[:, groups]).float() * scales[:, groups]
    return codes, scales.T.half().contiguous(), zeros.T.contiguous(), plain


def gptq(
    bits: int = 4,
    group: int = 32,
    *,
    sym: bool = True,
    order: bool = False,
    v2: bool = False,
    codes_of: Codes = drawn_codes,
) -> Quantize:
    """The tensors of one matrix, with the names of AutoGPTQ and GPTQModel."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // (inputs if group == -1 else group)
        if order:
            groups = groups[torch.randperm(inputs, generator=generator)]
        codes, scales, zeros, plain = codes_of(weight, bits, groups, generator, is_even=sym)
        words = packed_words(zeros, bits)
        if not v2 and bits == 3:
            words = packed_words((zeros - 1) % (1 << bits), bits)
        elif not v2:  # Whole words, as in GPTQModel.
            words -= sum(1 << place for place in range(0, 31, bits))
        tensors = {
            ".qweight": packed_words(codes, bits).T.contiguous(),
            ".qzeros": words,
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
    """The tensors of one matrix, in the format "gemm" of AutoAWQ."""

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


Activations = dict[str, Any] | None


def compressed_config(
    layout: str, weights: dict[str, Any], activations: Activations = None
) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "format": layout,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"symmetric": True, **weights},
                "input_activations": activations,
            }
        },
        "ignore": ["lm_head"],
    }


def packed(
    bits: int,
    group: int = 0,
    *,
    sym: bool = True,
    order: bool = False,
    codes_of: Codes = drawn_codes,
) -> Quantize:
    """pack-quantized of compressed-tensors; group 0: one scale per output."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        outputs, inputs = weight.shape
        groups = torch.arange(inputs) // (group or inputs)
        if order:
            groups = groups[torch.randperm(inputs, generator=generator)]
        codes, scales, zeros, plain = codes_of(weight, bits, groups, generator, is_even=sym)
        tensors = {
            ".weight_packed": packed_words(codes, bits),
            ".weight_scale": scales.T.contiguous(),
            ".weight_shape": torch.tensor([outputs, inputs]),
        }
        if not sym:
            tensors[".weight_zero_point"] = packed_words(zeros, bits).T.contiguous()
        if order:
            tensors[".weight_g_idx"] = groups.to(torch.int32)
        return Quantized(tensors, plain)

    return quantize


def packed_config(
    bits: int, group: int = 0, *, sym: bool = True, order: bool = False
) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": sym,
        "strategy": "group" if group else "channel",
        "group_size": group or None,
        "actorder": "group" if order else None,
    }
    return compressed_config("pack-quantized", weights)


def int8(strategy: str, *, sym: bool = True) -> Quantize:
    """int-quantized of compressed-tensors: "tensor" or "channel"."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        rows = len(weight) if strategy == "channel" else 1
        codes = torch.randint(-128, 128, weight.shape, generator=generator).to(torch.int8)
        scales = (0.5 + torch.rand((rows, 1), generator=generator)) * weight.std() / 128
        scales = scales.to(torch.bfloat16)
        zeros = torch.randint(-128, 128, (rows, 1), generator=generator).to(torch.int8)
        tensors = {
            ".weight": codes,
            ".weight_scale": scales if strategy == "channel" else scales.flatten(),
            ".input_scale": torch.ones(1),
        }
        if not sym:
            tensors[".weight_zero_point"] = zeros.view(tensors[".weight_scale"].shape)
        offset = torch.zeros_like(zeros) if sym else zeros
        return Quantized(tensors, (codes.float() - offset.float()) * scales.float())

    return quantize


def int8_config(strategy: str, *, sym: bool = True) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": sym}
    return compressed_config("int-quantized", weights, {"num_bits": 8, "type": "int"})


def fp8(rows: int = 128, columns: int = 128, leaf: str = ".weight_scale_inv") -> Quantize:
    """FP8 with a scale for each block of `rows` outputs and `columns` inputs; 0: all of them."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        (outputs, inputs), size = weight.shape, (rows or len(weight), columns or weight.shape[1])
        padding = (0, -inputs % size[1], 0, -outputs % size[0])
        blocks = functional.max_pool2d(functional.pad(weight.abs(), padding)[None], size)
        scales = blocks[0].clamp(min=1e-6) / 448
        wide = scales.repeat_interleave(size[0], 0)[:outputs]
        wide = wide.repeat_interleave(size[1], 1)[:, :inputs]
        values = (weight / wide).to(torch.float8_e4m3fn)
        stored = scales if rows else scales.reshape([])
        return Quantized({".weight": values, leaf: stored}, values.float() * wide)

    return quantize


def fp8_config(block: tuple[int, int] | None = (128, 128)) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block and list(block),
        "modules_to_not_convert": ["lm_head"],
    }


def nf4(block: int = 64, *, nested: bool = False) -> Quantize:
    """Four bits of bitsandbytes, as transformers saves them."""

    def quantize(weight: Tensor, generator: torch.Generator) -> Quantized:
        outputs, inputs = weight.shape
        count = -(-outputs * inputs // block)
        flat = functional.pad(weight.flatten(), (0, count * block - outputs * inputs))
        scales = flat.view(count, block).abs().amax(1).clamp(min=1e-6)
        state: dict[str, Any] = {
            "quant_type": "nf4",
            "blocksize": block,
            "dtype": "float32",
            "shape": [outputs, inputs],
        }
        tensors = {".weight.quant_map": torch.tensor(NF4), ".weight.absmax": scales}
        if nested:
            numbers, offset = torch.linspace(-1, 1, 256), float(scales.mean())
            offsets = functional.pad(scales - offset, (0, -count % 256)).view(-1, 256)
            wide = offsets.abs().amax(1).clamp(min=1e-6)
            least = _nearest(numbers, offsets / wide[:, None]).flatten()[:count]
            scales = numbers[least] * wide.repeat_interleave(256)[:count] + offset
            tensors[".weight.absmax"] = least.to(torch.uint8)
            tensors[".weight.nested_absmax"] = wide
            tensors[".weight.nested_quant_map"] = numbers
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        content = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[".weight.quant_state.bitsandbytes__nf4"] = content
        each = scales.repeat_interleave(block)[: outputs * inputs]
        codes = _nearest(torch.tensor(NF4), weight.flatten() / each)
        # The first of two codes is in the high bits.
        tensors[".weight"] = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None]
        plain = torch.tensor(NF4)[codes] * each
        return Quantized(tensors, plain.view(outputs, inputs))

    return quantize


def _nearest(numbers: Tensor, values: Tensor) -> Tensor:
    """For each value the index of the nearest of `numbers`, which ascend."""
    return torch.bucketize(values.contiguous(), (numbers[1:] + numbers[:-1]) / 2)


def nf4_config() -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": "float32",
    }
