"""Properties of a model's files for `/api/...`: digest, metadata, template, capabilities.

Every function here reads the disk: call it in a thread.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hearth.app.library.local import FoundModel
from hearth.app.library.model_files import model_files
from hearth.backends.errors import HearthError
from hearth.backends.models import ModelSettings
from hearth.backends.text.chat_templates import ChatTemplates, template_for, templates_of
from hearth.backends.text.output.families import takes_tools, thinks
from hearth.quant.convert.folder_files import chat_templates
from hearth.quant.gguf.file import ENCODERS, GgufFile, Value
from hearth.quant.gguf.quantize_file import manifest_path
from hearth.quant.gguf.reader import read_header

_BLOB: Final = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_TEMPLATE: Final = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The properties of a model's files.

    Attributes:
        metadata: of a GGUF; arrays are None unless requested.
        layers: 0 if unknown.
        problem: why the files could not be read; empty if they could.
    """

    template: str = ""
    licence: str = ""
    capabilities: tuple[str, ...] = ("completion",)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    layers: int = 0
    problem: str = ""


def file_facts(model: FoundModel, settings: ModelSettings, *, arrays: bool = False) -> FileFacts:
    """The facts of `model`, with the template that `settings` select.

    Args:
        arrays: include arrays of the metadata, such as the vocabulary.
    """
    if model.remote is not None:
        return FileFacts(capabilities=("completion", "tools"))
    try:
        if model.path.is_dir():
            templates = templates_of(settings, chat_templates(model.path))
            return FileFacts(template_for(templates, tools=False) or "", "", _abilities(templates))
        return _of_gguf(read_header(model.path), settings, arrays=arrays)
    except (HearthError, OSError) as error:
        return FileFacts(problem=str(error))


def _of_gguf(header: GgufFile, settings: ModelSettings, *, arrays: bool) -> FileFacts:
    templates = templates_of(settings, header.chat_templates)
    architecture = header.architecture
    licence = header.value("general.license")
    layers = header.value(f"{architecture}.block_count")
    capabilities = _abilities(templates)
    if architecture in ENCODERS or header.value(f"{architecture}.pooling_type"):
        capabilities = ("embedding",)
    elif any(
        f"tokenizer.ggml.{name}_token_id" in header.metadata for name in ("fim_pre", "prefix")
    ):
        capabilities = (*capabilities, "insert")
    return FileFacts(
        template_for(templates, tools=False) or "",
        licence if isinstance(licence, str) else "",
        capabilities,
        {
            name: _json(value, arrays=arrays)
            for name, value in header.metadata.items()
            if not name.startswith(_TEMPLATE)
        },
        layers if isinstance(layers, int) else 0,
    )


def _abilities(templates: ChatTemplates) -> tuple[str, ...]:
    can = {
        "completion": True,
        "tools": takes_tools(template_for(templates, tools=True)),
        "thinking": thinks(template_for(templates, tools=False)),
    }
    return tuple(name for name, is_possible in can.items() if is_possible)


def _json(value: Value, *, arrays: bool) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, bool | int | float):
        return value
    return [_json(item, arrays=True) for item in value] if arrays else None


def digest(model: FoundModel) -> str:
    """64 hexadecimal digits that identify the files of `model`.

    The SHA-256 of the file if it is known without reading it: in the caches of the Hugging Face Hub
    and Ollama, whose files are named by it, and for files that `hearth quantize` wrote. Otherwise a
    hash of path, size and modification time.
    """
    if model.remote is not None:
        return _hashed("remote", model.remote.url, model.remote.name)
    path = Path(os.path.realpath(model.path))
    if blob := _BLOB.fullmatch(path.name):
        return blob[1]
    parts = model_files(path) if path.is_dir() else (path,)
    try:
        states = [part.stat() for part in parts]
    except OSError:
        states = []
    if len(states) == 1 and (known := _quantized(path, states[0].st_size)):
        return known
    return _hashed(str(path), *(f"{state.st_size} {state.st_mtime_ns}" for state in states))


def _quantized(path: Path, size_bytes: int) -> str:
    """The digest in the manifest of a quantized file; empty if there is none."""
    try:
        result = json.loads(manifest_path(path).read_bytes())["result"]
        sha256 = str(result["sha256"])
        is_of_it = result["size_bytes"] == size_bytes
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return sha256 if is_of_it and _SHA256.fullmatch(sha256) else ""


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape")).hexdigest()
