"""Decoders whose weights come through `load_weights`, and files that record what is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.weights import LoadReport, TensorFile, load_weights
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.scheme import Checkpoint
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.table import family_of_gguf, family_of_hf
from hearth.quant.gguf.preflight import check
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors import SafetensorsFolder
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.tied_weights import as_stored

CPU = torch.device("cpu")


class WatchedFolder(SafetensorsFolder):
    """Records which tensors are read and released."""

    def __init__(self, folder: str | Path, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(folder, checkpoint)
        self.names_read: list[str] = []
        self.names_released: list[str] = []

    def read(self, name: str) -> Tensor:
        self.names_read.append(name)
        return super().read(name)

    def release(self, name: str) -> None:
        self.names_released.append(name)
        super().release(name)


def load_folder(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    *,
    file: TensorFile | None = None,
    activations: torch.dtype | None = None,
    context: int | None = None,
    **options: Any,
) -> tuple[Decoder, LoadReport]:
    """The decoder of a folder with config.json and safetensors."""
    fields = read_fields(folder / "config.json")
    family = family_of_hf(fields)
    file = file or SafetensorsFolder(folder, read_checkpoint(fields))
    stored = as_stored(family.from_hf(fields), read_folder(folder), file.stored)
    decoder = Decoder(stored, CPU, dtype, activations=activations, context=context)
    report = load_weights(decoder, family, file, CPU, **options)
    return decoder, report


def load_gguf(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    activations: torch.dtype | None = None,
    **options: Any,
) -> tuple[Decoder, LoadReport]:
    """The decoder of a GGUF file."""
    header = check(path)
    file = GgufTensorFile(header)
    family = family_of_gguf(header.architecture)
    config = family.from_gguf(GgufFields(header))
    decoder = Decoder(config, CPU, dtype, activations=activations)
    return decoder, load_weights(decoder, family, file, CPU, **options)


def shard(folder: Path, tensors: Mapping[str, Tensor], order: Sequence[str], count: int) -> None:
    """Split `tensors` into `count` model.safetensors files of `folder` and an index, dealt out in
    `order`.
    """
    (folder / "model.safetensors").unlink()
    places = {}
    for number in range(count):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        dealt = {tensor: tensors[tensor] for tensor in order[number::count]}
        save_file(dealt, folder / name)
        places |= dict.fromkeys(dealt, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
