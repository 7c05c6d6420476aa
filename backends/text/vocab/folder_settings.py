"""Special tokens as defined by the files next to a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken

from hearth.backends.errors import CorruptFile
from hearth.quant.convert.folder_files import (
    ADDED_TOKENS,
    CONFIG,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    optional_fields,
    text_of,
)
from hearth.quant.generation_defaults import read_generation_defaults

_NAMED: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class FolderSettings:
    """`tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, and the
    token ids of `config.json` and `generation_config.json`.
    """

    bos: str | None
    eos: str | None
    named: Mapping[str, str]
    """Further special tokens, by the names that chat templates use: "pad_token" ..."""
    added: tuple[tuple[AddedToken, int | None], ...]
    """Tokens outside the vocabulary proper, recognised before text is cut into words, in the order
    of their ids. Tokens that the files give no id come last; their ids are the vocabulary's.
    """
    end_ids: frozenset[int]


def read_settings(folder: Path) -> FolderSettings:
    """The settings in the files of `folder`; a missing file is treated as empty.

    Raises:
        CorruptFile: a file is not a JSON object, or a value has the wrong type.
    """
    config = optional_fields(folder, TOKENIZER_CONFIG).values
    names = {**optional_fields(folder, SPECIAL_TOKENS).values, **config}
    model = optional_fields(folder, CONFIG).values
    return FolderSettings(
        bos=text_of(names.get("bos_token")),
        eos=text_of(names.get("eos_token")),
        named=_named(names),
        added=tuple(_added(folder, config, names)),
        end_ids=read_generation_defaults(folder).eos_ids | _ids(model),
    )


def _ids(config: Mapping[str, Any]) -> frozenset[int]:
    """End ids in `config.json`, where older folders have them, without `generation_config.json`."""
    eos = config.get("eos_token_id")
    values = eos if isinstance(eos, list) else [eos]
    return frozenset(
        value for value in values if isinstance(value, int) and not isinstance(value, bool)
    )


def _named(names: Mapping[str, Any]) -> dict[str, str]:
    texts = {f"{role}_token": text_of(names.get(f"{role}_token")) for role in _NAMED}
    return {
        name: text
        for name, text in texts.items()
        if text is not None and name not in ("bos_token", "eos_token")
    }


def _added(
    folder: Path, config: Mapping[str, Any], names: Mapping[str, Any]
) -> list[tuple[AddedToken, int | None]]:
    by_text: dict[str, tuple[AddedToken, int | None]] = {}
    for key, value in _object(config, "added_tokens_decoder").items():
        text = text_of(value)
        if not key.isdecimal() or text is None:
            raise CorruptFile(f"{TOKENIZER_CONFIG} of {folder} has no token text for id {key!r}.")
        by_text[text] = _described(text, value), int(key)
    for text, ident in optional_fields(folder, ADDED_TOKENS).values.items():
        if not isinstance(ident, int):
            raise CorruptFile(f"added_tokens.json of {folder} has no id for {text!r}.")
        by_text.setdefault(text, (AddedToken(text), ident))
    listed = [token for name in _LISTS for token in _values(names.get(name))]
    for value in (*(names.get(f"{name}_token") for name in _NAMED), *listed):
        text = text_of(value)
        if text is not None and text not in by_text:
            by_text[text] = _described(text, {"special": True, **_flags(value)}), None
    return sorted(by_text.values(), key=lambda one: (one[1] is None, one[1] or 0))


def _described(text: str, value: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "special")
    given = {name: bool(value.get(name)) for name in flags}
    return AddedToken(text, normalized=bool(value.get("normalized", not given["special"])), **given)


def _flags(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _object(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise CorruptFile(
            f"{TOKENIZER_CONFIG} has a {type(value).__name__} as {name}, not an object."
        )
    return value


def _values(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []
