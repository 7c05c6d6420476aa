"""Which safetensors files of a folder make up a model. Standard library only.

Source: the layout that transformers writes: `model.safetensors`, or shards and
`model.safetensors.index.json`, which lists the shard of each tensor.
"""

from __future__ import annotations

import re
from pathlib import Path

from hearth.quant.errors import UnsupportedModel
from hearth.quant.gguf.faults import corrupt, quoted, unsupported
from hearth.quant.safetensors_header import (
    SafetensorsHeader,
    parse_object,
    read_header,
    regular_size,
)

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_INDEX_BYTES = 100_000_000

_SUFFIX = ".safetensors"
_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHOWN_NAMES = 3
_MISSING_HINT = "Put it beside the others, or pull the model again."


def read_folder(folder: str | Path) -> tuple[SafetensorsHeader, ...]:
    """The headers of the files of the model in `folder`; each tensor is in one of the files.

    Raises:
        CorruptFile: a file is missing or damaged, or the index contradicts the files.
        UnsupportedModel: the folder holds no weights that can be read.
        OSError: a file cannot be opened.
    """
    location = Path(folder)
    single, index = location / SINGLE_NAME, location / INDEX_NAME
    if _is_there(single):
        return (read_header(single),)
    if _is_there(index):
        places = _read_index(index)
        headers = _read_shards(location, sorted(set(places.values())), index)
        _check_places(index, places, headers)
        return headers
    names = _unindexed(location)
    headers = _read_shards(location, names, location / names[0])
    _owners(headers)
    return headers


def _is_there(path: Path) -> bool:
    """Whether the path exists; also true for a dangling link, which opening then reports."""
    return path.exists() or path.is_symlink()


def _read_index(path: Path) -> dict[str, str]:
    """Maps each tensor to a file name."""
    size = regular_size(path)
    if size > MAX_INDEX_BYTES:
        raise corrupt(path, "index", f"{size:,} bytes, at most {MAX_INDEX_BYTES:,} allowed")
    with path.open("rb") as stream:
        raw = stream.read(MAX_INDEX_BYTES)
    weight_map = parse_object(path, raw, "index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise corrupt(path, "weight_map", "must be an object with a file for each tensor")
    for tensor, name in weight_map.items():
        if not _is_plain_name(name):
            raise corrupt(
                path,
                f"weight_map {quoted(tensor)}",
                f"{quoted(str(name))} is no name of a {_SUFFIX} file in the same folder",
                "Do not use this model: its index points elsewhere. Pull it again.",
            )
    return weight_map


def _is_plain_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.endswith(_SUFFIX)
        and not set(name) & set("/\\:\0")
        and not name.startswith(".")
        and len(name) <= 255
    )


def _unindexed(folder: Path) -> list[str]:
    """The files of a model without an index: a single file, or all files of a numbered set."""
    files = folder.glob(f"*{_SUFFIX}")
    names = sorted(path.name for path in files if path.stem != "medusa_lm_head")
    matches = [match for name in names if (match := _SHARD.fullmatch(name))]
    if matches:
        count = int(matches[0][2])
        return [f"model-{number + 1:05d}-of-{count:05d}{_SUFFIX}" for number in range(count)]
    if names == [f"adapter_model{_SUFFIX}"]:
        raise unsupported(
            folder / names[0],
            "file",
            "is an adapter, not a model",
            "Choose the model's own folder.",
        )
    if len(names) == 1:
        return names
    raise _no_weights(folder, names)


def _no_weights(folder: Path, found: list[str]) -> UnsupportedModel:
    if found:
        return unsupported(
            folder,
            "folder",
            f"has {len(found)} {_SUFFIX} files and no {INDEX_NAME} that says how they belong "
            "together",
            "Download the index as well, or keep one file.",
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        return unsupported(
            folder,
            "folder",
            f"holds weights as pickles only ({', '.join(pickles[:_SHOWN_NAMES])}), which may run "
            "code when they are opened; they were not opened",
            "Download the model's .safetensors files, or a GGUF of it.",
        )
    return unsupported(
        folder, "folder", f"holds no {_SUFFIX} file", "Download the model's .safetensors files."
    )


def _read_shards(folder: Path, names: list[str], said_by: Path) -> tuple[SafetensorsHeader, ...]:
    """The headers of the files `names`, which the file `said_by` requires."""
    missing = [name for name in names if not _is_there(folder / name)]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise corrupt(
            said_by,
            f"shard {quoted(missing[0])}",
            f"{missing[0]}{more} of {len(names)} files missing",
            _MISSING_HINT,
        )
    return tuple(read_header(folder / name) for name in names)


def _owners(headers: tuple[SafetensorsHeader, ...]) -> dict[str, str]:
    """Maps each tensor to the name of the file that holds it."""
    owners: dict[str, str] = {}
    for header in headers:
        for name in header.tensors:
            if name in owners:
                raise corrupt(header.path, f"tensor {quoted(name)}", f"is also in {owners[name]}")
            owners[name] = header.path.name
    return owners


def _check_places(
    index: Path, places: dict[str, str], headers: tuple[SafetensorsHeader, ...]
) -> None:
    """Check that every tensor is in the file that the index names."""
    owners = _owners(headers)
    for tensor, place in places.items():
        if owners.get(tensor) == place:
            continue
        where = f"it is in {owners[tensor]}" if tensor in owners else "no file has it"
        raise corrupt(index, f"weight_map {quoted(tensor)}", f"is not in {place}: {where}")
