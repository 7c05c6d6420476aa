"""The chat template of a folder of safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hearth.backends.errors import CorruptFile
from hearth.backends.text.vocab.model_folder import read_json

_DEFAULT: Final = "default"
_LARGEST_BYTES: Final = 1024 * 1024


def read_chat_template(folder: Path) -> str | None:
    """The Jinja source of the default template: `chat_template.jinja`, else what
    `chat_template.json` or `tokenizer_config.json` has; None where there is none.

    Raises:
        CorruptFile: the template is no UTF-8 or has more than 1 MiB, or a file is no JSON object.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
        if len(data) > _LARGEST_BYTES:
            raise CorruptFile(f"{path} has more than 1 MiB, which no chat template needs.")
        try:
            return data.decode("utf-8") or None
        except UnicodeDecodeError as error:
            raise CorruptFile(f"{path} is no valid UTF-8.") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = _default_of(read_json(folder, name).get("chat_template"))
        if found is not None:
            return found
    return None


def _default_of(value: object) -> str | None:
    """The template, or the default one of several with names."""
    if isinstance(value, str):
        return value or None
    if not isinstance(value, list):
        return None
    named = {
        str(entry.get("name")): entry.get("template")
        for entry in value
        if isinstance(entry, Mapping)
    }
    return _default_of(named.get(_DEFAULT))
