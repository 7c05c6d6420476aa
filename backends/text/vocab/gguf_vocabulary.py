"""The vocabulary in the metadata of a GGUF file.

Source: `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`. Defaults and the meanings of
names are the same, so that a file gives the same tokens with either runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from hearth.backends.errors import UnsupportedModel
from hearth.backends.text.vocab.patterns import PreType, pre_type
from hearth.backends.text.vocab.special_ids import Role, SpecialIds, special_ids
from hearth.quant.gguf.faults import corrupt
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.types import TokenKind
from hearth.quant.gguf.values import NumberArray, StringArray

PREFIX: Final = "tokenizer.ggml."
Name = TypeVar("Name")
SENTENCE_PIECE, BPE = "llama", "gpt2"
"""The values of `tokenizer.ggml.model` that the native runner supports."""
_KEEP_TEXT: Final = (SENTENCE_PIECE, BPE, "gemma4")
"""Kinds of vocabulary whose tokens are pieces of the text itself."""


def longest_token_bytes(file: GgufFile) -> int:
    """`ModelInfo.longest_token_bytes` of a file: an upper bound, because some characters take more
    bytes in the file's list of tokens than in text.
    """
    tokens = file.metadata.get(f"{PREFIX}tokens")
    keeps_text = file.metadata.get(f"{PREFIX}model") in _KEEP_TEXT
    return tokens.longest_bytes if keeps_text and isinstance(tokens, StringArray) else 0


_DEFAULT_BOS: Final = {SENTENCE_PIECE: 1, BPE: 11}
_DEFAULT_EOS: Final = {SENTENCE_PIECE: 2, BPE: 11, "t5": 1, "whitespace": 11}
NAMED_TOKENS: Final[Mapping[str, str]] = {
    "unk_token": f"{PREFIX}unknown_token_id",
    "sep_token": f"{PREFIX}seperator_token_id",
    "pad_token": f"{PREFIX}padding_token_id",
    "cls_token": f"{PREFIX}cls_token_id",
    "mask_token": f"{PREFIX}mask_token_id",
}
"""Keys of special tokens, by the names that chat templates use."""
_ROLE_KEYS: Final[Mapping[Role, tuple[str, ...]]] = {
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "fim_pre": ("prefix_token_id", "fim_pre_token_id"),
    "fim_suf": ("suffix_token_id", "fim_suf_token_id"),
    "fim_mid": ("middle_token_id", "fim_mid_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a file and the rules for encoding text."""

    model: str
    pre: PreType
    """How byte-pair encoding cuts words; empty for SentencePiece."""
    tokens: list[str]
    """Bytes that are not UTF-8 are lone surrogates, which no valid text contains."""
    kinds: list[TokenKind]
    scores: list[float]
    merges: list[str]
    special: SpecialIds
    bos: int | None
    eos: int | None
    named: Mapping[str, int]
    """Further special tokens that the file gives, by the names that chat templates use."""
    adds_bos: bool
    adds_eos: bool
    adds_space: bool
    """A space is put before text, so that its first word begins like any other."""
    strips_after: frozenset[int]
    """Special tokens that swallow the white space after them."""

    def spellable(self) -> dict[str, int]:
        """Ids of the tokens that ordinary text may become: all but control tokens and the marks
        in `SpecialIds.written`.
        """
        return {
            text: ident
            for ident, (text, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind is not TokenKind.CONTROL and ident not in self.special.written
        }


def kind_of_vocabulary(file: GgufFile) -> tuple[str, PreType]:
    """The `tokenizer.ggml.model` of a file, and the type that its `tokenizer.ggml.pre` names.

    Raises:
        UnsupportedModel: this kind of vocabulary or pre-tokenizer is not built in.
    """
    model = str(file.value(PREFIX + "model", ""))
    if model not in (SENTENCE_PIECE, BPE):
        raise UnsupportedModel(
            f"{file.path.name} has a vocabulary of the kind {model or 'none'!r}, which is not built"
            f" in: {BPE} and {SENTENCE_PIECE} are.",
            "Use --backend llamacpp.",
        )
    name = str(file.value(PREFIX + "pre", ""))
    pre = pre_type(name) if model == BPE else PreType(())
    if pre is None:
        raise UnsupportedModel(
            f"{file.path.name} cuts words in the way {name!r}, which this version does not know.",
            "Use --backend llamacpp, or update Hearth.",
        )
    return model, pre


def read_vocabulary(file: GgufFile) -> GgufVocabulary:
    """The vocabulary of a file whose header was checked by `hearth.quant.gguf.preflight`.

    Raises:
        UnsupportedModel: this kind of vocabulary or pre-tokenizer is not built in.
        CorruptFile: a list is missing.
    """
    model, pre = kind_of_vocabulary(file)
    tokens = _tokens(file)
    ids = {text: ident for ident, text in enumerate(tokens)}
    is_sentence_piece = model == SENTENCE_PIECE
    eos = _id(file, ("eos_token_id",), len(tokens), _DEFAULT_EOS[model])
    special = special_ids(ids, _given_roles(file, len(tokens), eos))
    kinds = _kinds(file, len(tokens), special)
    named = {name: (key.removeprefix(PREFIX),) for name, key in NAMED_TOKENS.items()}
    return GgufVocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=[float(score) for score in _numbers(file, "scores")] or [0.0] * len(tokens),
        merges=_strings(file, "merges") or [] if model == BPE else [],
        special=special,
        bos=_id(file, ("bos_token_id",), len(tokens), _DEFAULT_BOS[model]),
        eos=eos,
        named=_ids(file, named, len(tokens)),
        adds_bos=_flag(file, "add_bos_token", is_sentence_piece or pre.adds_bos),
        adds_eos=_flag(file, "add_eos_token", False),
        adds_space=_flag(file, "add_space_prefix", is_sentence_piece),
        strips_after=_strips_after(file, ids, kinds),
    )


