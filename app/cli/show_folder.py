"""What `hearth show` says of a folder of safetensors."""

from __future__ import annotations

import hashlib
from typing import Any, get_args

from hearth.app.library.local import FoundModel
from hearth.backends.contract import KvType
from hearth.backends.errors import InvalidParameter
from hearth.backends.native.model_folder import ModelFolder, read_model_folder
from hearth.backends.text.vocab.chat_template import read_chat_template

_TOKENIZER = "tokenizer.json"


def describe_folder(found: FoundModel, *, tensors: bool) -> dict[str, Any]:
    """The object of `hearth show --json`, with the template, and the list of tensors on request:
    the same keys as of a GGUF.

    Raises:
        CorruptFile, UnsupportedModel, OSError: as `read_model_folder`.
    """
    folder = read_model_folder(found.path)
    template = read_chat_template(found.path)
    tensor_bytes = sum(tensor.nbytes for tensor in folder.tensors)
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
        "context": folder.config.context,
        "kv_bytes_per_token": {kv_type: _kv_bytes(folder, kv_type) for kv_type in get_args(KvType)},
        "tokenizer": _TOKENIZER if has_tokenizer else None,
        "pre_tokenizer": None,
        "vocabulary": folder.config.vocab_size,
        "template_sha256": template and hashlib.sha256(template.encode()).hexdigest(),
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


def _kv_bytes(folder: ModelFolder, kv_type: KvType) -> int | None:
    """Bytes a token; None for types that the native runner does not keep."""
    try:
        return folder.kv_bytes_per_token(kv_type)
    except InvalidParameter:
        return None
