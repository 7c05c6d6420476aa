"""Every weight is checked, and tensors with NaN or infinity are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gguf_builder import tiny_llama
from hearth.kernels.blocks import block_of, packings
from hearth.kernels.dequantize import dequantize
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.reader import read_header
from hearth.quant.verify import NotFinite, finite_rows, verify_model


def test_a_sound_model(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "x.gguf", quant="Q8_0")
    seen: list[tuple[int, int]] = []
    report = verify_model(path, lambda done, total: seen.append((done, total)))
    header = read_header(path)
    assert report.not_finite == () and report.unread == ()
    assert report.tensors == len(header.tensors)
    assert report.nbytes == sum(tensor.nbytes for tensor in header.tensors)
    assert seen == sorted(seen) and seen[-1] == (report.nbytes, report.nbytes)


def test_tensors_of_a_folder(tmp_path: Path) -> None:
    tensors = {
        "fine": torch.randn(6, 4),
        "whole": torch.arange(5),
        "nan": torch.zeros(9, 3, 4, dtype=torch.bfloat16),
        "inf": torch.tensor([1.0, float("-inf")], dtype=torch.float16),
        "eight bits": torch.tensor([1.0, float("nan")]).to(torch.float8_e4m3fn),
        "nothing": torch.empty(0, 5),
        "number": torch.tensor(float("nan")),
    }
    tensors["nan"][2, 1, 3] = float("nan")
    tensors["nan"][8, 0, 0] = float("inf")
    save_file(tensors, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        found = {one.name: one for one in verify_model(path).not_finite}
        assert found == {
            "nan": NotFinite("nan", rows=2, first_row=7),
            "inf": NotFinite("inf", rows=1, first_row=0),
            "eight bits": NotFinite("eight bits", rows=1, first_row=0),
            "number": NotFinite("number", rows=1, first_row=0),
        }


def test_a_packed_tensor(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "x.gguf", quant="Q4_0")
    header = read_header(path)
    tensor = next(one for one in header.tensors if one.name == "blk.1.attn_k.weight")
    content = bytearray(path.read_bytes())
    block = header.data_offset + tensor.offset + 5 * 36 + 18
    content[block : block + 2] = b"\x00\xfc"
    path.write_bytes(content)
    assert verify_model(path).not_finite == (NotFinite("blk.1.attn_k.weight", 1, 5),)


@pytest.mark.parametrize("packing", packings())
def test_rows_of_every_type(packing: str) -> None:
    """The result agrees with a check of the dequantized values."""
    size = block_of(packing)[1]
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(0, 256, (2000, 2 * size), dtype=np.uint8))
    expected = torch.isfinite(dequantize(packing, rows)).all(1)
    assert torch.equal(finite_rows(rows, packing), expected)
    assert packing == "NVFP4" or not expected.all()


def test_what_ends_the_walk(tmp_path: Path) -> None:
    class Cancelled(Exception):
        pass

    def cancel(done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        verify_model(tiny_llama(tmp_path / "x.gguf"), cancel)
    (tmp_path / "y.safetensors").write_bytes(b"")
    with pytest.raises(CorruptFile, match="empty"):
        verify_model(tmp_path / "y.safetensors")
