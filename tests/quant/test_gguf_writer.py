"""Headers of new GGUF files: metadata is copied byte for byte, tensors have the right offsets."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_builder import tiny_llama
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf import preflight
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.values import StringArray
from hearth.quant.gguf.writer import lay_out, metadata_bytes, padded, pair_bytes


def write(path: Path, pairs: dict[str, bytes], data: bytes = b"") -> Path:
    tensors = [("a.weight", (8, 2), TensorType.F16, 32)] if data else []
    layout = lay_out(pairs, tensors)
    path.write_bytes(layout.header + data)
    return path


def test_metadata_of_a_model_is_taken_over_byte_for_byte(tmp_path: Path) -> None:
    extra = {"a.int": 7, "a.float": 0.5, "a.bool": True, "a.text": "über"}
    source = tiny_llama(tmp_path / "tiny.gguf", extra=extra)
    pairs = metadata_bytes(source)
    made = write(tmp_path / "made.gguf", pairs)
    assert metadata_bytes(made) == pairs
    before, after = read_header(source), read_header(made)
    assert list(before.metadata) == list(after.metadata)
    assert before.value_types == after.value_types
    for key, value in before.metadata.items():
        other = after.metadata[key]
        if isinstance(value, StringArray):
            assert isinstance(other, StringArray) and value.raw_strings() == other.raw_strings()
        elif hasattr(value, "element_type"):
            assert list(value) == list(other)
        else:
            assert value == other


def test_text_that_is_no_utf8_survives(tmp_path: Path) -> None:
    raw = b"\xff\xfe\x00 broken"
    pair = struct.pack("<Q", 5) + b"a.key" + struct.pack("<IQ", 8, len(raw)) + raw
    made = write(tmp_path / "made.gguf", {"a.key": pair})
    assert metadata_bytes(made)["a.key"] == pair


def test_gguf_py_reads_what_is_written(tmp_path: Path) -> None:
    pairs = {
        "general.architecture": pair_bytes("general.architecture", ValueType.STRING, "llama"),
        "a.number": pair_bytes("a.number", ValueType.U32, 41),
        "a.flag": pair_bytes("a.flag", ValueType.BOOL, True),
        "a.real": pair_bytes("a.real", ValueType.F32, 0.25),
    }
    weights = np.arange(16, dtype=np.float16)
    reader = gguf.GGUFReader(write(tmp_path / "made.gguf", pairs, weights.tobytes()))
    assert reader.fields["a.number"].contents() == 41
    assert reader.fields["a.flag"].contents() is True
    assert reader.fields["a.real"].contents() == 0.25
    (tensor,) = reader.tensors
    assert tensor.name == "a.weight" and list(tensor.shape) == [8, 2]
    assert (tensor.data.reshape(-1) == weights).all()


@given(
    sizes=st.lists(st.integers(1, 300).map(lambda count: 2 * count), max_size=12),
    alignment=st.sampled_from([8, 32, 64, 4096]),
)
def test_tensors_lie_aligned_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], alignment: int
) -> None:
    pairs = {"general.alignment": pair_bytes("general.alignment", ValueType.U32, alignment)}
    tensors = [(f"t{i}", (size // 2,), TensorType.F16, size) for i, size in enumerate(sizes)]
    layout = lay_out(pairs, tensors, alignment)
    assert len(layout.header) % alignment == 0
    made = tmp_path_factory.getbasetemp() / "aligned.gguf"
    made.write_bytes(layout.header + bytes(layout.size - len(layout.header)))
    at = 0
    for placed, size in zip(read_header(made).tensors, sizes, strict=True):
        assert placed.offset == at and placed.nbytes == size
        at += padded(size, alignment)
    assert layout.size == len(layout.header) + at


def test_a_header_that_was_damaged_meanwhile_is_refused(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf")
    source.write_bytes(source.read_bytes()[:500])
    with pytest.raises(CorruptFile):
        metadata_bytes(source)


def test_the_written_file_passes_the_check_of_every_model(tmp_path: Path) -> None:
    source = preflight.check(tiny_llama(tmp_path / "tiny.gguf"))
    tensors = [(t.name, t.shape, t.type, t.nbytes) for t in source.tensors]
    layout = lay_out(metadata_bytes(source.path), tensors)
    data = source.path.read_bytes()[source.data_offset :]
    made = tmp_path / "made.gguf"
    made.write_bytes(layout.header + data + bytes(layout.size - len(layout.header) - len(data)))
    assert [t.offset for t in preflight.check(made).tensors] == [t.offset for t in source.tensors]
