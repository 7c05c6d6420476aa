"""Models split over several files named `<name>-00001-of-00003.gguf`.

Source: `llama_model_loader` and `llama_split_path` in llama.cpp, whose `gguf-split` writes them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hearth.quant.gguf.faults import corrupt, unsupported
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.reader import read_header
from hearth.quant.gguf.types import ValueType

_COUNT_KEY, _INDEX_KEY, _TENSORS_KEY = "split.count", "split.no", "split.tensors.count"


def shard_path(first: Path, index: int, count: int) -> Path | None:
    """Path of shard `index` (from 0); None if `first` is not named like the first of `count`."""
    ending = f"-{1:05d}-of-{count:05d}.gguf"
    if not first.name.endswith(ending):
        return None
    stem = first.name.removesuffix(ending)
    return first.with_name(f"{stem}-{index + 1:05d}-of-{count:05d}.gguf")


def with_shards(file: GgufFile) -> GgufFile:
    """`file` with its other shards; unchanged for a model in one file.

    Raises:
        CorruptFile: a shard is missing, damaged or does not match its name, or tensors are missing
            or duplicated.
        UnsupportedModel: `file` is not the first shard.
    """
    count = _u16(file, _COUNT_KEY, 0)
    if count <= 1:
        return file
    index = _u16(file, _INDEX_KEY)
    if index != 0:
        raise unsupported(
            file.path,
            f"key '{_INDEX_KEY}'",
            f"is part {index + 1} of {count} of a split model",
            f"Use the file whose name ends in -{1:05d}-of-{count:05d}.gguf.",
        )
    shards = tuple(_read_shard(file, index, count) for index in range(1, count))
    whole = replace(file, shards=shards)
    _check_tensor_names(whole)
    return whole


def _u16(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.integer(key, default)
    kind = file.value_types.get(key, ValueType.U16)
    if kind is not ValueType.U16:
        raise corrupt(file.path, f"key '{key}'", f"is of type {kind.name}, must be U16")
    return value


def _read_shard(first: GgufFile, index: int, count: int) -> GgufFile:
    path = shard_path(first.path, index, count)
    if path is None:
        raise corrupt(
            first.path,
            "file name",
            f"the first of {count} parts must end in -{1:05d}-of-{count:05d}.gguf",
            "Give the file its original name back.",
        )
    if not path.exists():
        raise corrupt(
            first.path,
            f"shard {index + 1} of {count}",
            f"{path.name} is missing",
            f"Put {path.name} beside it, or pull the model again.",
        )
    shard = read_header(path)
    stored_index = _u16(shard, _INDEX_KEY)
    if stored_index != index:
        raise corrupt(
            path, f"key '{_INDEX_KEY}'", f"{stored_index}, expected {index} from the name"
        )
    return shard


def _check_tensor_names(file: GgufFile) -> None:
    names: set[str] = set()
    for tensor in file.all_tensors:
        if tensor.name in names:
            raise corrupt(file.path, f"tensor {tensor.name!r}", "is in two parts")
        names.add(tensor.name)
    expected = file.integer(_TENSORS_KEY)
    if expected != len(names):
        raise corrupt(
            file.path,
            f"key '{_TENSORS_KEY}'",
            f"{expected:,} tensors, but the parts hold {len(names):,}",
        )
