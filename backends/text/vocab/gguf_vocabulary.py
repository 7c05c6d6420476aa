"""What the metadata of a GGUF file says of its tokens.

Source: `llama_vocab::impl::load` in llama.cpp's `llama-vocab.cpp`; defaults and what names mean are
as there, so that a file gives the same tokens whatever runs it.
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
SENTENCE_PIECE, WORD_PIECE, UNIGRAM, BPE, BPE_SPACES, BPE_WORDS = (
    "llama",
    "bert",
    "t5",
    "gpt2",
    "gemma4",
    "whitespace",
)
"""Values of `tokenizer.ggml.model`."""
BPE_MODELS: Final = (BPE, BPE_SPACES, BPE_WORDS)


def longest_token_bytes(file: GgufFile) -> int:
    """`ModelInfo.longest_token_bytes` of a file: an upper bound, because some characters take more
    bytes in its list of tokens than in a text.
    """
    tokens = file.metadata.get(f"{PREFIX}tokens")
    keeps_text = file.metadata.get(f"{PREFIX}model") in (SENTENCE_PIECE, BPE, BPE_SPACES)
    return tokens.longest_bytes if keeps_text and isinstance(tokens, StringArray) else 0


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What holds where a file does not say otherwise."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    separator: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    adds_separator: bool = False
    adds_space: bool = False


_DEFAULTS: Final[Mapping[str, _Defaults]] = {
    SENTENCE_PIECE: _Defaults(bos=1, eos=2, unknown=0, adds_bos=True, adds_space=True),
    WORD_PIECE: _Defaults(bos=101, unknown=100, separator=102, adds_bos=True, adds_separator=True),
    BPE: _Defaults(bos=11, eos=11),
    BPE_WORDS: _Defaults(bos=11, eos=11),
    BPE_SPACES: _Defaults(),
    UNIGRAM: _Defaults(eos=1, unknown=2, adds_eos=True),
}
NAMED_TOKENS: Final[Mapping[str, str]] = {
    "unk_token": f"{PREFIX}unknown_token_id",
    "sep_token": f"{PREFIX}seperator_token_id",
    "pad_token": f"{PREFIX}padding_token_id",
    "cls_token": f"{PREFIX}cls_token_id",
    "mask_token": f"{PREFIX}mask_token_id",
}
"""Keys of special tokens, by the names that chat templates give them."""
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
    """The tokens of a file and how text becomes them."""

    model: str
    pre: PreType
    """Of byte-pair encoding; the default's for other kinds."""
    keeps_newlines: bool
    tokens: list[str]
    """Bytes that are not UTF-8 are lone surrogates, which no text has."""
    kinds: list[TokenKind]
    scores: list[float]
    merges: list[str]
    charsmap: bytes
    """SentencePiece's compiled normalisation; b"" where there is none."""
    special: SpecialIds
    bos: int | None
    eos: int | None
    unknown: int | None
    separator: int | None
    named: Mapping[str, int]
    """Those that the file itself says, by the names that chat templates give them."""
    adds_bos: bool
    adds_eos: bool
    adds_separator: bool
    adds_space: bool
    """Text begins with a space, as every word does."""
    merges_spaces: bool
    lowercase: bool
    strip_accents: bool
    strips_before: frozenset[int]
    """Special tokens that swallow the white space before them."""
    strips_after: frozenset[int]
    rank_template: str | None

    @property
    def escapes_spaces(self) -> bool:
        """A space is written ▁ in tokens."""
        return self.model not in BPE_MODELS or (
            not self.pre.is_byte_level and self.model != BPE_WORDS
        )

    def spellable(self) -> dict[str, int]:
        """Ids of the tokens that ordinary text may become: all but those that models read as
        marks.
        """
        return {
            text: ident
            for ident, (text, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind is not TokenKind.CONTROL and ident not in self.special.written
        }


def kind_of_vocabulary(file: GgufFile) -> tuple[str, str, PreType]:
    """What a file says as `tokenizer.ggml.model` and `tokenizer.ggml.pre`, and what that stands
    for.

    Raises:
        UnsupportedModel: a kind of vocabulary, or of pre-tokenizer, that is not built in.
    """
    model = str(file.value(PREFIX + "model", ""))
    if model not in _DEFAULTS:
        raise UnsupportedModel(
            f"{file.path.name} has a vocabulary of the kind {model or 'none'!r}, which is not built"
            f" in: {', '.join(sorted(_DEFAULTS))} are.",
            "Use --backend llamacpp.",
        )
    name = "gemma4" if model == BPE_SPACES else str(file.value(PREFIX + "pre", ""))
    pre = pre_type(name) if model in BPE_MODELS else PreType(())
    if pre is None:
        raise UnsupportedModel(
            f"{file.path.name} cuts words in the way {name!r}, which this version does not know.",
            "Use --backend llamacpp, or update Hearth.",
        )
    return model, name, pre


def read_vocabulary(file: GgufFile) -> GgufVocabulary:
    """The vocabulary of a file whose header was checked (`hearth.quant.gguf.preflight`).

    Raises:
        UnsupportedModel: a kind of vocabulary, or of pre-tokenizer, that is not built in.
        CorruptFile: a list is missing.
    """
    model, name, pre = kind_of_vocabulary(file)
    tokens = _tokens(file)
    ids = {text: ident for ident, text in enumerate(tokens)}
    defaults = _DEFAULTS[model]
    bos = defaults.bos if pre.has_default_bos else None
    eos = _id(file, ("eos_token_id",), len(tokens), defaults.eos)
    special = special_ids(ids, _given_roles(file, len(tokens), eos))
    lowercase = bool(file.value("tokenizer.ggml.normalizer.lowercase", model != BPE_WORDS))
    keeps_newlines = name in ("gemma4", "granite-embed-multi-311m")
    kinds = _kinds(file, len(tokens), special)
    before, after = _strips(file, name, ids, kinds)
    rank_template = file.value("tokenizer.chat_template.rerank")
    named = {name: (key.removeprefix(PREFIX),) for name, key in NAMED_TOKENS.items()}
    scores, charsmap = _numbers(file, "scores"), _numbers(file, "precompiled_charsmap")
    return GgufVocabulary(
        model=model,
        pre=pre,
        keeps_newlines=keeps_newlines,
        tokens=tokens,
        kinds=kinds,
        scores=[float(score) for score in scores] or [0.0] * len(tokens),
        merges=_strings(file, "merges") or [] if model in BPE_MODELS else [],
        charsmap=bytes(int(byte) & 0xFF for byte in charsmap) if model == UNIGRAM else b"",
        special=special,
        bos=_id(file, ("bos_token_id",), len(tokens), bos),
        eos=eos,
        unknown=_id(file, ("unknown_token_id",), len(tokens), defaults.unknown),
        separator=_id(file, ("seperator_token_id",), len(tokens), defaults.separator),
        named=_ids(file, named, len(tokens)),
        adds_bos=_flag(file, "add_bos_token", defaults.adds_bos or pre.adds_bos) or keeps_newlines,
        adds_eos=_flag(file, "add_eos_token", defaults.adds_eos),
        adds_separator=_flag(file, "add_sep_token", defaults.adds_separator or pre.adds_separator),
        adds_space=_flag(file, "add_space_prefix", defaults.adds_space),
        merges_spaces=_flag(file, "remove_extra_whitespaces", False),
        lowercase=lowercase,
        strip_accents=bool(file.value("tokenizer.ggml.normalizer.strip_accents", lowercase)),
        strips_before=before,
        strips_after=after,
        rank_template=rank_template if isinstance(rank_template, str) else None,
    )


def end_tokens(file: GgufFile) -> dict[int, str]:
    """The tokens that end an answer and their texts, by id; of any kind of vocabulary, built in or
    not.
    """
    if not isinstance(file.value(f"{PREFIX}tokens"), StringArray):
        return {}
    tokens = _tokens(file)
    defaults = _DEFAULTS.get(str(file.value(PREFIX + "model", "")), _Defaults())
    eos = _id(file, ("eos_token_id",), len(tokens), defaults.eos)
    ids = {text: ident for ident, text in enumerate(tokens)}
    found = special_ids(ids, _given_roles(file, len(tokens), eos)).end_ids
    return {
        ident: tokens[ident].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        for ident in sorted(found)
    }


def _flag(file: GgufFile, name: str, default: bool) -> bool:
    return bool(file.value(PREFIX + name, default))


def _id(file: GgufFile, names: tuple[str, ...], count: int, default: int | None) -> int | None:
    """The first id that a key of `names` gives and the vocabulary has; else the default, where the
    vocabulary has that.
    """
    for name in names:
        found = file.value(PREFIX + name)
        if isinstance(found, int) and 0 <= found < count:
            return found
    return default if default is not None and default < count else None


def _ids(file: GgufFile, keys: Mapping[Name, tuple[str, ...]], count: int) -> dict[Name, int]:
    """The ids that the file gives, by the names in `keys`."""
    found = {name: _id(file, given, count, None) for name, given in keys.items()}
    return {name: ident for name, ident in found.items() if ident is not None}


def _given_roles(file: GgufFile, count: int, eos: int | None) -> dict[Role, int]:
    given = _ids(file, _ROLE_KEYS, count)
    return given if eos is None else {"eos": eos, **given}


def _tokens(file: GgufFile) -> list[str]:
    found = _strings(file, "tokens")
    if found is None:
        raise corrupt(file.path, f"key '{PREFIX}tokens'", "is missing")
    return [text or f"[EMPTY_{ident}]" for ident, text in enumerate(found)]


def _strings(file: GgufFile, name: str) -> list[str] | None:
    found = file.value(PREFIX + name)
    if not isinstance(found, StringArray):
        return None
    return [raw.decode("utf-8", "surrogateescape") for raw in found.raw_strings()]


def _numbers(file: GgufFile, name: str) -> NumberArray | tuple[()]:
    found = file.value(PREFIX + name)
    return found if isinstance(found, NumberArray) else ()


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


def _strips(
    file: GgufFile, pre: str, ids: Mapping[str, int], kinds: list[TokenKind]
) -> tuple[frozenset[int], frozenset[int]]:
    """Tokens that swallow white space before, and after. No file says it, so llama.cpp goes by
    names, and so do we.
    """
    name = str(file.value("general.name", "")).lower()
    architecture = str(file.value("general.architecture", ""))
    masks = ""
    if pre.startswith(("jina-v2-de", "jina-v2-es", "jina-v2-code")) or architecture.startswith(
        ("nomic-bert-moe", "jina-bert-v3")
    ):
        masks = "<mask>"
    elif "phi-3" in name or "phi3" in name:
        return frozenset(), _special_of_phi3(ids, kinds)
    elif "modern-bert" in name:
        masks = "[MASK]"
    return frozenset({ids[masks]} if masks in ids else ()), frozenset()


def _special_of_phi3(ids: Mapping[str, int], kinds: list[TokenKind]) -> frozenset[int]:
    special = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
    found = {ident for ident, kind in enumerate(kinds) if kind in special}
    found.update(ids[name] for name in ("</s>",) if name in ids)
    return frozenset(found - {ids.get(name) for name in ("<unk>", "<s>", "<|endoftext|>")})
