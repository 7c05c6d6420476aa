"""The tokenizer of a folder with a `tokenizer.json`, read by the `tokenizers` library."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Encoding, Tokenizer

from hearth.backends.contract.checks import check_text
from hearth.backends.errors import CorruptFile
from hearth.backends.text.vocab.base import BaseTokenizer
from hearth.backends.text.vocab.byte_alphabet import to_bytes
from hearth.backends.text.vocab.folder_settings import FolderSettings
from hearth.backends.text.vocab.merges import BYTE_TOKEN
from hearth.backends.text.vocab.special_ids import SpecialIds, special_ids

_LARGEST_BYTES: Final = 256 * 1024 * 1024
_NOWHERE: Final = "\U0010ffff"
"""A noncharacter, which no vocabulary contains."""


class JsonTokenizer(BaseTokenizer):
    """Implements `hearth.backends.text.tokenizer.Tokenizer`. Thread-safe: the library's switch for
    recognising special tokens is set under a lock.
    """

    def __init__(self, tokenizer: Tokenizer, settings: FolderSettings, *, rows: int = 0) -> None:
        """Take ownership of `tokenizer` and add the tokens that `settings` name.

        Args:
            rows: number of logits of the model, which may exceed the number of tokens (Qwen pads
                it to a multiple of 128); the extra ids have empty pieces.
        """
        self._lock = threading.Lock()
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        _add(tokenizer, settings.added)
        special = _special_ids(tokenizer, settings)
        self.bos_text, self.eos_text = settings.bos or "", settings.eos or ""
        self.named_tokens = settings.named
        self._begin, self._end = _surroundings(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        unspoken = {ident for ident, token in added.items() if token.special} | special.control
        # Text outside the vocabulary becomes the unknown token, which is not a forgery.
        self._forbidden = unspoken.difference(
            tokenizer.encode(_NOWHERE, add_special_tokens=False).ids
        )
        unspoken -= special.written
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        rules = _piece_rules(tokenizer)
        pieces = [b""] * max(rows, max(vocabulary.values(), default=-1) + 1)
        for text, ident in vocabulary.items():
            pieces[ident] = text.encode() if ident in added else rules.piece(text)
        keeps_text = rules.is_byte_level and tokenizer.normalizer is None
        self.longest_token_bytes = max(map(len, pieces), default=0) if keeps_text else 0
        """`ModelInfo.longest_token_bytes`."""
        super().__init__(
            pieces,
            special,
            unspoken=unspoken,
            control_tokens={added[one].content: one for one in sorted(unspoken) if one in added},
        )

    def encode(
        self, text: str, *, special: bool, add_bos: bool, add_eos: bool = False
    ) -> list[int]:
        """Token ids of `text` (see the protocol).

        Raises:
            InvalidParameter: `text` holds a lone surrogate.
        """
        check_text("text", text)
        begin = self._begin if add_bos else []
        end = self._end if add_eos else []
        return begin + (self._recognised(text) if special else self._plain(text)) + end

    def _recognised(self, text: str) -> list[int]:
        with self._lock:
            self._tokenizer.encode_special_tokens = False
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _plain(self, text: str) -> list[int]:
        """Ids of `text` without any control token, whatever the text contains.

        Where control tokens are in the vocabulary, the library may produce them from ordinary text
        (unigram models do); the text is then cut inside each of them and encoded again.
        """
        ids: list[int] = []
        pending = [text]
        while pending:
            part = pending.pop()
            with self._lock:
                self._tokenizer.encode_special_tokens = True
                encoding: Encoding = self._tokenizer.encode(part, add_special_tokens=False)
            part_ids = encoding.ids
            if self._forbidden.isdisjoint(part_ids):
                ids += part_ids
                continue
            pairs = zip(part_ids, encoding.offsets, strict=True)
            forged = [offsets for ident, offsets in pairs if ident in self._forbidden]
            cuts = [start + 1 for start, end in forged if end - start > 1]
            if cuts:
                pieces = [part[start:end] for start, end in pairwise((0, *cuts, len(part)))]
                pending += reversed(pieces)
            else:  # Control tokens of one character are dropped.
                ids += (ident for ident in part_ids if ident not in self._forbidden)
        return ids


def read_tokenizer(path: Path) -> Tokenizer:
    """The library's tokenizer of a `tokenizer.json`.

    Raises:
        CorruptFile: the file is too large, not JSON, or not readable by the library.
    """
    size = path.stat().st_size
    if size > _LARGEST_BYTES:
        raise CorruptFile(f"{path} has {size:,} bytes; at most 256 MiB are read.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise CorruptFile(
            f"tokenizers {tokenizers.__version__} cannot read {path}: {error}.",
            "Download the file again, or update Hearth.",
        ) from error


def _add(tokenizer: Tokenizer, added: Sequence[tuple[AddedToken, int | None]]) -> None:
    """Add the tokens that other files name and `tokenizer.json` lacks, except those without any id.
    Raises `CorruptFile` if a token would get a different id than those files give.
    """
    present = tokenizer.get_added_tokens_decoder()
    known = {token.content: token for token in present.values()}
    for token, ident in added:
        text, have = token.content, known.get(token.content)
        if have is None and ident is None and tokenizer.token_to_id(text) is None:
            continue
        if have is None or (token.special and not have.special):
            _add_one(tokenizer, token)
        if ident is not None and tokenizer.token_to_id(text) != ident:
            raise CorruptFile(
                f"{text!r} is token {tokenizer.token_to_id(text)} of tokenizer.json and"
                f" token {ident} of the other files of the folder.",
                "Download the folder again.",
            )


def _add_one(tokenizer: Tokenizer, token: AddedToken) -> None:
    add = tokenizer.add_special_tokens if token.special else tokenizer.add_tokens
    add([token])


def _special_ids(tokenizer: Tokenizer, settings: FolderSettings) -> SpecialIds:
    """The special ids among the added tokens. Tokens that are control tokens by their name, and
    marks that have a text, become special to the library, so that plain text cannot contain them.
    """
    added = {token.content: ident for ident, token in tokenizer.get_added_tokens_decoder().items()}
    eos = tokenizer.token_to_id(settings.eos) if settings.eos else None
    special = special_ids(added, {} if eos is None else {"eos": eos})
    for text, ident in added.items():
        if ident in special.control | special.written:
            tokenizer.add_special_tokens([AddedToken(text, special=True)])
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    ends = special.end_ids | {ident for ident in settings.end_ids if ident < size}
    return SpecialIds(ends, special.infill, special.control, special.written, special.ordinary)


def _surroundings(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that `tokenizer.json` puts before and after a text. `add_bos_token` in
    `tokenizer_config.json` is ignored in its favour, as in transformers
    (`PreTrainedTokenizerBase._from_pretrained`).
    """
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a", add_special_tokens=True).ids
    places = range(len(full) - len(bare) + 1)
    start = next((n for n in places if full[n : n + len(bare)] == bare), 0)
    return list(full[:start]), list(full[start + len(bare) :])


