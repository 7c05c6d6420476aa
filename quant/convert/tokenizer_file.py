"""Reads the parts of `tokenizer.json` that GGUF can express.

Source: the format that the `tokenizers` library writes (its `serialization` modules).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.quant.convert.folder_files import tokenizer_path
from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.faults import quoted
from hearth.quant.json_fields import Fields, read_fields

_LARGEST_BYTES: Final = 256 << 20
_MOST_TOKENS: Final = 1 << 24
_HINT: Final = "Download the file again."


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is recognized before the text is split."""

    text: str
    ident: int
    is_special: bool
    swallows_behind: bool = False
    """White space after the token belongs to it."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A byte-pair encoding."""

    path: Path
    ids: Mapping[str, int]
    """Ids of the vocabulary without added tokens, although it may contain some of these too."""
    merges: Sequence[tuple[str, str]]
    """Pairs in order of priority, highest first."""
    added: Sequence[AddedToken]
    normalizers: tuple[Fields, ...]
    pre_tokenizers: tuple[Fields, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    """Tokens that are put after a text; `begin` has those before it."""
    unknown: str | None
    spells_bytes: bool
    """Characters without a token become tokens such as <0x0A>."""
    ignores_merges: bool
    """A word that is a token becomes that token, whatever merging would produce."""


def read_tokenizer(folder: Path) -> TokenizerFile:
    """The `tokenizer.json` of `folder`.

    Raises:
        CorruptFile: the file is missing, or violates its format.
        UnsupportedModel: GGUF cannot express a vocabulary of this kind.
        OSError: the file cannot be read.
    """
    path = tokenizer_path(folder)
    fields = read_fields(path, _LARGEST_BYTES)
    model = fields.section("model")
    if model is None:
        raise fields.wrong("model", "must be given")
    # Files from 2021 leave out the type of BPE, the only model that has merges.
    kind = model.text("type", "BPE" if model.has("merges") else "")
    if kind != "BPE":
        raise model.unsupported("type", "BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.text(key, ""):
            raise model.unsupported(key, "none")
    ids = _ids(model)
    added = tuple(_added(fields))
    begin, end = _surroundings(fields)
    return TokenizerFile(
        path=path,
        ids=ids,
        merges=tuple(_merges(model, ids)),
        added=added,
        normalizers=_flat(fields, "normalizer", "normalizers"),
        pre_tokenizers=_flat(fields, "pre_tokenizer", "pretokenizers"),
        begin=begin,
        end=end,
        unknown=model.text("unk_token", "") or None,
        spells_bytes=model.flag("byte_fallback", False),
        ignores_merges=model.flag("ignore_merges", False),
    )


def _ids(model: Fields) -> Mapping[str, int]:
    vocabulary = model.section("vocab")
    if vocabulary is None or not vocabulary.values:
        raise model.wrong("vocab", "must have at least one token")
    ids: dict[str, int] = {}
    for text, ident in vocabulary.values.items():
        if isinstance(ident, bool) or not isinstance(ident, int) or not 0 <= ident < _MOST_TOKENS:
            raise _corrupt(model, f"vocab: {quoted(text)} has no id, but {str(ident)[:40]!r}")
        ids[text] = ident
    if len(set(ids.values())) != len(ids):
        raise _corrupt(model, "vocab: two tokens have the same id")
    return ids


def _merges(model: Fields, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Pairs of tokens, which are stored as lists or separated by a space."""
    merges = model.values.get("merges")
    if not isinstance(merges, list):
        raise model.wrong("merges", "must be a list")
    for place, merge in enumerate(merges):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2:
            raise _corrupt(model, f"merges[{place}] is no pair of tokens")
        left, right = parts
        if not isinstance(left, str) or not isinstance(right, str):
            raise _corrupt(model, f"merges[{place}] is no pair of tokens")
        for text in (left, right, left + right):
            if text not in ids:
                raise _corrupt(model, f"merges[{place}]: {quoted(text)} is not in the vocabulary")
        yield left, right


def _added(fields: Fields) -> Iterator[AddedToken]:
    for token in fields.sections("added_tokens"):
        yield AddedToken(
            token.text("content"),
            token.integer("id", least=0, most=_MOST_TOKENS),
            token.flag("special", False),
            token.flag("rstrip", False),
        )


def _flat(fields: Fields, key: str, list_key: str) -> tuple[Fields, ...]:
    """The steps under `key`, with sequences flattened."""
    section = fields.section(key)
    return () if section is None else tuple(_steps(section, list_key))


def _steps(section: Fields, list_key: str) -> Iterator[Fields]:
    if section.text("type") != "Sequence":
        yield section
        return
    for step in section.sections(list_key):
        yield from _steps(step, list_key)


def _surroundings(fields: Fields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The token ids before and after a text, from the template for single texts."""
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    for step in _flat(fields, "post_processor", "processors"):
        kind = step.text("type")
        if kind == "ByteLevel":
            continue
        if kind != "TemplateProcessing":
            raise step.unsupported("type", "TemplateProcessing and ByteLevel")
        before: list[int] = []
        behind: list[int] = []
        is_behind = False
        for piece in step.sections("single"):
            token = piece.section("SpecialToken")
            if token is None:
                is_behind = True
            else:
                (behind if is_behind else before).extend(_template_ids(step, token.text("id")))
        begin, end = tuple(before), tuple(behind)
    return begin, end


def _template_ids(step: Fields, name: str) -> tuple[int, ...]:
    tokens = step.section("special_tokens")
    token = None if tokens is None else tokens.section(name)
    ids = () if token is None else token.numbers("ids")
    if not ids:
        raise _corrupt(step, f"single: {quoted(name)} is not among its special_tokens")
    return tuple(int(ident) for ident in ids)


def _corrupt(fields: Fields, problem: str) -> CorruptFile:
    field = f"{fields.prefix}{problem.split(':')[0]}"
    return CorruptFile(
        f"{fields.path}: {fields.prefix}{problem}.", _HINT, path=str(fields.path), field=field
    )
