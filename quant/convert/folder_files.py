"""The small JSON files next to a model's weights, and its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.json_fields import Fields, read_fields

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
ADDED_TOKENS: Final = "added_tokens.json"
GENERATION: Final = "generation_config.json"
TEMPLATE: Final = "chat_template.jinja"
TEMPLATE_JSON: Final = "chat_template.json"
ALL: Final = (
    *(CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS),
    *(GENERATION, TEMPLATE, TEMPLATE_JSON),
)
"""Files that are read if they exist."""
_OTHER_VOCABULARIES: Final = (
    *("tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt", "tekken.json"),
)
_LARGEST_BYTES: Final = 64 << 20
_LARGEST_TEMPLATE: Final = 1 << 20
DEFAULT: Final = "default"
"""Name of the chat template that is used unless another is chosen."""
_FURTHER_TEMPLATES: Final = "additional_chat_templates"
"""A folder of named templates; the default one is `chat_template.jinja` next to it."""


def optional_fields(folder: Path, name: str) -> Fields:
    """The object in `folder / name`; an empty one if there is no such file.

    Raises:
        CorruptFile: the file is not a JSON object, or is larger than 64 MiB.
    """
    path = folder / name
    return read_fields(path, _LARGEST_BYTES) if path.is_file() else Fields(path, {})


def token_text(fields: Fields, key: str) -> str | None:
    """The text of the token under `key`; None if there is none."""
    return text_of(fields.values.get(key))


def text_of(value: object) -> str | None:
    """The text of a token that is given as a string or as an object with its "content"."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def tokenizer_path(folder: Path) -> Path:
    """The `tokenizer.json` of `folder`.

    Raises:
        UnsupportedModel: there is only a vocabulary in another format.
        CorruptFile: there is no vocabulary.
    """
    path = folder / TOKENIZER
    if path.is_file():
        return path
    other = next((name for name in _OTHER_VOCABULARIES if (folder / name).is_file()), None)
    if other is None:
        raise CorruptFile(
            f"{folder} has no {TOKENIZER}.",
            "Download the whole folder of the model.",
            field=TOKENIZER,
        )
    raise UnsupportedModel(
        f"{folder} has {other} but no {TOKENIZER}, and only that is read.",
        f"Download the model's {TOKENIZER} into the folder, or write one with transformers: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        field=TOKENIZER,
    )


def chat_templates(folder: Path) -> dict[str, str]:
    """Jinja sources by name, with "default" for the default one if present. Template files take
    precedence over templates inside JSON files, as in transformers
    (`PreTrainedTokenizerBase._from_pretrained`).

    Raises:
        CorruptFile: a template is not UTF-8 or larger than 1 MiB, or a file is not a JSON object.
    """
    files = {path.stem: path for path in sorted((folder / _FURTHER_TEMPLATES).glob("*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files = {DEFAULT: folder / TEMPLATE, **files}
    if files:
        texts = {name: _template(path) for name, path in files.items()}
        return {name: text for name, text in texts.items() if text}
    for name in (TEMPLATE_JSON, TOKENIZER_CONFIG):
        templates = _named(optional_fields(folder, name).values.get("chat_template"))
        if templates:
            return templates
    return {}


def _template(path: Path) -> str:
    with path.open("rb") as stream:
        data = stream.read(_LARGEST_TEMPLATE + 1)
    if len(data) > _LARGEST_TEMPLATE:
        raise CorruptFile(
            f"{path} has more than 1 MiB, which no chat template needs.", field=path.name
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path} is no valid UTF-8.", field=path.name) from error


def _named(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT: value} if value else {}
    listed = value if isinstance(value, list) else []
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    return {
        str(entry["name"]): entry["template"]
        for entry in entries
        if entry.get("name") and isinstance(entry.get("template"), str)
    }
