"""Checks of the tokenizer metadata that llama.cpp trusts.

Source: `llama_vocab::impl::load` and the tokenizers in llama.cpp's `llama-vocab.cpp`;
CVE-2025-49847, CVE-2025-52566.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hearth.quant.gguf.faults import corrupt, quoted
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.types import ValueType
from hearth.quant.gguf.values import NumberArray, StringArray

_PREFIX = "tokenizer.ggml."
_TOKENS_KEY = _PREFIX + "tokens"
_NO_VOCABULARY = ("no_vocab", "none")
_WITH_MERGES = ("gpt2", "gemma4")
_WITHOUT_MERGES_PRE = "kimi-k2"
_DEFAULT_BOS = {"llama": 1, "gpt2": 11, "bert": 101}
_TURN_IDS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")
_OTHER_IDS = ("unknown_token_id", "seperator_token_id", "padding_token_id", "mask_token_id")
_FLAGS = ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix")


def check_vocabulary(file: GgufFile) -> int:
    """The number of tokens of `file`; 0 if the model has no tokenizer.

    The ids of the unknown, separator, padding and mask tokens may be outside the vocabulary, as in
    some published files: llama.cpp then disables the token. The tokens for beginning and end of a
    text or turn must exist.

    Raises:
        CorruptFile: a list is missing, of the wrong type or too short, a token appears twice, or an
            id has no token.
    """
    model = _string(file, _PREFIX + "model")
    if model in _NO_VOCABULARY:
        return 0
    tokens = file.value(_TOKENS_KEY)
    if not isinstance(tokens, StringArray) or not len(tokens):
        raise _wrong(file, _TOKENS_KEY, "must be a list of at least one string")
    count = len(tokens)
    _check_per_token(file, "scores", count, (ValueType.F32, ValueType.I32))
    _check_per_token(file, "token_type", count, (ValueType.I32,))
    _check_merges(file, model)
    _check_ids(file, model, count)
    _check_tokens(file, model, tokens)
    return count


def _string(file: GgufFile, key: str) -> str:
    value = file.value(key)
    if not isinstance(value, str):
        raise _wrong(file, key, "must be a string")
    return value


def _wrong(file: GgufFile, key: str, expected: str) -> Exception:
    kind = file.value_types.get(key)
    value = file.value(key)
    if kind is None:
        problem = "is missing"
    elif isinstance(value, StringArray | NumberArray):
        problem = f"is a list of {len(value):,} values of type {value.element_type.name}"
    else:
        problem = f"is of type {kind.name}"
    return corrupt(file.path, f"key '{key}'", f"{problem}, it {expected}")


def _check_per_token(file: GgufFile, name: str, count: int, kinds: Iterable[ValueType]) -> None:
    key = _PREFIX + name
    if key not in file.metadata:
        return
    values = file.value(key)
    if not isinstance(values, NumberArray) or values.element_type not in kinds:
        allowed = " or ".join(kind.name for kind in kinds)
        raise _wrong(file, key, f"must be a list of {allowed}")
    if len(values) < count:
        raise corrupt(file.path, f"key '{key}'", f"has {len(values):,} values for {count:,} tokens")


def _check_merges(file: GgufFile, model: str) -> None:
    key = _PREFIX + "merges"
    optional = model not in _WITH_MERGES or file.value(_PREFIX + "pre") == _WITHOUT_MERGES_PRE
    if optional and key not in file.metadata:
        return
    if not isinstance(file.value(key), StringArray):
        raise _wrong(file, key, "must be a list of strings")


def _check_ids(file: GgufFile, model: str, count: int) -> None:
    for name in (*_TURN_IDS, *_OTHER_IDS):
        key = _PREFIX + name
        if key not in file.metadata:
            continue
        token_id = file.integer(key)
        if file.value_types[key] is not ValueType.U32:
            raise _wrong(file, key, "must be of type U32")
        if name in _TURN_IDS and token_id >= count:
            raise corrupt(
                file.path, f"key '{key}'", f"{token_id:,} is outside the {count:,} tokens"
            )
    for name in _FLAGS:
        key = _PREFIX + name
        if key in file.metadata and file.value_types[key] is not ValueType.BOOL:
            raise _wrong(file, key, "must be of type BOOL")
    adds_bos = bool(file.value(_PREFIX + "add_bos_token", False))
    default = _DEFAULT_BOS.get(model, count)
    if adds_bos and file.value(_PREFIX + "bos_token_id", default) >= count:
        raise corrupt(
            file.path,
            f"key '{_PREFIX}add_bos_token'",
            "asks for a beginning-of-text token, but the file names none",
        )


def _check_tokens(file: GgufFile, model: str, tokens: StringArray) -> None:
    """Check that only the empty text has several ids: llama.cpp maps texts to ids and back."""
    texts = [raw for raw in tokens.raw_strings() if raw]
    known = set(texts)
    if len(known) != len(texts):
        twice = Counter(texts).most_common(1)[0][0]
        first, second = [i for i, raw in enumerate(tokens.raw_strings()) if raw == twice][:2]
        shown = quoted(twice.decode("utf-8", "replace"))
        raise corrupt(
            file.path,
            f"key '{_TOKENS_KEY}'",
            f"{shown} is both token {first:,} and token {second:,}",
        )
    if model == "llama":
        _check_byte_tokens(file, known)


def _check_byte_tokens(file: GgufFile, known: set[bytes]) -> None:
    """Check that all byte tokens exist: SentencePiece spells unknown characters in bytes, and
    llama.cpp aborts if one is missing.
    """
    for byte in range(256):
        if b"<0x%02X>" % byte not in known and bytes([byte]) not in known:
            raise corrupt(
                file.path, f"key '{_TOKENS_KEY}'", f"there is no token for byte 0x{byte:02X}"
            )
