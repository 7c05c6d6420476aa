"""How vocabularies cut text into words before merging: the types of `tokenizer.ggml.pre`.

The expressions are those of the models' own tokenizers in llama.cpp's form (`llm_tokenizer_bpe` in
`llama-vocab.cpp`). They read text in which every character above ASCII is replaced by a mark for
its category (`unicode_regex_split` in llama.cpp's `unicode.cpp` does the same), because `re` does
not support categories. Where a type has several expressions, each cuts the pieces that the one
before it produced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

NUMBER: Final = "\xd1"
LETTER: Final = "\xd2"
PUNCTUATION: Final = "\xd3"
MARK: Final = "\xd4"
SYMBOL: Final = "\xd5"
OTHER: Final = "\xd0"
SPACE: Final = "\x0b"
OF_CATEGORY: Final = {
    "N": NUMBER,
    "L": LETTER,
    "P": PUNCTUATION,
    "M": MARK,
    "S": SYMBOL,
    "Z": SPACE,
}
"""The mark for each Unicode category, by the first letter of its name."""

View = Literal["categories", "spaces"]


@dataclass(frozen=True, slots=True)
class Step:
    """One cut."""

    expression: str
    view: View = "categories"
    """What the expression reads (see `words`): marks for categories, or, for "spaces", the text
    with only its white space replaced.
    """


@dataclass(frozen=True, slots=True)
class PreType:
    """The meaning of a value of `tokenizer.ggml.pre`."""

    steps: tuple[Step, ...]
    ignore_merges: bool = False
    """A word that is in the vocabulary becomes that token without merging."""
    adds_bos: bool = False


_S = r" \t-\r"
_L = f"A-Za-z{LETTER}"
_N = f"0-9{NUMBER}"
_P = rf"!-#%-*,-/:;?@\[-\]_{{}}{PUNCTUATION}"
_Y = rf"$+<->^`|~{SYMBOL}"
_M = MARK
_ENDINGS = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SMALL_ENDINGS = "'(?:[stmd]|re|ve|ll)"
_GAPS = rf"[{_S}]+(?![^{_S}])|[{_S}]+"
_BREAKS = rf"[{_S}]*[\r\n]+|{_GAPS}"
_OTHERS = rf" ?[^{_S}{_L}{_N}]+[\r\n]*"
_ASCII_WORD = r"[!-/:-@\[-`{-~][A-Za-z]+"

_GPT2 = Step(
    rf"{_SMALL_ENDINGS}| ?[{_L}]+| ?[{_N}]+| ?[^{_S}{_L}{_N}]+|{_GAPS}",
)
_EACH_NUMBER = Step(f"[{_N}]")
_THREE_NUMBERS = Step(f"[{_N}]{{1,3}}")


def _modern(numbers: str = f"[{_N}]", others: str = _OTHERS) -> Step:
    """The expression that most models since GPT-4 share, with the parts that differ."""
    return Step(
        rf"{_ENDINGS}|[^\r\n{_L}{_N}]?[{_L}]+|{numbers}|{others}|{_BREAKS}",
    )


def _cased(ending: str, numbers: str) -> Step:
    """Words end where a capital follows a small letter (Tekken, o200k)."""
    upper, lower = f"[A-Z{LETTER}]", f"[a-z{LETTER}]"
    lead = rf"[^\r\n{_L}{_N}]?"
    return Step(
        rf"{lead}{upper}*{lower}+{ending}|{lead}{upper}+{lower}*{ending}|{numbers}"
        rf"| ?[^{_S}{_L}{_N}]+[\r\n/]*|{_BREAKS}",
    )


_LLAMA3 = _modern(numbers=f"[{_N}]{{1,3}}")
_QWEN2 = _modern()
_DEEPSEEK3 = (
    _THREE_NUMBERS,
    Step("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", "spaces"),
    Step(
        rf"{_ASCII_WORD}|[^\r\n{_L}{_P}{_Y}]?[{_L}{_M}]+| ?[{_P}{_Y}]+[\r\n]*|{_BREAKS}",
    ),
)
_CASED_SCRIPTS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
"""Letters of the scripts that have capitals, as DeepSeek's first vocabularies list them."""

