"""`read_header` agrees with gguf-py on valid files and refuses invalid ones by naming the field."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_builder
from gguf_damage import Malformed
from gguf_meaning_cases import MEANING
from gguf_raw import i32s, small_llama, string, strings, u32
from gguf_structure_cases import STRUCTURE
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.values import NumberArray, StringArray


def _write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def _processor_s(path: Path) -> float:
    """Processor time of one `check`."""
    started = time.process_time()
    check(path)
    return time.process_time() - started


def _ids(case: Malformed) -> str:
    return case.name


@pytest.mark.parametrize("case", [*STRUCTURE, *MEANING], ids=_ids)
def test_malformed_file_is_refused_by_name(case: Malformed, tmp_path: Path) -> None:
    path = _write(tmp_path, case.build())
    expected = CorruptFile if case.supported else UnsupportedModel
    with pytest.raises(expected) as caught:
        check(path)
    assert case.field in str(caught.value.data["field"])
    assert case.says in str(caught.value)
    assert caught.value.data["path"] == str(path)
    assert caught.value.hint
    assert "model.gguf" in caught.value.message


def test_case_names_are_unique() -> None:
    names = [case.name for case in (*STRUCTURE, *MEANING)]
    assert len(names) == len(set(names)) >= 100


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
def test_the_file_that_the_cases_damage_is_sound(tokenizer: str, tmp_path: Path) -> None:
    file = check(_write(tmp_path, small_llama(tokenizer).build()))
    assert file.architecture == "llama"


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    raw = small_llama()
    path = _write(tmp_path, raw.build())
    for end in reversed(range(len(raw.header()))):
        os.truncate(path, end)
        with pytest.raises(CorruptFile):
            read_header(path)


def test_control_characters_in_names_do_not_reach_the_message(tmp_path: Path) -> None:
    raw = small_llama()
    raw.tensors[3].name = "\x1b[31mred"
    raw.tensors[3].dims = (0,)
    with pytest.raises(CorruptFile) as caught:
        read_header(_write(tmp_path, raw.build()))
    assert "\x1b" not in str(caught.value)


def test_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "nowhere.gguf")


def test_bytes_after_the_last_tensor_are_ignored(tmp_path: Path) -> None:
    raw = small_llama()
    raw.tail = b"appended"
    assert check(_write(tmp_path, raw.build())).size_bytes == len(raw.build())


def test_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    raw = small_llama()
    raw.tensors.append(raw.tensors.pop(1))
    raw.tensors[-1].name, raw.tensors[-1].dims = "output_norm.weight", (32,)
    raw.put("general.alignment", u32(256))
    raw.alignment = 256
    whole = raw.build()
    assert read_header(_write(tmp_path, whole[: len(whole) - 128])).alignment == 256


def test_invalid_utf8_in_a_value_is_replaced(tmp_path: Path) -> None:
    raw = small_llama()
    raw.put("general.name", string(b"caf\xe9"))
    raw.put("x.list", strings([b"\xff", "ok"]))
    file = read_header(_write(tmp_path, raw.build()))
    assert file.value("general.name") == "caf\ufffd"
    assert file.value("x.list")[0] == "\ufffd"
    assert file.value("x.list").raw(0) == b"\xff"


def test_arrays_can_be_read_by_index_and_in_order(tmp_path: Path) -> None:
    raw = small_llama()
    raw.put("x.numbers", i32s([5, -6, 7]))
    raw.put("x.empty", strings([]))
    file = read_header(_write(tmp_path, raw.build()))
    numbers, empty = file.value("x.numbers"), file.value("x.empty")
    assert isinstance(numbers, NumberArray)
    assert list(numbers) == [5, -6, 7]
    assert numbers[1] == -6
    assert isinstance(empty, StringArray)
    assert list(empty) == []
    with pytest.raises(IndexError):
        empty.raw(0)


@pytest.mark.parametrize(
    ("dtype", "quant", "hidden"),
    [("f32", None, 64), ("f16", None, 64), ("f32", "Q8_0", 256), ("f32", "Q4_0", 256)],
)
def test_agrees_with_gguf_py(dtype: str, quant: str | None, hidden: int, tmp_path: Path) -> None:
    path = gguf_builder.tiny_llama(
        tmp_path / "tiny.gguf",
        dtype=dtype,
        quant=quant,
        hidden=hidden,
        extra={"x.flag": True, "x.ratio": 0.5, "x.count": 7, "x.word": "wörd"},
    )
    ours, theirs = check(path), gguf.GGUFReader(path)
    assert ours.version == 3
    assert ours.alignment == theirs.alignment
    assert ours.data_offset == theirs.data_offset
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in keys:
        found = ours.value(key)
        if isinstance(found, StringArray | NumberArray):
            found = list(found)
        assert found == theirs.fields[key].contents(), key
    assert len(ours.tensors) == len(theirs.tensors)
    for mine, reference in zip(ours.tensors, theirs.tensors, strict=True):
        assert mine.name == reference.name
        assert mine.shape == tuple(int(length) for length in reference.shape)
        assert mine.type == reference.tensor_type
        assert mine.nbytes == reference.n_bytes
        assert mine.elements == reference.n_elements
        assert ours.data_offset + mine.offset == reference.data_offset


def test_agrees_with_gguf_py_on_custom_alignment_and_every_value_type(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(128)
    for add, value in (
        (writer.add_uint8, 200),
        (writer.add_int8, -7),
        (writer.add_uint16, 60_000),
        (writer.add_int16, -30_000),
        (writer.add_uint32, 4_000_000_000),
        (writer.add_int32, -2_000_000_000),
        (writer.add_uint64, 1 << 63),
        (writer.add_int64, -(1 << 62)),
        (writer.add_float32, 0.25),
        (writer.add_float64, 1e300),
        (writer.add_bool, True),
    ):
        add(f"x.{add.__name__}", value)
    writer.add_array("x.floats", [0.5, 1.5])
    writer.add_array("x.flags", [True, False])
    writer.add_tensor("a", np.ones((3, 5), dtype=np.float32))
    writer.add_tensor("b", np.ones(7, dtype=np.float16))
    gguf_builder.save(writer)
    ours, theirs = read_header(path), gguf.GGUFReader(path)
    for key, value in ours.metadata.items():
        found = list(value) if isinstance(value, NumberArray) else value
        assert found == theirs.fields[key].contents(), key
    assert ours.alignment == 128
    assert [ours.data_offset + tensor.offset for tensor in ours.tensors] == [
        tensor.data_offset for tensor in theirs.tensors
    ]


def test_big_endian_file_of_gguf_py_is_unsupported(tmp_path: Path) -> None:
    path = gguf_builder.tiny_llama(tmp_path / "big.gguf", endian=gguf.GGUFEndian.BIG)
    with pytest.raises(UnsupportedModel, match="big-endian"):
        read_header(path)


def test_large_vocabulary_is_checked_in_half_a_second(tmp_path: Path) -> None:
    raw = small_llama()
    count = 150_000
    raw.put("tokenizer.ggml.tokens", strings([f"token{i}" for i in range(count)]))
    raw.put("tokenizer.ggml.merges", strings([f"tok en{i}" for i in range(count)]))
    raw.put("tokenizer.ggml.token_type", i32s([1] * count))
    raw.drop("tokenizer.ggml.scores")
    raw.tensor("token_embd.weight").dims = (32, count)
    raw.tensor("output.weight").dims = (32, count)
    path = _write(tmp_path, raw.build())
    assert check(path).value("tokenizer.ggml.tokens")[149_999] == "token149999"
    assert min(_processor_s(path) for _ in range(3)) < 0.5


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_not_a_file_is_refused_at_once(kind, tmp_path):
    path = tmp_path / "model.gguf"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UnsupportedModel, match="pipe, socket or device"):
        read_header(path)