@dataclass(frozen=True, slots=True)
class _PieceRules:
    """How tokens are spelled, derived from the decoder."""

    is_byte_level: bool
    has_bytes: bool
    """<0x..> stands for a byte."""
    space: str
    """The text that stands for a space; "" if none does."""
    continues: str
    """Prefix of tokens that continue a word, where all other tokens begin one; "" if there is no
    such rule.
    """

    def piece(self, text: str) -> bytes:
        """The bytes that the token `text` stands for."""
        if self.is_byte_level:
            return to_bytes(text)
        byte = BYTE_TOKEN.fullmatch(text) if self.has_bytes else None
        if byte is not None:
            return bytes.fromhex(byte[1])
        if self.continues:
            goes_on = text.startswith(self.continues)
            text = text.removeprefix(self.continues) if goes_on else f" {text}"
        if self.space:
            text = text.replace(self.space, " ")
        return text.encode()


def _piece_rules(tokenizer: Tokenizer) -> _PieceRules:
    """The rules of a tokenizer, from its decoder or, if it has none, its pre-tokenizer."""
    parts = list(_parts(tokenizer.decoder)) or list(_parts(tokenizer.pre_tokenizer))
    kinds = {str(part.get("type")): part for part in parts}
    space = str(kinds["Metaspace"].get("replacement", "▁")) if "Metaspace" in kinds else ""
    for part in parts:
        if part.get("type") == "Replace" and part.get("content") == " ":
            pattern = part.get("pattern")
            space = str(pattern.get("String", "")) if isinstance(pattern, dict) else space
    return _PieceRules(
        is_byte_level="ByteLevel" in kinds,
        has_bytes="ByteFallback" in kinds,
        space=space,
        continues=str(kinds["WordPiece"].get("prefix", "##")) if "WordPiece" in kinds else "",
    )


def _parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """The settings of a decoder or pre-tokenizer, or of each member if it is a sequence."""
    if component is None:
        return
    state = json.loads(component.__getstate__())
    members = state.get("decoders") or state.get("pretokenizers") or [state]
    yield from (member for member in members if isinstance(member, dict))
