"""Decoders over a checkpoint's weights, and their logits and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.paged_attention import PagedAttention
from hearth.backends.native.text_pages import TextPages
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.source import Choice, choose, rows_of, shape_of
from hearth.quant.families.table import family_of_gguf, family_of_hf
from hearth.quant.gguf.preflight import check
from hearth.quant.hf_names import by_canonical_name
from hearth.quant.json_fields import Fields, read_fields


def family_and_config(fields: Fields) -> tuple[Family, ModelConfig]:
    """The family and the config of a config.json."""
    family = family_of_hf(fields)
    return family, family.from_hf(fields)


def decoder_of(
    folder: Path, *, context: int | None = None, dtype: torch.dtype = torch.float32
) -> Decoder:
    """The decoder of a folder with config.json and model.safetensors."""
    family, config = family_and_config(read_fields(folder / "config.json"))
    stored = load_file(folder / "model.safetensors")
    return assembled(family, config, stored, context=context, dtype=dtype)


def decoder_of_gguf(path: Path, *, context: int | None = None) -> Decoder:
    """The decoder of a GGUF file without packed tensors."""
    header = check(path)
    family = family_of_gguf(header.architecture)
    config = family.from_gguf(GgufFields(header))
    names = {name: source.gguf for name, source in family.names(config).items()}
    return _filled(config, family, names, plain_tensors(path), context)


def plain_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a GGUF file, read with gguf-py."""
    return {
        tensor.name: torch.from_numpy(tensor.data.copy())
        for tensor in gguf.GGUFReader(path).tensors
    }


def assembled(
    family: Family,
    config: ModelConfig,
    stored: Mapping[str, Tensor],
    *,
    context: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """A decoder whose plain weights are assembled according to `family.names`."""
    spelled = {ours: stored[name] for ours, name in by_canonical_name(stored).items()}
    names = {name: source.hf for name, source in family.names(config).items()}
    return _filled(config, family, names, spelled, context, dtype)


def _filled(
    config: ModelConfig,
    family: Family,
    names: Mapping[str, tuple[Choice, ...]],
    stored: Mapping[str, Tensor],
    context: int | None,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    decoder = Decoder(config, torch.device("cpu"), dtype, context=context)
    wanted = dict(decoder.named_parameters())
    assert set(names) == set(wanted)
    axes = {name: source.axis for name, source in family.names(config).items()}
    for name, choices in names.items():
        choice = choose(choices, stored)
        assert choice is not None, f"{name} is not in the file"
        read = [[stored[one] for one in part.names] for part in choice]
        parts = [rows_of(part, tensors) for part, tensors in zip(choice, read, strict=True)]
        shapes = [
            shape_of(part, [tuple(tensor.shape) for tensor in tensors])
            for part, tensors in zip(choice, read, strict=True)
        ]
        assert shapes == [tuple(part.shape) for part in parts]
        tensor = torch.cat(parts, dim=axes[name]).contiguous()
        assert tensor.shape == wanted[name].shape, name
        put(decoder, name, tensor.to(wanted[name].dtype))
    return decoder


def put(decoder: Decoder, name: str, tensor: Tensor) -> None:
    """Replace a parameter by `tensor`."""
    module, _, leaf = name.rpartition(".")
    parameter = nn.Parameter(tensor, requires_grad=False)
    setattr(decoder.get_submodule(module), leaf, parameter)


def logits_of(decoder: Decoder, *texts: Sequence[int]) -> Tensor:
    """[all tokens, vocabulary] after each token of each text, computed side by side."""
    lengths = [len(text) for text in texts]
    tokens = torch.tensor([token for text in texts for token in text])
    positions = torch.cat([torch.arange(length) for length in lengths])
    dtype = decoder.activations
    pages = TextPages(
        decoder.config,
        lengths,
        step_tokens=max(lengths),
        dtypes=(dtype, dtype),
        device=tokens.device,
    )
    with torch.inference_mode():
        attend = PagedAttention(pages.pool, decoder.config, pages.rows(lengths), compute=dtype)
        return decoder.logits(decoder(tokens, positions, attend))


def greedy(decoder: Decoder, text: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that the decoder would generate after `text`, greedily."""
    written = list(text)
    for _ in range(count):
        written.append(int(logits_of(decoder, written)[-1].argmax()))
    return written[len(text) :]
