"""Whether a model's files fit together, without reading its weights: configuration, tokenizer,
template, and each tensor's name and shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hearth.backends.errors import UnsupportedModel
from hearth.backends.native.config import ModelConfig
from hearth.backends.native.families.family import Family
from hearth.backends.native.families.table import family_of_gguf
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import as_stored, read_model_folder
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.stored_weights import take_inventory
from hearth.backends.native.tensors import TensorFile
from hearth.backends.text.vocab import load as vocabularies
from hearth.quant.convert.folder_files import chat_templates
from hearth.quant.gguf import preflight
from hearth.quant.gguf.tensor_file import GgufTensorFile
from hearth.quant.safetensors import SafetensorsFolder


@dataclass(frozen=True, slots=True)
class Structure:
    """What was found right, and what stands out."""

    family: str
    """Of the native runner; "" where it does not know the architecture of a GGUF."""
    skipped: tuple[str, ...] = ()
    """Tensors that are known and not needed."""
    unknown: tuple[str, ...] = ()
    """Tensors that nobody knows: the model may not be what its configuration says."""


def check_structure(path: Path) -> Structure:
    """Check the GGUF file, or the folder of safetensors, at `path`.

    Raises:
        CorruptFile: a file is missing or damaged, or files contradict each other.
        UnsupportedModel: a folder of a family or variant that is not known, or without a tokenizer
            that can be read.
        ModelNotFound, OSError: something is not there.
    """
    if path.is_dir():
        folder = read_model_folder(path)
        vocabularies.open_folder(path)
        chat_templates(path)
        config = as_stored(folder.config, folder.headers)
        return _compare(folder.family, config, SafetensorsFolder(path), is_gguf=False)
    header = preflight.check(path)
    try:
        family_of_gguf(header.architecture)
    except UnsupportedModel:
        return Structure("")  # llama.cpp may well know it; all that can be said was checked.
    family, config = read_gguf_config(header)
    return _compare(family, config, GgufTensorFile(header), is_gguf=True)


def _compare(family: Family, config: ModelConfig, file: TensorFile, *, is_gguf: bool) -> Structure:
    """Every parameter against what is stored for it."""
    try:
        decoder = Decoder(config, torch.device("cpu"), torch.float32)
        shapes = {name: tuple(one.shape) for name, one in decoder.named_parameters()}
        found = take_inventory(family, config, shapes, file.stored, is_gguf=is_gguf)
    finally:
        file.close()
    return Structure(family.name, found.skipped, found.unknown)
