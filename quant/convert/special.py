"""The tokens that begin and end texts."""

from __future__ import annotations

from pathlib import Path

from hearth.quant.convert.folder_files import (
    CONFIG,
    GENERATION,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    optional_fields,
    token_text,
)
from hearth.quant.convert.model import Value
from hearth.quant.convert.vocabulary import Vocabulary
from hearth.quant.errors import UnsupportedModel
from hearth.quant.json_fields import Fields

_PREFIX = "tokenizer.ggml."
_FURTHER_ENDS = ("eot_token_id", "eom_token_id")


def special_values(folder: Path, vocabulary: Vocabulary) -> dict[str, Value]:
    """The keys `tokenizer.ggml.*` for single tokens.

    Raises:
        UnsupportedModel: GGUF cannot express the tokens around a text, or that many end tokens.
        CorruptFile: no token ends a text, or a value has the wrong type.
    """
    config = optional_fields(folder, TOKENIZER_CONFIG)
    names = Fields(config.path, {**optional_fields(folder, SPECIAL_TOKENS).values, **config.values})
    model = optional_fields(folder, CONFIG)
    size = len(vocabulary.tokens)
    ends = _ids(optional_fields(folder, GENERATION), "eos_token_id", size)
    ends += [one for one in _ids(model, "eos_token_id", size) if one not in ends]
    first, last = _surroundings(vocabulary)
    named = vocabulary.id_of(token_text(names, "eos_token"))
    eos = named if last is None else last
    if eos is None:
        if not ends:
            raise names.wrong("eos_token", "must name a token of the vocabulary")
        eos = ends[0]
    bos = vocabulary.id_of(token_text(names, "bos_token")) if first is None else first
    if bos is None:
        # llama.cpp uses a default token if none is given, and templates may refer to its text.
        bos = next(iter(_ids(model, "bos_token_id", size)), eos)
    values: dict[str, Value] = {
        f"{_PREFIX}bos_token_id": bos,
        f"{_PREFIX}eos_token_id": eos,
        f"{_PREFIX}add_bos_token": first is not None,
        f"{_PREFIX}add_eos_token": last is not None,
    }
    others = [one for one in dict.fromkeys((named, *ends)) if one is not None and one != eos]
    if len(others) > len(_FURTHER_ENDS):
        raise UnsupportedModel(
            f"{folder / GENERATION}: {len(others) + 1} tokens end an answer, and GGUF has words "
            f"for {len(_FURTHER_ENDS) + 1}.",
            "Remove those from eos_token_id that the model does not write.",
            path=str(folder / GENERATION),
            field="eos_token_id",
        )
    for key, ident in zip(_FURTHER_ENDS, others, strict=False):
        values[f"{_PREFIX}{key}"] = ident
    pad = vocabulary.id_of(token_text(names, "pad_token"))
    pads = [pad] if pad is not None else _ids(model, "pad_token_id", size)
    if pads:
        values[f"{_PREFIX}padding_token_id"] = pads[0]
    if vocabulary.model == "llama":
        unknown = vocabulary.id_of(vocabulary.file.unknown)
        if unknown is not None:
            values[f"{_PREFIX}unknown_token_id"] = unknown
        values[f"{_PREFIX}add_space_prefix"] = vocabulary.adds_space
    return values


def _surroundings(vocabulary: Vocabulary) -> tuple[int | None, int | None]:
    """The tokens before and after a text, from `tokenizer.json`. `add_bos_token` in
    `tokenizer_config.json` is ignored if that file exists, as in transformers
    (`PreTrainedTokenizerBase._from_pretrained`).
    """
    begin, end = vocabulary.file.begin, vocabulary.file.end
    if len(begin) > 1 or len(end) > 1:
        raise UnsupportedModel(
            f"{vocabulary.file.path}: {len(begin)} tokens stand before a text and {len(end)} "
            "behind it; GGUF has words for one before and one behind.",
            "Take a GGUF of this model.",
            path=str(vocabulary.file.path),
            field="post_processor",
        )
    return next(iter(begin), None), next(iter(end), None)


def _ids(fields: Fields, key: str, size: int) -> list[int]:
    """One id or a list of ids; ids without a token are left out."""
    value = fields.values.get(key)
    given = value if isinstance(value, list) else [] if value is None else [value]
    listed = Fields(
        fields.path, {str(place): ident for place, ident in enumerate(given)}, f"{key}."
    )
    ids = [listed.integer(place, least=-1) for place in listed.values]
    return list(dict.fromkeys(ident for ident in ids if 0 <= ident < size))
