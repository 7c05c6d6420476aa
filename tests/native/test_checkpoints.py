"""Quantized checkpoints give the same logits as the same model with its weights unpacked first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hearth.backends.native.models.packed import PackedEmbedding, PackedLinear
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.hf_names import EMBEDDING, HEAD
from hearth.quant.json_fields import read_fields
from loaded_weights import WatchedFolder, load_folder
from native_decoders import decoder_of, greedy, logits_of
from quantized_checkpoints import (
    Quantize,
    awq,
    awq_config,
    compressed_config,
    fp8,
    fp8_config,
    gptq,
    gptq_config,
    int8,
    int8_config,
    nf4,
    nf4_config,
    packed,
    packed_config,
    plain_folder,
    quantize_folder,
)
from tiny_checkpoints import tiny_checkpoint
from tiny_folders import Tensors, change_json, rewrite

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()


def of_gptq(*values: int, **options: bool) -> tuple[Quantize, dict[str, Any]]:
    return gptq(*values, **options), gptq_config(*values, **options)


FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "GPTQ 4-bit": of_gptq(),
    "GPTQ 4-bit, asymmetric": of_gptq(sym=False),
    "GPTQ 4-bit, v2, in order of activations": of_gptq(4, 16, sym=False, order=True, v2=True),
    "GPTQ 4-bit, a scale for each output": of_gptq(4, -1, v2=True),
    "GPTQ 4-bit, a shorter last group": of_gptq(4, 64),
    "GPTQ 2-bit": of_gptq(2, 16),
    "GPTQ 2-bit, asymmetric": of_gptq(2, 16, sym=False),
    "GPTQ 3-bit": of_gptq(3, 32, order=True),
    "GPTQ 3-bit, asymmetric": of_gptq(3, 32, sym=False),
    "GPTQ 8-bit": of_gptq(8, 32),
    "GPTQ 8-bit, asymmetric": of_gptq(8, 32, sym=False, order=True),
    "AWQ 4-bit": (awq(), awq_config()),
    "AWQ 4-bit, a scale for each output": (awq(-1), awq_config(-1)),
    "INT4, in groups": (packed(4, 32), packed_config(4, 32)),
    "INT4, asymmetric, in order of activations": (
        packed(4, 16, sym=False, order=True),
        packed_config(4, 16, sym=False, order=True),
    ),
    "INT4, asymmetric": (packed(4, 32, sym=False), packed_config(4, 32, sym=False)),
    "INT6": (packed(6, 32), packed_config(6, 32)),
    "INT6, asymmetric": (packed(6, 16, sym=False), packed_config(6, 16, sym=False)),
    "INT8, packed": (packed(8), packed_config(8)),
    "INT8, packed, asymmetric": (packed(8, 32, sym=False), packed_config(8, 32, sym=False)),
    "INT8, packed, in order": (packed(8, 32, order=True), packed_config(8, 32, order=True)),
    "INT8, a scale for each output": (int8("channel"), int8_config("channel")),
    "INT8, one scale": (int8("tensor"), int8_config("tensor")),
    "INT8, asymmetric": (int8("channel", sym=False), int8_config("channel", sym=False)),
    "FP8 of compressed-tensors": (
        fp8(1, 0, ".weight_scale"),
        compressed_config(
            "float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}
        ),
    ),
    "FP8, blocks of compressed-tensors": (
        fp8(128, 128, ".weight_scale"),
        compressed_config(
            "float-quantized",
            {
                "num_bits": 8,
                "type": "float",
                "strategy": "block",
                "block_structure": [128, 128],
            },
        ),
    ),
    "FP8, blocks": (fp8(), fp8_config()),
    "FP8, small blocks of outputs": (fp8(16, 256), fp8_config((16, 256))),
    "FP8, one scale": (fp8(0, 0), fp8_config(None)),
    "NF4": (nf4(), nf4_config()),
    "NF4, double": (nf4(nested=True), nf4_config()),
    "NF4, other blocks": (nf4(128, nested=True), nf4_config()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format(name: str, tmp_path: Path) -> None:
    quantize, config = FORMATS[name]
    # Whole blocks of FP8 as well as partial ones.
    wide = {"hidden_size": 192, "intermediate_size": 320} if "FP8" in name else {}
    folder = tiny_checkpoint("llama2", tmp_path / "model", **wide)
    plain = plain_folder(folder, quantize_folder(folder, quantize, config), tmp_path / "plain")
    expected = logits_of(decoder_of(plain), TEXT)
    unpacked, report = load_folder(folder, packed=frozenset())
    assert torch.equal(logits_of(unpacked, TEXT), expected)
    assert not report.unknown and not report.skipped
    packed, _ = load_folder(folder, exact=True)
    for layer in packed.layers:
        assert isinstance(layer.qkv, PackedLinear) and isinstance(layer.down, PackedLinear)
    found = logits_of(packed, TEXT)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert greedy(packed, TEXT, 8) == greedy(decoder_of(plain), TEXT, 8)


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "mixtral", "phi3", "gemma2"])
def test_every_way_in_which_families_join_matrices(family: str, tmp_path: Path) -> None:
    """Biases, experts, matrices that are stored as one."""
    options: dict[str, Any] = {"sym": False, "order": True}
    folder = tiny_checkpoint(family, tmp_path / "model")
    tensors = quantize_folder(folder, gptq(4, 16, **options), gptq_config(4, 16, **options))
    plain = plain_folder(folder, tensors, tmp_path / "plain")
    expected = logits_of(decoder_of(plain), TEXT)
    assert torch.equal(logits_of(load_folder(folder, packed=frozenset())[0], TEXT), expected)
    found = logits_of(load_folder(folder, exact=True)[0], TEXT)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("is_tied", [False, True])
def test_an_output_matrix_that_is_quantized_too(is_tied: bool, tmp_path: Path) -> None:
    """Also under a config that wrongly declares it to be the embedding."""
    folder = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=False)
    tensors = quantize_folder(folder, gptq(), gptq_config(), is_quantized=lambda name: name == HEAD)
    plain = plain_folder(folder, tensors, tmp_path / "plain")
    expected = logits_of(decoder_of(plain), TEXT)
    change_json(folder / "config.json", tie_word_embeddings=is_tied)
    found, report = load_folder(folder, exact=True)
    assert isinstance(found.output, PackedLinear)
    assert not isinstance(found.embedding, PackedEmbedding) and not report.skipped
    assert (logits_of(found, TEXT) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", [EMBEDDING, HEAD])
def test_a_tied_matrix_that_is_quantized_is_there_once(name: str, tmp_path: Path) -> None:
    """Stored as embedding or as output: its rows are unpacked when they are gathered."""
    folder = tiny_checkpoint("llama2", tmp_path / "model", tie_word_embeddings=False)

    def keep_one(tensors: Tensors) -> None:
        tensors[name] = tensors[EMBEDDING]
        tensors.pop(HEAD if name == EMBEDDING else EMBEDDING)

    rewrite(folder, keep_one)
    options = {"sym": False, "order": True}
    tensors = quantize_folder(
        folder, gptq(8, 16, **options), gptq_config(8, 16, **options), is_quantized=name.__eq__
    )
    both = {EMBEDDING: tensors[name], HEAD: tensors[name].clone()}
    plain = plain_folder(folder, {**tensors, **both}, tmp_path / "plain")
    expected = logits_of(decoder_of(plain), TEXT)
    change_json(folder / "config.json", tie_word_embeddings=True)
    found, report = load_folder(folder, exact=True)
    assert isinstance(found.embedding, PackedEmbedding) and isinstance(found.output, PackedLinear)
    assert found.output.matrix is found.embedding.matrix and not report.unknown
    assert (logits_of(found, TEXT) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_biases_of_zeros_are_no_surprise(tmp_path: Path) -> None:
    folder = tiny_checkpoint("llama2", tmp_path)
    quantize_folder(folder, gptq(), gptq_config())
    down, up = (f"model.layers.0.mlp.{name}_proj.bias" for name in ("down", "up"))
    rewrite(folder, lambda tensors: tensors.update({down: torch.zeros(64), up: torch.ones(96)}))
    _, report = load_folder(folder)
    assert report.skipped == (down,) and report.unknown == (up,)


def test_what_is_stored_as_it_is_used_stays_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without kernels: codes of compressed-tensors and FP8. Other formats are copied and need no
    mapping.
    """
    monkeypatch.setattr("hearth.kernels.packed.cpu_library", lambda: None)
    for number, (quantize, config, mapped) in enumerate(
        (
            (packed(4, 32), packed_config(4, 32), ".weight_packed"),
            (packed(8), packed_config(8), ".weight_packed"),
            (fp8(), fp8_config(), ".weight"),
            (gptq(), gptq_config(), ""),
            (nf4(), nf4_config(), ""),
        )
    ):
        folder = tiny_checkpoint("llama2", tmp_path / str(number))
        quantize_folder(folder, quantize, config)
        checkpoint = read_checkpoint(read_fields(folder / "config.json"))
        file = WatchedFolder(folder, checkpoint)
        load_folder(folder, file=file)
        released, read = set(file.names_released), set(file.names_read)
        kept = {name for name in read - released if "_proj" in name and "scale" not in name}
        every = {name for name in read if mapped and name.endswith(f"_proj{mapped}")}
        assert kept == every and (len(every) == 14 or not mapped)