_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_LLM = (
    Step(r"[\r\n]", "spaces"),
    Step(f"[{_S}]?[{_CASED_SCRIPTS}]+", "spaces"),
    Step(f"[{_S}]?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "spaces"),
    Step(rf"[{_S}]+\Z", "spaces"),
    Step(_ASIAN, "spaces"),
    Step(f"[{_N}]+"),
)
_DEEPSEEK_CODER = (
    Step(r"[\r\n]", "spaces"),
    Step(f"[{_S}]?[{_L}]+"),
    Step(f"[{_S}]?[{_P}]+"),
    Step(_ASIAN, "spaces"),
    _EACH_NUMBER,
)
_BLOOM = Step(f" ?[^({_S}|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", "spaces")
_QWEN35 = Step(
    rf"{_ENDINGS}|[^\r\n{_L}{_N}]?[{_L}{_M}]+|[{_N}]| ?[^{_S}{_L}{_M}{_N}]+[\r\n]*|{_BREAKS}",
)
_UFAKZEKA = Step(rf"[^\r\n{_L}{_N}]?[{_L}]+|[{_N}]|{_OTHERS}|{_BREAKS}")
_SEED_CODER = _modern(others=rf" ?[^{_S}{_L}{_N}\r\n]+")
_O200K = _cased(f"(?:{_ENDINGS})?", f"[{_N}]{{1,3}}")
_FALCON = (
    Step(rf"[{_P}$+<=>^~|`]+"),
    _GPT2,
    Step("[0-9]{3}", "spaces"),
)
_DEFAULT = (
    Step(rf"[{_P}$+<=>^~|]+"),
    _GPT2,
    Step(f"[{_N}]+"),
    Step("[0-9]{3}", "spaces"),
)

TYPES: Final[Mapping[str, PreType]] = {
    name: kind
    for names, kind in (
        ("default", PreType(_DEFAULT)),
        (
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
            PreType((_LLAMA3,), ignore_merges=True, adds_bos=True),
        ),
        ("minicpm5", PreType((_THREE_NUMBERS, _modern(numbers=f"[{_N}]+")), ignore_merges=True)),
        ("deepseek-llm", PreType(_DEEPSEEK_LLM)),
        ("deepseek-coder", PreType(_DEEPSEEK_CODER)),
        ("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", PreType(_DEEPSEEK3)),
        ("falcon", PreType(_FALCON)),
        (
            "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
            PreType((_EACH_NUMBER, _GPT2)),
        ),
        (
            "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum "
            "modern-bert mpt olmo jais exaone4 trillion granite-docling",
            PreType((_GPT2,)),
        ),
        (
            "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
            PreType((_QWEN2,)),
        ),
        ("qwen35", PreType((_QWEN35,))),
        ("dbrx smaug-bpe", PreType((_LLAMA3,))),
        ("viking", PreType((_BLOOM, _EACH_NUMBER))),
        ("tekken", PreType((_cased("", f"[{_N}]"),), ignore_merges=True, adds_bos=True)),
        ("gpt-4o llama4 kanana2 talkie minimax-m2", PreType((_O200K,))),
        ("seed-coder", PreType((_SEED_CODER,))),
        ("ufakzeka", PreType((_UFAKZEKA,))),
    )
    for name in names.split()
}
"""Types by the values of `tokenizer.ggml.pre` that are built in: those that files of the native
runner's families may have. Values with the same type are listed together.
"""


def pre_type(name: str) -> PreType | None:
    """The type that the value `name` of `tokenizer.ggml.pre` names; None if it is not built in.
    A file without a value has the type "default".
    """
    return TYPES.get(name or "default")
