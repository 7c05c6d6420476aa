"""Checks that a model's files fit together, without reading its weights and without torch.

Checks configuration, tokenizer, template, and the name and shape of each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hearth.backends.errors import UnsupportedModel
from hearth.backends.native.gguf_model import read_gguf_config
from hearth.backends.native.model_folder import read_model_folder
from hearth.backends.text.vocab import load as vocabularies
from hearth.quant.convert.folder_files import chat_templates
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.inventory import take_inventory
from hearth.quant.gguf import preflight
from hearth.quant.stored import LOADED, StoredTensor
from hearth.quant.tied_weights import as_stored


@dataclass(frozen=True, slots=True)
class Structure:
    """The result of the check."""

    family: str
    """Family of the native runner; "" if it cannot run the GGUF, which llama.cpp may."""
    skipped: tuple[str, ...] = ()
    """Tensors that are known but not needed."""
    unknown: tuple[str, ...] = ()
    """Unknown tensors: the model may not be what its configuration says."""


def check_structure(path: Path) -> Structure:
    """Check the GGUF file, or the folder of safetensors, at `path`.

    Raises:
        CorruptFile: a file is missing or damaged, or files contradict each other.
        UnsupportedModel: the family or the variant of a folder is not known, or its tokenizer
            cannot be used.
        ModelNotFound, OSError: something is missing.
    """
    if path.is_dir():
        folder = read_model_folder(path)
        vocabularies.open_folder(path)
        chat_templates(path)
        return _compared(
            folder.family, as_stored(folder.config, folder.headers, folder.by_name), folder.by_name
        )
    header = preflight.check(path)
    stored = {one.name: one.stored for one in header.all_tensors}
    try:
        return _compared(*read_gguf_config(header), stored, is_gguf=True)
    except UnsupportedModel:
        return Structure("")  # llama.cpp may run it; nothing more can be checked here.


def _compared(
    family: Family,
    config: ModelConfig,
    stored: Mapping[str, StoredTensor],
    *,
    is_gguf: bool = False,
) -> Structure:
    inventory = take_inventory(family, config, stored, is_gguf=is_gguf, kinds=LOADED)
    return Structure(family.name, inventory.skipped, inventory.unknown)
