"""The tensors of a GGUF, as PyTorch tensors."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from gguf_builder import save, tiny_llama
from hearth.kernels.dequantize import dequantize
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.shards import with_shards
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.safetensors import DTYPES


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_plain_tensors(dtype: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "x.gguf", dtype=dtype)  # type: ignore[arg-type]
    file = GgufTensorFile(check(path))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(file.stored) == set(theirs)
    for name, tensor in theirs.items():
        stored, found = file.stored[name], file.read(name)
        assert stored.shape == tuple(int(length) for length in reversed(tensor.shape))
        assert found.shape == stored.shape and found.dtype == DTYPES[stored.kind]
        assert stored.nbytes == found.nbytes == tensor.n_bytes and not stored.packing
        expected = gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        assert np.array_equal(found.float().numpy(), expected.reshape(found.shape))
    assert file.stored["token_embd.weight"].shape == (270, 64)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0"])
def test_packed_tensors(quant: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "x.gguf", quant=quant, ffn=96)  # type: ignore[arg-type]
    file = GgufTensorFile(check(path))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    name = "blk.1.ffn_down.weight"
    stored, rows = file.stored[name], file.read(name)
    assert (stored.shape, stored.kind, stored.packing) == ((64, 96), quant, quant)
    assert rows.shape == (64, 3 * (34 if quant == "Q8_0" else 18)) and rows.dtype == torch.uint8
    expected = gguf.quants.dequantize(np.asarray(theirs[name].data), theirs[name].tensor_type)
    assert np.array_equal(dequantize(quant, rows).numpy(), expected)
    assert file.stored["output_norm.weight"].packing == ""
    with pytest.raises(KeyError):
        file.read("blk.9.ffn_down.weight")


def test_tensors_lie_over_the_map(tmp_path: Path) -> None:
    file = GgufTensorFile(check(tiny_llama(tmp_path / "x.gguf")))
    first = file.read("output_norm.weight")
    kept = first.clone()
    assert file.read("output_norm.weight").data_ptr() == first.data_ptr()
    file.release("output_norm.weight")
    file.close()
    assert torch.equal(first, kept)


def test_shards_are_one_model(tmp_path: Path) -> None:
    """The second shard has its own tensors, at their own offsets."""
    first, second = (tmp_path / f"x-0000{number}-of-00002.gguf" for number in (1, 2))
    values = {"a": np.arange(40, dtype=np.float32), "b": np.arange(7, dtype=np.float32) + 0.5}
    for number, (path, name) in enumerate(((first, "a"), (second, "b"))):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 2)
        writer.add_tensor(name, values[name])
        save(writer)
    file = GgufTensorFile(with_shards(read_header(first)))
    assert {name: file.read(name).tolist() for name in file.stored} == {
        name: value.tolist() for name, value in values.items()
    }


def test_a_file_that_changes_after_its_check(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "x.gguf")
    header = check(path)
    shutil.copy(tiny_llama(tmp_path / "y.gguf", layers=1), path)
    with pytest.raises(CorruptFile, match=r"had .* bytes and has .* now"):
        GgufTensorFile(header)
