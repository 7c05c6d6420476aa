"""Reading safetensors: files of the reference writer are read, and invalid ones are refused by
name.
"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hearth.quant.errors import CorruptFile, HearthError, UnsupportedModel
from hearth.quant.safetensors import DTYPES, SafetensorsFile, SafetensorsFolder
from hearth.quant.safetensors_header import MAX_TENSORS, read_header
from safetensors_damage import Damage, damages, one_tensor, safetensors_bytes, with_text

INDEX = "model.safetensors.index.json"
NAMES = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def test_what_the_reference_writes(tmp_path: Path) -> None:
    made = {
        "plain": torch.randn(3, 5),
        "half": torch.randn(7, 2).to(torch.bfloat16),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "nothing": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "eight bits": torch.randn(6).to(torch.float8_e4m3fn),
        "indices": torch.arange(5, dtype=torch.int16),
        "wide": torch.tensor([[2**40, -3]]),
    }
    save_file(made, tmp_path / "x.safetensors", {"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.stored) == set(made)
    for name, tensor in made.items():
        stored, found = file.stored[name], file.read(name)
        assert (stored.shape, DTYPES[stored.kind], stored.nbytes, stored.packing) == (
            tuple(tensor.shape),
            tensor.dtype,
            tensor.nbytes,
            "",
        )
        assert found.dtype == tensor.dtype and found.shape == tensor.shape
        assert (
            torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))
            if tensor.ndim
            else (found == tensor)
        )
    assert file.headers[0].metadata == {"format": "pt"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(dtype: str, tmp_path: Path) -> None:
    data = bytes(range(2 * DTYPES[dtype].itemsize))
    entry = {"dtype": dtype, "shape": [2], "data_offsets": [0, len(data)]}
    (tmp_path / "x.safetensors").write_bytes(one_tensor(entry, data))
    found = SafetensorsFile(tmp_path / "x.safetensors").read("a")
    assert found.dtype == DTYPES[dtype]
    assert bytes(found.view(torch.uint8).tolist()) == data or dtype == "BOOL"


def test_tensors_lie_over_the_map(tmp_path: Path) -> None:
    save_file({"a": torch.randn(64), "b": torch.randn(64)}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    first, again = file.read("a"), file.read("a")
    assert first.data_ptr() == again.data_ptr()
    kept = first.clone()
    file.release("a")
    file.close()
    del file
    gc.collect()
    assert torch.equal(first, kept), "the map lives as long as a tensor of it"


def test_a_header_of_odd_length_is_read_all_the_same(tmp_path: Path) -> None:
    text = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    for padding in range(8):
        path = tmp_path / f"{padding}.safetensors"
        path.write_bytes(
            with_text(text + " " * padding, torch.tensor([1.0, 2.0]).numpy().tobytes())
        )
        assert SafetensorsFile(path).read("a").tolist() == [1.0, 2.0]


def test_unknown_names(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    with pytest.raises(KeyError):
        file.read("b")


def test_there_are_many_kinds_of_damage() -> None:
    assert len(damages()) > 50
    assert len({damage.name for damage in damages()}) == len(damages())


@pytest.mark.parametrize("damage", damages(), ids=lambda damage: damage.name)
def test_damage_is_refused_by_name(damage: Damage, tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(damage.content)
    kind = UnsupportedModel if damage.is_unsupported else CorruptFile
    with pytest.raises(kind, match=damage.words) as caught:
        SafetensorsFile(path)
    assert type(caught.value) is kind
    assert path.name in caught.value.message and caught.value.hint
    assert caught.value.data["field"] and caught.value.data["path"] == str(path)


def test_more_values_than_tensors_need_are_not_even_parsed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(with_text('{"a": [' + "," * (MAX_TENSORS * 16 + 1)))
    with pytest.raises(CorruptFile, match="values, more than"):
        read_header(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="no regular file"):
        read_header(tmp_path)
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    with pytest.raises(CorruptFile, match="leads back to itself"):
        read_header(loop)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.safetensors")
        with pytest.raises(CorruptFile, match="no regular file"):
            read_header(tmp_path / "pipe.safetensors")


def test_a_file_that_changes_after_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors_bytes())
    header = read_header(path)
    path.write_bytes(safetensors_bytes()[:-4])
    monkeypatch.setattr("hearth.quant.safetensors.read_header", lambda _: header)
    with pytest.raises(CorruptFile, match=r"has .* now"):
        SafetensorsFile(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_random_damage_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bytes are changed, there is a typed error, or a file whose tensors lie inside it."""
    content = bytearray(safetensors_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] or content
    path = tmp_path_factory.getbasetemp() / "random.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except HearthError:
        return
    for name, tensor in file.stored.items():
        assert file.read(name).nbytes == tensor.nbytes <= len(content)


