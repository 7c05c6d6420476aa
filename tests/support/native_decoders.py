"""Decoders over a checkpoint's weights, and their logits and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.paged_attention import PagedAttention
from hearth.backends.native.text_pages import TextPages
from hearth.backends.native.weights import LoadReport
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import Fields
from loaded_weights import load_folder, load_gguf


def family_and_config(fields: Fields) -> tuple[Family, ModelConfig]:
    """The family and the config of a config.json."""
    family = family_of_hf(fields)
    return family, family.from_hf(fields)


def decoder_of(
    folder: Path, *, context: int | None = None, dtype: torch.dtype = torch.float32
) -> Decoder:
    """The decoder of a folder with config.json and safetensors, all of which it knows."""
    return _plain(*load_folder(folder, dtype, context=context, mapped=False))


def decoder_of_gguf(path: Path) -> Decoder:
    """The decoder of a GGUF file, with its weights unpacked."""
    return _plain(*load_gguf(path, packed=frozenset(), mapped=False))


def _plain(decoder: Decoder, report: LoadReport) -> Decoder:
    assert not report.unknown
    assert report.weight_bytes == sum(one.nbytes for one in decoder.parameters())
    return decoder


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
