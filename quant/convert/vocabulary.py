"""The vocabulary of a folder in terms of GGUF.

For the types of tokens and how llama.cpp uses them, see `llama_vocab::impl::load` in
`llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hearth.quant.convert.folder_files import (
    ADDED_TOKENS,
    SPECIAL_TOKENS,
    TOKENIZER_CONFIG,
    chat_templates,
    optional_fields,
    token_text,
)
from hearth.quant.convert.pre_types import pre_type
from hearth.quant.convert.sentence_piece import BYTES, SPACE_MARK, prefixes_space, scores_of
from hearth.quant.convert.tokenizer_file import AddedToken, TokenizerFile, read_tokenizer
from hearth.quant.errors import CorruptFile, UnsupportedModel
from hearth.quant.gguf.faults import quoted
from hearth.quant.gguf.types import TokenKind
from hearth.quant.json_fields import Fields


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary. Lists have one entry for each row of the embedding, except `merges`."""

    file: TokenizerFile
    model: str
    """`tokenizer.ggml.model`: "gpt2" (byte level) or "llama" (scores)."""
    pre: str
    tokens: list[str]
    kinds: list[TokenKind]
    scores: list[float]
    """Empty if `model` is "gpt2"."""
    merges: list[str]
    """Empty if `model` is "llama"."""
    added: Mapping[str, AddedToken]
    adds_space: bool
    templates: Mapping[str, str]

    @property
    def swallows_behind(self) -> bool:
        """Whether some special tokens swallow the white space after them."""
        return any(token.swallows_behind for token in self.added.values() if token.is_special)

    def id_of(self, text: str | None) -> int | None:
        """The id of the token `text`; None if there is none."""
        if text is None:
            return None
        token = self.added.get(text)
        return self.file.ids.get(text) if token is None else token.ident


def read_vocabulary(folder: Path, rows: int) -> Vocabulary:
    """The vocabulary of the model in `folder`.

    Args:
        rows: of the embedding. Rows without a token get an unused one, and added tokens without a
            row are left out (Gemma 3 1B has one for images, which it does not support).

    Raises:
        CorruptFile: a file is missing or malformed, or files contradict each other.
        UnsupportedModel: GGUF cannot express the vocabulary.
    """
    file = read_tokenizer(folder)
    added = {
        text: token
        for text, token in _added_tokens(folder, file).items()
        if token.ident < rows or text in file.ids
    }
    tokens = _tokens(file, added, rows)
    templates = chat_templates(folder)
    is_byte_level = any(step.text("type") == "ByteLevel" for step in file.pre_tokenizers)
    if is_byte_level:
        return Vocabulary(
            file=file,
            model="gpt2",
            pre=pre_type(file),
            tokens=tokens,
            kinds=_kinds(tokens, file, added, with_bytes=False),
            scores=[],
            merges=_merges(file),
            added=added,
            adds_space=False,
            templates=templates,
        )
    if not file.spells_bytes:
        raise UnsupportedModel(
            f"{file.path}: characters without a token are not spelled in bytes, neither by a step "
            "ByteLevel nor by byte_fallback; GGUF has no words for such a vocabulary.",
            "Take a GGUF of this model.",
            path=str(file.path),
            field="model.byte_fallback",
        )
    adds_space = prefixes_space(file, is_chat=bool(templates))
    scores = scores_of(file, frozenset(added))
    least = -float(len(file.merges))
    return Vocabulary(
        file=file,
        model="llama",
        pre="default",
        tokens=tokens,
        kinds=_kinds(tokens, file, added, with_bytes=True),
        scores=[scores.get(text, least) for text in tokens],
        merges=[],
        added=added,
        adds_space=adds_space,
        templates=templates,
    )


