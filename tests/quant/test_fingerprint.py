"""The fingerprint of a model's files depends on their contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from gguf_builder import tiny_llama
from hearth.quant.fingerprint import SAMPLE_BYTES, SAMPLES, WeightFile, fingerprint
from hearth.quant.gguf import preflight
from hearth.quant.safetensors_header import read_header
from tiny_checkpoints import tiny_checkpoint

HEADER = 10_000


def of(path: Path) -> str:
    return fingerprint([WeightFile(path, HEADER)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(bytes(range(256)) * 4000)
    return path


def test_the_same_contents_have_the_same_one_wherever_they_are(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(file.read_bytes())
    assert of(copy) == of(file)


@pytest.mark.parametrize("at", [0, HEADER - 1, HEADER, 500_000, 1_023_999])
def test_an_edited_file_under_the_same_name_has_another(file: Path, at: int) -> None:
    before = of(file)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    assert of(file) != before


def test_a_longer_file_has_another(file: Path) -> None:
    before = of(file)
    file.write_bytes(file.read_bytes() + bytes(1))
    assert of(file) != before


def test_the_order_and_the_borders_of_files_count(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    one, two = WeightFile(file, HEADER), WeightFile(other, 2)
    assert fingerprint([one, two]) != fingerprint([two, one])
    assert fingerprint([two]) != fingerprint([WeightFile(other, 3)])


def test_of_a_large_file_only_samples_are_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as stream:
        stream.truncate(40 << 30)  # Sparse: reading all of it would take minutes.
    before = of(path)
    distance = (40 << 30) // SAMPLES
    for at, differs in [(HEADER + 5 * distance, True), (HEADER + 2 * SAMPLE_BYTES, False)]:
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(b"x")
        assert (of(path) != before) == differs
        before = of(path)


def test_headers_are_read_as_a_whole(tmp_path: Path) -> None:
    gguf = preflight.check(tiny_llama(tmp_path / "tiny.gguf"))
    [one] = gguf.weight_files
    assert one == WeightFile(gguf.path, gguf.data_offset)
    folder = tiny_checkpoint("llama2", tmp_path / "folder")
    header = read_header(folder / "model.safetensors")
    size = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert header.header_bytes == 8 + size
