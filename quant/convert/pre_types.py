"""How byte-level tokenizers split text into words, and GGUF's names for it (`tokenizer.ggml.pre`).

The expressions are the models' own, as quoted in llama.cpp's `llama-vocab.cpp` ("original regex
from tokenizer.json"). Some tokenizers first apply NFC, which GGUF cannot express and llama.cpp
leaves out; typed text and the output of models are already composed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hearth.quant.convert.tokenizer_file import TokenizerFile
from hearth.quant.errors import UnsupportedModel
from hearth.quant.json_fields import Fields

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CASED_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHERS}|{_BREAKS}"
_QWEN2 = rf"{_ENDINGS}|{_LEAD}\p{{L}}+|\p{{N}}|{_OTHERS}|{_BREAKS}"
_QWEN35 = (
    rf"{_ENDINGS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BREAKS}"
)


def _cased(endings: str, numbers: str) -> str:
    return (
        rf"{_LEAD}{_UPPER}*{_LOWER}+{endings}|{_LEAD}{_UPPER}+{_LOWER}*{endings}|{numbers}"
        rf"|{_CASED_OTHERS}|{_BREAKS}"
    )


_O200K = _cased(f"{_ENDINGS}?", r"\p{N}{1,3}")
_TEKKEN = _cased("", r"\p{N}")
DIGITS = "digits"
_DEEPSEEK_CODER = (
    *("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
    DIGITS,
)

NAMES: Final[Mapping[tuple[tuple[str, ...], bool], str]] = MappingProxyType(
    {
        ((_LLAMA3,), True): "llama-bpe",
        ((_LLAMA3,), False): "dbrx",
        ((_QWEN2,), False): "qwen2",
        ((_QWEN35,), False): "qwen35",
        ((_O200K,), False): "gpt-4o",
        # Converted from ranks: for their words, both ways of merging give the same tokens.
        ((_O200K,), True): "gpt-4o",
        ((_TEKKEN,), True): "tekken",
        ((_GPT2,), False): "gpt-2",
        ((DIGITS, _GPT2), False): "smollm",
        (_DEEPSEEK_CODER, False): "deepseek-coder",
    }
)
"""GGUF's name, by the split expressions and by whether merges are ignored for words that are
tokens. If several names are equivalent, this is the best known one.
"""


def pre_type(file: TokenizerFile) -> str:
    """The value of `tokenizer.ggml.pre` for `file`, a byte-level tokenizer.

    Raises:
        UnsupportedModel: it splits words in a way that GGUF has no name for, or that is not known
            here.
    """
    for step in file.normalizers:
        if step.text("type") != "NFC":
            raise step.unsupported("type", "NFC")
    cuts = tuple(cut for step in file.pre_tokenizers for cut in _cuts(step))
    name = NAMES.get((cuts, file.ignores_merges))
    if name is None:
        shown = " then ".join(repr(cut) for cut in cuts)
        if len(shown) > 300:
            shown = f"{shown[:300]}..."
        merges = " and ignore_merges" if file.ignores_merges else ""
        raise UnsupportedModel(
            f"{file.path}: words are cut with {shown}{merges}, which is none of the ways that are "
            f"known: {', '.join(dict.fromkeys(NAMES.values()))}.",
            "Take a GGUF of this model, or update Hearth.",
            path=str(file.path),
            field="pre_tokenizer",
        )
    return name


def _cuts(step: Fields) -> tuple[str, ...]:
    """The expressions by which a step splits text; empty if it only maps bytes to characters."""
    match step.text("type"):
        case "ByteLevel":
            if step.flag("add_prefix_space", True):
                raise step.unsupported("add_prefix_space", "false")
            return (_GPT2,) if step.flag("use_regex", True) else ()
        case "Digits":
            if not step.flag("individual_digits", False):
                raise step.unsupported("individual_digits", "true")
            return (DIGITS,)
        case "Split":
            pattern = step.section("pattern")
            if pattern is None or not pattern.has("Regex"):
                raise step.unsupported("pattern", "an expression")
            # Matches are separate words; text between matches, of which there is none, is dropped.
            way = (step.text("behavior"), step.flag("invert", False))
            if way not in (("Isolated", False), ("Removed", True)):
                raise step.unsupported("behavior", "Isolated")
            return (pattern.text("Regex"),)
        case _:
            raise step.unsupported("type", "ByteLevel, Digits and Split")