def _added_tokens(folder: Path, file: TokenizerFile) -> dict[str, AddedToken]:
    """The added tokens by text, from `tokenizer.json` and the files next to it."""
    tokens = {token.text: token for token in file.added}
    config = optional_fields(folder, TOKENIZER_CONFIG)
    described = config.section("added_tokens_decoder") or Fields(config.path, {})
    for key in described.values:
        entry = described.section(key)
        if entry is None or not key.isdecimal():
            raise described.wrong(key, "must be a token under its id")
        _add(
            tokens, AddedToken(entry.text("content"), int(key), entry.flag("special", False)), file
        )
    listed = optional_fields(folder, ADDED_TOKENS)
    for text in listed.values:
        _add(tokens, AddedToken(text, listed.integer(text, least=0), is_special=False), file)
    names = [optional_fields(folder, name) for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG)]
    for fields in names:
        for text in _special_texts(fields):
            token = tokens.get(text)
            ident = file.ids.get(text) if token is None else token.ident
            if ident is not None:
                token = token or AddedToken(text, ident, is_special=True)
                tokens[text] = replace(token, is_special=True)
    return tokens


def _add(found: dict[str, AddedToken], token: AddedToken, file: TokenizerFile) -> None:
    have = found.get(token.text)
    ident = file.ids.get(token.text, token.ident) if have is None else have.ident
    if ident != token.ident:
        raise CorruptFile(
            f"{quoted(token.text)} is token {ident:,} of {file.path.name} and token "
            f"{token.ident:,} of the other files of the folder.",
            "Download the folder again.",
            path=str(file.path),
            field=token.text[:80],
        )
    if have is not None:
        token = replace(have, is_special=have.is_special or token.is_special)
    found[token.text] = token


def _special_texts(fields: Fields) -> list[str]:
    """Texts of the tokens that a file names for a role."""
    names = (f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
    texts = [text for name in names if (text := token_text(fields, name)) is not None]
    more = fields.values.get("additional_special_tokens")
    if isinstance(more, list):
        listed = Fields(fields.path, {str(place): value for place, value in enumerate(more)})
        texts += [text for key in listed.values if (text := token_text(listed, key)) is not None]
    return texts


def _tokens(file: TokenizerFile, added: Mapping[str, AddedToken], rows: int) -> list[str]:
    by_id = {ident: text for text, ident in file.ids.items()}
    by_id |= {token.ident: token.text for token in added.values()}
    largest = max(by_id)
    if largest >= rows:
        raise CorruptFile(
            f"{file.path}: {quoted(by_id[largest])} is token {largest:,}, but the model has "
            f"{rows:,} tokens.",
            "Its files belong to different models: download the folder again.",
            path=str(file.path),
            field="vocab",
        )
    tokens = [by_id.get(ident, f"[PAD{ident}]") for ident in range(rows)]
    for text in tokens:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise CorruptFile(
                f"{file.path}: {quoted(text)} is no valid text.", path=str(file.path), field="vocab"
            ) from error
    return tokens


def _kinds(
    tokens: list[str], file: TokenizerFile, added: Mapping[str, AddedToken], *, with_bytes: bool
) -> list[TokenKind]:
    taken = {*file.ids.values(), *(token.ident for token in added.values())}
    merged = {left + right for left, right in file.merges} if with_bytes else set()
    kinds = []
    for ident, text in enumerate(tokens):
        token = added.get(text)
        if ident not in taken:
            kind = TokenKind.UNUSED
        elif with_bytes and text == file.unknown:
            kind = TokenKind.UNKNOWN
        elif token is not None and token.is_special:
            kind = TokenKind.CONTROL
        # Added tokens that contain ▁ and that merges can make are ordinary pieces: they can match
        # only once spaces are written as ▁, which is when pieces are merged.
        elif token is not None and not (SPACE_MARK in text and text in merged):
            kind = TokenKind.USER_DEFINED
        elif with_bytes and text in BYTES:
            kind = TokenKind.BYTE
        else:
            kind = TokenKind.NORMAL
        kinds.append(kind)
    return kinds


def _merges(file: TokenizerFile) -> list[str]:
    for left, right in file.merges:
        if " " in left or " " in right:
            raise UnsupportedModel(
                f"{file.path}: {quoted(left + right)} has a space in it, which GGUF cannot hold "
                "in a merge.",
                "Take a GGUF of this model.",
                path=str(file.path),
                field="model.merges",
            )
    return [f"{left} {right}" for left, right in file.merges]
