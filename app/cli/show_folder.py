"""What `hearth show` says of a folder of safetensors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

from hearth.app.library.local import FoundModel
from hearth.backends.contract import KvType, ModelSettings
from hearth.backends.errors import HearthError, InvalidParameter
from hearth.backends.native.footprint import PAGE
from hearth.backends.native.kv_sizes import KvSizes, kv_sizes
from hearth.backends.native.model_folder import ModelFolder, kv_number_bytes, read_model_folder
from hearth.backends.text.chat_templates import DEFAULT
from hearth.backends.text.vocab.generation_defaults import read_generation_defaults
from hearth.quant.convert.folder_files import chat_templates

_TOKENIZER = "tokenizer.json"


def describe_folder(found: FoundModel, *, tensors: bool) -> dict[str, Any]:
    """The object of `hearth show --json`, with the template, and the list of tensors on request:
    the same keys as of a GGUF.

    Raises:
        CorruptFile, UnsupportedModel, OSError: as `read_model_folder`.
    """
    folder = read_model_folder(found.path)
    templates = chat_templates(found.path)
    template = templates.get(DEFAULT)
    defaults = read_generation_defaults(found.path)
    ends = _end_tokens(found.path, folder.config.vocab_size, defaults.eos_ids)
    tensor_bytes = sum(tensor.nbytes for tensor in folder.tensors)
    sizes = {kv_type: _kv_sizes(folder, kv_type) for kv_type in get_args(KvType)}
    context = folder.config.context
    has_tokenizer = (found.path / _TOKENIZER).is_file()
    facts: dict[str, Any] = {
        "name": found.name,
        "title": None,
        "path": str(found.path),
        "origin": found.origin,
        "repo": found.repo or None,
        "size_bytes": folder.size_bytes,
        "files": len(folder.headers),
        "architecture": folder.architecture,
        "parameters": folder.parameters,
        "quantization": folder.stored,
        "bits_per_weight": round(8 * tensor_bytes / max(1, folder.parameters), 2),
        "context": context,
        "purpose": "text",
        "kv_bytes_per_token": {name: of and of.bytes_per_token for name, of in sizes.items()},
        "kv_window_bytes": {
            name: of and of.seen_window_bytes(context) for name, of in sizes.items()
        },
        "tokenizer": _TOKENIZER if has_tokenizer else None,
        "pre_tokenizer": None,
        "vocabulary": folder.config.vocab_size,
        "template_sha256": template and hashlib.sha256(template.encode()).hexdigest(),
        "templates": sorted(templates),
        "sampling_defaults": dict(defaults.named),
        "end_tokens": [{"id": ident, "text": text} for ident, text in ends.items()],
        "licence": None,
        "gguf_version": None,
        "tensor_count": sum(len(header.tensors) for header in folder.headers),
        "template": template,
    }
    if tensors:
        facts["tensors"] = [
            {"name": t.name, "type": t.dtype, "shape": list(t.shape), "size_bytes": t.nbytes}
            for t in folder.tensors
        ]
    return facts


def _end_tokens(folder: Path, rows: int, named: frozenset[int]) -> dict[int, str | None]:
    """The tokens that end an answer and their texts, by id. Where there is no tokenizer that can be
    read, those that `generation_config.json` names, without texts.
    """
    from hearth.backends.text.vocab.load import open_folder

    try:
        tokenizer = open_folder(folder, rows=rows)
    except HearthError:  # `--verify` says what is wrong with it, and so does who loads the model.
        return dict.fromkeys(sorted(named))
    ids = sorted(ident for ident in tokenizer.end_ids | named if ident < tokenizer.vocab_size)
    return {ident: tokenizer.decode([ident]) for ident in ids}


def _kv_sizes(folder: ModelFolder, kv_type: KvType) -> KvSizes | None:
    """None for types that the native runner does not keep."""
    try:
        number_bytes = kv_number_bytes(kv_type)
    except InvalidParameter:
        return None
    return kv_sizes(folder.config, ModelSettings(), number_bytes=number_bytes, page=PAGE)
