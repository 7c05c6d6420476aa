"""Each family, converted: the weights are the folder's, and llama.cpp computes the same with them
as the folder's decoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from converting import converted
from hearth.quant.gguf.preflight import check
from native_decoders import decoder_of, decoder_of_gguf, logits_of
from raw_loop import RawModel
from tiny_checkpoints import FAMILIES, VOCABULARY
from tiny_folders import tiny_folder

# llama.cpp computes GELU with a lookup table of float16 values.
TOLERANCES = {"gemma2": 1e-2, "gemma3": 1e-2}
TOKENS = 64


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_folder_is_the_same_model(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(family, tmp_path / "tiny")
    path = converted(folder, tmp_path / "tiny.gguf")
    check(path)
    reference, decoder = decoder_of(folder), decoder_of_gguf(path)
    ours, theirs = decoder.config, reference.config
    assert (ours.context, ours.experts) == (theirs.context, theirs.experts)
    assert ours.for_context(ours.context).groups == theirs.for_context(theirs.context).groups
    stored, found = dict(reference.named_parameters()), dict(decoder.named_parameters())
    assert stored.keys() == found.keys()
    for name, weight in stored.items():
        assert torch.equal(weight, found[name]), name

    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, VOCABULARY, (48,), generator=generator).tolist()
    expected = logits_of(reference, text)
    assert (logits_of(decoder, text) - expected).abs().max() < 1e-4

    model = RawModel(path, reference.config.context)
    theirs = torch.from_numpy(model.after(text))
    assert (expected[-1] - theirs).abs().max() < TOLERANCES.get(family, 1e-3)
    if family not in TOLERANCES:
        written = model.greedy(text, TOKENS)
        for one in (reference, decoder):
            after_each = logits_of(one, text + written)[len(text) - 1 : -1]
            assert after_each.argmax(dim=-1).tolist() == written
    model.close()


SLIDING, FULL = "sliding_attention", "full_attention"
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.25,
}
PARTIAL = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("family", "changes", "is_whole_in_llama_cpp"),
    [
        ("llama2", {"rope_parameters": LINEAR}, True),
        ("llama2", {"attention_bias": True}, True),
        ("llama2", {"tie_word_embeddings": True}, True),
        ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": False}, True),
        ("phi3", {"rope_parameters": PARTIAL}, True),
        ("gemma3", {"layer_types": [SLIDING, SLIDING, FULL, SLIDING]}, True),
        ("gemma3", {"final_logit_softcapping": 20.0}, True),
        ("gpt_oss", {"layer_types": [FULL, SLIDING]}, True),
        ("mistral", {"sliding_window": 8}, False),
        ("gemma2", {"query_pre_attn_scalar": 64}, False),
    ],
)
def test_what_differs_inside_of_a_family(
    family: str, changes: dict[str, Any], is_whole_in_llama_cpp: bool, tmp_path: Path
) -> None:
    folder = tiny_folder(family, tmp_path / "tiny", **changes)
    path = converted(folder, tmp_path / "tiny.gguf")
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(3, VOCABULARY, (48,), generator=generator).tolist()
    expected = logits_of(decoder_of(folder), text)
    assert (logits_of(decoder_of_gguf(path), text) - expected).abs().max() < 1e-4
    model = RawModel(path, 256)
    off = float((expected[-1] - torch.from_numpy(model.after(text))).abs().max())
    model.close()
    assert (off < TOLERANCES.get(family, 1e-3)) is is_whole_in_llama_cpp