# Folders.


def sharded(folder: Path, **changes: Any) -> Path:
    """Three shards with two tensors each, and their index with `changes`."""
    places = {}
    for number, name in enumerate(NAMES):
        tensors = {f"t{number}{letter}": torch.full((2,), float(number)) for letter in "ab"}
        save_file(tensors, folder / name)
        places |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 48}, "weight_map": {**places, **changes}}
    index["weight_map"] = {key: value for key, value in index["weight_map"].items() if value}
    (folder / INDEX).write_text(json.dumps(index))
    return folder


def test_shards_are_one_model(tmp_path: Path) -> None:
    file = SafetensorsFolder(sharded(tmp_path))
    assert sorted(file.stored) == ["t0a", "t0b", "t1a", "t1b", "t2a", "t2b"]
    assert file.read("t2b").tolist() == [2.0, 2.0]
    assert len(file.headers) == 3


def test_shards_without_an_index(tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX).unlink()
    assert len(SafetensorsFolder(tmp_path).stored) == 6
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(CorruptFile, match=r"model-00002-of-00003.safetensors of 3 files missing"):
        SafetensorsFolder(tmp_path)


def test_one_file_in_a_folder(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "weights.safetensors")
    assert set(SafetensorsFolder(tmp_path).stored) == {"a"}
    save_file({"b": torch.ones(1)}, tmp_path / "model.safetensors")
    assert set(SafetensorsFolder(tmp_path).stored) == {"b"}


def test_links_into_a_store_are_followed(tmp_path: Path) -> None:
    """The Hub's cache keeps files elsewhere, and links to them."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    save_file({"a": torch.ones(1)}, tmp_path / "blobs" / "1234")
    (tmp_path / "model" / "model.safetensors").symlink_to("../blobs/1234")
    assert set(SafetensorsFolder(tmp_path / "model").stored) == {"a"}


@pytest.mark.parametrize(
    "place",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        ".hidden.safetensors",
        "pytorch_model.bin",
        "x\0.safetensors",
        17,
    ],
)
def test_an_index_that_points_elsewhere(place: object, tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"no name of a .safetensors file in the same folder"):
        SafetensorsFolder(sharded(tmp_path, t1a=place))


def test_missing_shards_are_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / NAMES[0]).unlink()
    (tmp_path / NAMES[2]).unlink()
    with pytest.raises(CorruptFile, match=f"{NAMES[0]} and 1 more of 3 files missing"):
        SafetensorsFolder(tmp_path)


def test_a_link_to_nowhere_and_a_loop(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard = tmp_path / NAMES[1]
    shard.unlink()
    shard.symlink_to("gone")
    with pytest.raises(CorruptFile, match="link to a file that is not there"):
        SafetensorsFolder(tmp_path)
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(CorruptFile, match="leads back to itself"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", INDEX])
def test_links_in_place_of_what_is_read_first(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(name)
    with pytest.raises(CorruptFile, match="leads back to itself"):
        SafetensorsFolder(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("gone")
    with pytest.raises(CorruptFile, match="link to a file that is not there"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gone": NAMES[0]}, "'gone'.*no file has it"),
        ({"t0a": NAMES[1]}, f"'t0a'.*it is in {NAMES[0]}"),
    ],
)
def test_an_index_that_contradicts_the_files(
    changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptFile, match=words):
        SafetensorsFolder(sharded(tmp_path, **changes))


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    sharded(tmp_path)
    save_file(
        {"t0a": torch.ones(2), "t1a": torch.ones(2), "t1b": torch.ones(2)}, tmp_path / NAMES[1]
    )
    with pytest.raises(CorruptFile, match=f"'t0a'.*is also in {NAMES[0]}"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is a list, not an object"),
        ("{", "is not JSON"),
        ("{}", "must be an object with a file for each tensor"),
        ('{"weight_map": []}', "must be an object"),
        ('{"weight_map": {}}', "must be an object"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "'a'.*appears twice"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_a_damaged_index(text: str, words: str, tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX).write_text(text)
    with pytest.raises(CorruptFile, match=words) as caught:
        SafetensorsFolder(tmp_path)
    assert INDEX in caught.value.message


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ((), "holds no .safetensors file"),
        (("pytorch_model.bin", "old.pt"), r"pickles only \(old.pt, pytorch_model.bin\)"),
        (("adapter_model.safetensors",), "is an adapter"),
        (("one.safetensors", "two.safetensors"), "2 .safetensors files and no"),
    ],
)
def test_folders_without_a_model(files: tuple[str, ...], words: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(safetensors_bytes())
    with pytest.raises(UnsupportedModel, match=words) as caught:
        SafetensorsFolder(tmp_path)
    assert caught.value.hint