def end_tokens(file: GgufFile) -> dict[int, str]:
    """The texts of the tokens that end an answer, by id, for any kind of vocabulary, built in or
    not.
    """
    if not isinstance(file.value(f"{PREFIX}tokens"), StringArray):
        return {}
    tokens = _tokens(file)
    default = _DEFAULT_EOS.get(str(file.value(PREFIX + "model", "")))
    eos = _id(file, ("eos_token_id",), len(tokens), default)
    ids = {text: ident for ident, text in enumerate(tokens)}
    end_ids = special_ids(ids, _given_roles(file, len(tokens), eos)).end_ids
    return {
        ident: tokens[ident].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        for ident in sorted(end_ids)
    }


def _flag(file: GgufFile, name: str, default: bool) -> bool:
    return bool(file.value(PREFIX + name, default))


def _id(file: GgufFile, names: tuple[str, ...], count: int, default: int | None) -> int | None:
    """The first id under a key of `names` that is in the vocabulary; else `default`, if that is in
    it.
    """
    for name in names:
        ident = file.value(PREFIX + name)
        if isinstance(ident, int) and 0 <= ident < count:
            return ident
    return default if default is not None and default < count else None


def _ids(file: GgufFile, keys: Mapping[Name, tuple[str, ...]], count: int) -> dict[Name, int]:
    """The ids that the file gives, by the names in `keys`."""
    ids = {name: _id(file, given, count, None) for name, given in keys.items()}
    return {name: ident for name, ident in ids.items() if ident is not None}


def _given_roles(file: GgufFile, count: int, eos: int | None) -> dict[Role, int]:
    given = _ids(file, _ROLE_KEYS, count)
    return given if eos is None else {"eos": eos, **given}


def _tokens(file: GgufFile) -> list[str]:
    texts = _strings(file, "tokens")
    if texts is None:
        raise corrupt(file.path, f"key '{PREFIX}tokens'", "is missing")
    return [text or f"[EMPTY_{ident}]" for ident, text in enumerate(texts)]


def _strings(file: GgufFile, name: str) -> list[str] | None:
    value = file.value(PREFIX + name)
    if not isinstance(value, StringArray):
        return None
    return [raw.decode("utf-8", "surrogateescape") for raw in value.raw_strings()]


def _numbers(file: GgufFile, name: str) -> NumberArray | tuple[()]:
    value = file.value(PREFIX + name)
    return value if isinstance(value, NumberArray) else ()


def _kinds(file: GgufFile, count: int, special: SpecialIds) -> list[TokenKind]:
    known = {kind.value: kind for kind in TokenKind}
    types = _numbers(file, "token_type")
    kinds = [known.get(int(value), TokenKind.UNDEFINED) for value in types][:count]
    kinds = kinds or [TokenKind.NORMAL] * count
    for group, kind in (
        (special.control, TokenKind.CONTROL),
        (special.written, TokenKind.USER_DEFINED),
        (special.ordinary, TokenKind.NORMAL),
    ):
        for ident in group:
            kinds[ident] = kind
    return kinds


def _strips_after(file: GgufFile, ids: Mapping[str, int], kinds: list[TokenKind]) -> frozenset[int]:
    """Tokens that swallow the white space after them: Phi 3's. No metadata key says so; llama.cpp
    goes by the model's name too.
    """
    name = str(file.value("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    special = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
    stripping = {ident for ident, kind in enumerate(kinds) if kind in special}
    stripping.update(ids[name] for name in ("</s>",) if name in ids)
    return frozenset(stripping - {ids.get(name) for name in ("<unk>", "<s>", "<|endoftext|>")})
