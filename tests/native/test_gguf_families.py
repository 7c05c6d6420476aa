"""Each family, read from a GGUF, computes the same as from safetensors and the same as llama.cpp
from the same file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.gguf.preflight import check
from hearth.quant.json_fields import read_fields
from native_decoders import decoder_of, decoder_of_gguf, family_and_config, greedy, logits_of
from raw_loop import RawModel
from tiny_checkpoints import FAMILIES, VOCABULARY, tiny_checkpoint
from tiny_ggufs import write_gguf

ARCHITECTURES = {
    "llama2": "llama",
    "llama3": "llama",
    "smollm2": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}
# llama.cpp computes GELU with a lookup table of float16 values.
TOLERANCES = {"gemma2": 1e-2, "gemma3": 1e-2}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_computes_what_safetensors_and_llama_cpp_compute(
    family: str, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, tmp_path)
    reference = decoder_of(folder)
    kind, _ = family_and_config(read_fields(folder / "config.json"))
    architecture = ARCHITECTURES.get(family, family)
    path = write_gguf(tmp_path / "tiny.gguf", architecture, kind, reference)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, VOCABULARY, (48,), generator=generator).tolist()

    decoder = decoder_of_gguf(path)
    assert (logits_of(decoder, text) - logits_of(reference, text)).abs().max() < 1e-4

    model = RawModel(path, reference.config.context)
    theirs = torch.from_numpy(model.after(text))
    tolerance = TOLERANCES.get(family, 1e-3)
    assert (logits_of(decoder, text)[-1] - theirs).abs().max() < tolerance
    if family not in TOLERANCES:
        assert greedy(decoder, text, 24) == model.greedy(text, 24)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        *((family, "attention.causal", False) for family in FAMILIES),
        ("smollm2", "rope.dimension_count", 8),
        ("smollm3", "rope.dimension_count", 8),
    ],
)
def test_variants_that_are_refused_by_name(
    family: str, key: str, value: object, tmp_path: Path
) -> None:
    folder = tiny_checkpoint(family, tmp_path)
    kind, _ = family_and_config(read_fields(folder / "config.json"))
    architecture = ARCHITECTURES.get(family, family)
    header = check(write_gguf(tmp_path / "tiny.gguf", architecture, kind, decoder_of(folder)))
    kind.from_gguf(GgufFields(header))
    changed = {**header.metadata, f"{architecture}.{key}": value}
    with pytest.raises(UnsupportedModel, match=key):
        kind.from_gguf(GgufFields(replace(header, metadata=changed)))
