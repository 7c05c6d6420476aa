"""`GET /tokenizer_info` of vLLM's API: special tokens and the chat template."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hearth.app.library.local import FoundModel
from hearth.app.server.query import query
from hearth.app.server.services import services_of
from hearth.backends.errors import ModelNotFound, UnsupportedParameter
from hearth.quant.convert.folder_files import (
    TOKENIZER_CONFIG,
    chat_templates,
    optional_fields,
    token_text,
)
from hearth.quant.gguf.reader import read_header

_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_GGUF_NAMES: Final = {"unk_token": "unknown", "pad_token": "padding"}


async def get_tokenizer_info(http: Request) -> Response:
    """The tokenizer of the model that `?model=` names, else of the default one. It is not loaded.

    Raises:
        ModelNotFound: there is no model of that name.
        UnsupportedParameter: it is on another machine.
        CorruptFile: its files cannot be read.
    """
    services = services_of(http)
    name = query(http, "model").get("model", services.catalog.default.name)
    model = (await services.catalog.find(name)).found
    if model.remote is not None:
        raise UnsupportedParameter(
            "model",
            f"{model.name} is a remote model, whose tokenizer is unknown.",
            "Request it from the server that runs the model.",
        )
    return JSONResponse({"model": model.name, **await asyncio.to_thread(_read, model)})


def _read(model: FoundModel) -> dict[str, Any]:
    try:
        return _of_folder(model.path) if model.path.is_dir() else _of_gguf(model.path)
    except FileNotFoundError:  # Deleted since the library was listed.
        raise ModelNotFound(
            f'There is no model "{model.name}" any more.', "GET /v1/models lists the names."
        ) from None


def _of_folder(folder: Path) -> dict[str, Any]:
    fields = optional_fields(folder, TOKENIZER_CONFIG)
    tokens = {name: token_text(fields, name) for name in _TOKENS}
    return {**tokens, "chat_template": chat_templates(folder).get("default")}


def _of_gguf(path: Path) -> dict[str, Any]:
    header = read_header(path)
    texts = header.value("tokenizer.ggml.tokens", ())
    tokens: dict[str, Any] = {}
    for name in _TOKENS:
        stem = _GGUF_NAMES.get(name, name.removesuffix("_token"))
        ident = header.value(f"tokenizer.ggml.{stem}_token_id")
        known = isinstance(ident, int) and 0 <= ident < len(texts)
        tokens[name] = texts[ident] if known else None
    return {**tokens, "chat_template": header.chat_templates.get("default")}
