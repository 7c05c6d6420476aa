"""Weights are read from files unchanged, wherever they are stored; weights that do not fit are
refused by name before anything is read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hearth.backends.native.determinism import make_deterministic
from hearth.backends.native.models.packed import PackedEmbedding, PackedExperts, PackedLinear
from hearth.kernels import packed
from hearth.kernels.dequantize import dequantize
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.mxfp4 import pack_mxfp4
from hearth.quant.stored import STAYS_PACKED
from loaded_weights import WatchedFolder, load_folder, load_gguf, shard
from model_shapes import Shape
from native_decoders import decoder_of, logits_of
from random_models import write_model
from tiny_checkpoints import VOCABULARY, tiny_checkpoint
from tiny_folders import WEIGHTS, Tensors, pack_experts, rewrite

TEXT = torch.randint(3, 270, (24,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_shards_in_any_order(seed: int, tmp_path: Path) -> None:
    folder = tiny_checkpoint("qwen3", tmp_path)
    expected = logits_of(load_folder(folder)[0], TEXT)
    tensors = load_file(folder / WEIGHTS)
    order = sorted(tensors)
    random.Random(seed).shuffle(order)
    shard(folder, tensors, order, 3)
    assert torch.equal(logits_of(load_folder(folder)[0], TEXT), expected)


EMBEDDING = "model.embed_tokens.weight"


def test_what_is_stored_as_it_is_used_stays_where_it_is(tmp_path: Path) -> None:
    file = WatchedFolder(tiny_checkpoint("llama2", tmp_path))
    decoder, _ = load_folder(tmp_path, file=file)
    mapped = "model.layers.0.self_attn.o_proj.weight"
    fused = "model.layers.0.self_attn.q_proj.weight"
    assert decoder.get_parameter("layers.0.out.weight").data_ptr() == file.read(mapped).data_ptr()
    assert mapped not in file.names_released and EMBEDDING not in file.names_released
    assert fused in file.names_released
    released = len(file.names_released)
    assert released == len(set(file.names_released)) == 2 * 5, "queries, keys, values, gate and up"
    expected = logits_of(decoder, TEXT)
    file.close()
    del file
    assert torch.equal(logits_of(decoder, TEXT), expected)


def test_what_is_read_rather_than_mapped_leaves_the_file(tmp_path: Path) -> None:
    file = WatchedFolder(tiny_checkpoint("llama2", tmp_path))
    names = list(file.stored)
    decoder, _ = load_folder(tmp_path, file=file, mapped=False)
    mapped = "model.layers.0.self_attn.o_proj.weight"
    assert decoder.get_parameter("layers.0.out.weight").data_ptr() != file.read(mapped).data_ptr()
    assert sorted(set(file.names_released)) == sorted(names), "nothing stays in memory twice"
    over_the_file, _ = load_folder(tmp_path)
    assert torch.equal(logits_of(decoder, TEXT), logits_of(over_the_file, TEXT))


def test_what_changes_its_dtype_is_let_go_of(tmp_path: Path) -> None:
    file = WatchedFolder(tiny_checkpoint("gemma2", tmp_path))
    decoder, _ = load_folder(tmp_path, torch.bfloat16, file=file)
    assert set(file.names_released) == set(file.stored), "Gemma's norms are stored minus one"
    assert decoder.get_parameter("norm.weight").dtype == torch.float32
    assert decoder.get_parameter("layers.0.out.weight").dtype == torch.bfloat16
    wide = logits_of(load_folder(tmp_path)[0], TEXT)
    assert (logits_of(decoder, TEXT) - wide).abs().max() < 0.05 * wide.abs().max()


# Refusals.


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama2", "model.layers.1.self_attn.k_proj.weight"),
        ("llama2", "model.norm.weight"),
        ("qwen2", "model.layers.0.self_attn.v_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w2.weight"),
        ("gpt_oss", "model.layers.0.self_attn.sinks"),
    ],
)
def test_a_missing_tensor_is_named_before_anything_is_read(
    family: str, name: str, tmp_path: Path
) -> None:
    rewrite(tiny_checkpoint(family, tmp_path), lambda tensors: tensors.pop(name))
    file = WatchedFolder(tmp_path)
    with pytest.raises(CorruptFile) as caught:
        load_folder(tmp_path, file=file)
    assert f"'{name}'" in caught.value.message and caught.value.data["field"] == name
    assert not file.names_read


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".layers.1." in name]:
            del tensors[name]

    with pytest.raises(CorruptFile, match=r"and \d+ more") as caught:
        load_folder(rewrite(tiny_checkpoint("llama2", tmp_path), change))
    assert caught.value.data["missing"] == 9


def swap(tensors: Tensors, one: str, other: str) -> None:
    tensors[one], tensors[other] = tensors[other].clone(), tensors[one].clone()


MISSHAPEN: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "transposed": (
        "model.layers.0.mlp.down_proj.weight",
        lambda tensors: tensors.update(
            {
                "model.layers.0.mlp.down_proj.weight": tensors[
                    "model.layers.0.mlp.down_proj.weight"
                ].t()
            }
        ),
        r"\(96, 64\).*\(64, 96\)",
    ),
    "queries for keys": (
        "model.layers.0.self_attn.q_proj.weight",
        lambda tensors: swap(
            tensors,
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.k_proj.weight",
        ),
        r"\(64, 64\) and \(32, 64\) and \(32, 64\)",
    ),
    "a norm that is a matrix": (
        "model.norm.weight",
        lambda tensors: tensors.update({"model.norm.weight": torch.ones(1, 64)}),
        r"\(1, 64\).*\(64,\)",
    ),
    "a number": (
        "model.norm.weight",
        lambda tensors: tensors.update({"model.norm.weight": torch.tensor(1.0)}),
        r"\(64,\)",
    ),
    "another vocabulary": (
        EMBEDDING,
        lambda tensors: tensors.update({EMBEDDING: torch.ones(VOCABULARY + 1, 64)}),
        r"\(301, 64\).*\(300, 64\)",
    ),
}


@pytest.mark.parametrize("case", MISSHAPEN)
def test_a_misshapen_tensor_is_named_before_anything_is_read(case: str, tmp_path: Path) -> None:
    name, change, words = MISSHAPEN[case]

    def contiguous(tensors: Tensors) -> None:
        change(tensors)
        tensors.update({name: tensor.contiguous() for name, tensor in tensors.items()})

    rewrite(tiny_checkpoint("llama2", tmp_path), contiguous)
    file = WatchedFolder(tmp_path)
    with pytest.raises(CorruptFile, match=words) as caught:
        load_folder(tmp_path, file=file)
    assert name in caught.value.message and not file.names_read


def test_experts_of_different_shapes(tmp_path: Path) -> None:
    name = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    rewrite(
        tiny_checkpoint("mixtral", tmp_path),
        lambda tensors: tensors.update({name: torch.ones(3, 64)}),
    )
    with pytest.raises(CorruptFile, match="different shapes"):
        load_folder(tmp_path)


def test_extras_are_skipped_and_unknown_tensors_told(tmp_path: Path) -> None:
    known = (
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "vision_tower.blocks.0.weight",
        "multi_modal_projector.linear.weight",
        "model.layers.7.mlp.down_proj.weight",
        "mtp.layers.0.weight",
    )
    unknown = ("model.layers.0.self_attn.q_proj.bias", "something.else")
    folder = tiny_checkpoint("llama2", tmp_path)
    expected = logits_of(decoder_of(folder), TEXT)
    rewrite(
        folder, lambda tensors: tensors.update({name: torch.ones(4) for name in known + unknown})
    )
    decoder, report = load_folder(folder)
    assert report.skipped == tuple(sorted(known))
    assert sorted(report.unknown) == sorted(unknown)
    assert torch.equal(logits_of(decoder, TEXT), expected)


@pytest.mark.parametrize(
    "name", ["q_proj.qweight", "q_proj.weight_scale_inv", "q_proj.weight.absmax"]
)
def test_other_quantizations_are_refused(name: str, tmp_path: Path) -> None:
    full = f"model.layers.0.self_attn.{name}"
    rewrite(
        tiny_checkpoint("llama2", tmp_path),
        lambda tensors: tensors.update({full: torch.ones(2)}),
    )
    with pytest.raises(UnsupportedModel, match="quantized in a way") as caught:
        load_folder(tmp_path)
    assert full in caught.value.message


def test_integers_are_no_weights(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(
        tiny_checkpoint("llama2", tmp_path),
        lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}),
    )
    with pytest.raises(UnsupportedModel, match=f"'{name}' is of type I8"):
        load_folder(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, -1])
def test_what_is_no_number(value: float, row: int, tmp_path: Path) -> None:
    """It is found in the first and last rows of a tensor."""
    name = "model.layers.1.self_attn.q_proj.weight"

    def change(tensors: Tensors) -> None:
        tensors[name][row, 3] = value

    rewrite(tiny_checkpoint("llama2", tmp_path), change)
    with pytest.raises(CorruptFile, match=f"'{name}' has numbers that are NaN or infinite"):
        load_folder(tmp_path)


# Packed weights.

PACKED = Shape(
    architecture="llama",
    layers=3,
    width=256,
    heads=8,
    kv_heads=4,
    head_length=32,
    feed_forward=512,
    context=512,
    rope_base=1e4,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("file_type", ["q4_0", "q8_0", "q4_k_m"])
def test_packed_weights_stay_packed(file_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path = write_model(PACKED, file_type, tmp_path / "x.gguf")  # type: ignore[arg-type]
    decoder, report = load_gguf(path, dtype, exact=True)
    plain, plain_report = load_gguf(path, dtype, packed=frozenset())
    assert isinstance(decoder.layers[0].qkv, PackedLinear)
    assert isinstance(decoder.layers[0].gate_up, PackedLinear)
    assert isinstance(decoder.embedding, PackedEmbedding)
    assert isinstance(plain.layers[0].qkv, nn.Linear)
    assert not report.unknown and report.weight_bytes < 0.6 * plain_report.weight_bytes
    found, expected = logits_of(decoder, TEXT), logits_of(plain, TEXT)
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    assert (found - expected).abs().max() <= limit * expected.abs().max()


def test_parts_of_one_matrix_in_different_types(tmp_path: Path) -> None:
    path = write_model(PACKED, "q4_k_m", tmp_path / "x.gguf")
    decoder, _ = load_gguf(path)
    kinds = {layer.qkv.matrix.kind.partition(",")[0] for layer in decoder.layers}
    assert kinds == {"Q4_K+Q4_K+Q6_K", "Q4_K+Q4_K+Q4_K"}


def test_a_packed_tied_matrix_is_there_once(tmp_path: Path) -> None:
    path = write_model(replace(PACKED, tied=True), "q4_k_m", tmp_path / "x.gguf")
    decoder, report = load_gguf(path, exact=True)
    assert isinstance(decoder.output, PackedLinear)
    assert decoder.output.matrix is decoder.embedding.matrix
    assert report.weight_bytes <= 1.03 * path.stat().st_size, "scales are not requantized"
    expected = logits_of(load_gguf(path, packed=frozenset())[0], TEXT)
    assert (logits_of(decoder, TEXT) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    folder = pack_experts(tiny_checkpoint("gpt_oss", tmp_path))
    decoder, report = load_folder(folder, exact=True)
    plain, _ = load_folder(folder, packed=frozenset())
    assert isinstance(decoder.layers[0].experts.gate_up, PackedExperts)
    assert not report.unknown
    expected = logits_of(plain, TEXT)
    assert (logits_of(decoder, TEXT) - expected).abs().max() <= 1e-5 * expected.abs().max()
    stored = load_file(folder / WEIGHTS)
    name = "model.layers.1.mlp.experts.down_proj"
    rows = pack_mxfp4(stored[f"{name}_blocks"], stored[f"{name}_scales"])
    matrix = plain.get_parameter("layers.1.experts.down.weight")
    assert torch.equal(matrix, dequantize("MXFP4", rows))


def test_packed_experts_can_be_made_deterministic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a processor with kernels they already are: see `Prepared.is_row_invariant`."""
    monkeypatch.setattr(packed, "cpu_library", lambda: None)
    decoder, _ = load_folder(pack_experts(tiny_checkpoint("gpt_oss", tmp_path)))
    experts = decoder.layers[0].get_submodule("experts.down")
    assert isinstance(experts, PackedExperts)
    expected = logits_of(decoder, TEXT)
    make_deterministic(decoder)
    assert not isinstance(decoder.layers[0].get_submodule("experts.down"), PackedExperts)
    assert (logits_of(decoder, TEXT) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kept", [STAYS_PACKED, frozenset()], ids=["packed", "plain"])
def test_an_output_can_be_made_deterministic(
    kept: frozenset[str], tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits stay float32, and each row is independent of the others."""
    monkeypatch.setattr(packed, "cpu_library", lambda: None)
    path = write_model(replace(PACKED, tied=tied), "q8_0", tmp_path / "x.gguf")
    decoder, _ = load_gguf(path, torch.bfloat16, packed=kept)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(19, decoder.config.width, generator=generator).bfloat16()
    ids = torch.tensor([7, 0, 7])
    expected, rows = decoder.logits(hidden), decoder.output.rows(ids)
    make_deterministic(decoder)
    found = decoder.logits(hidden)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-2 * expected.abs().max()
    assert torch.equal(decoder.logits(hidden[5:6]), found[5:6])
    assert torch.equal(decoder.output.rows(ids), rows) and rows.dtype == torch.float32
    table = decoder.embedding(ids).float() if tied else rows
    assert torch.equal(table.bfloat16(), rows.bfloat16())
