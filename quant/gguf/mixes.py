"""The named mixes of llama.cpp, and recipes: a mix with types for single tensors.

A mix has one type for most tensors, and gives more bits to the tensors that rounding hurts most
(see `quantize_types`). Numbers and types are those of llama.cpp (`LLAMA_FTYPE_*` in `llama.h`,
`llama_ftype_get_default_type` in `llama-quant.cpp`), as of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hearth.quant.gguf.errors import BadRecipe
from hearth.quant.gguf.types import NOT_WEIGHTS, TensorType

PLAIN: Final = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16})
"""Types that store single numbers instead of blocks."""
NEEDS_MATRIX: Final = frozenset(
    {TensorType.IQ1_S, TensorType.IQ1_M, TensorType.IQ2_XXS, TensorType.IQ2_XS}
)
"""Types that ggml cannot make without an importance matrix: it would abort the process."""
WANTS_MATRIX: Final = NEEDS_MATRIX | {TensorType.IQ2_S, TensorType.IQ3_XXS}
"""Types that llama.cpp refuses without an importance matrix, because the result is unusable."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A file type: its name, its number in `general.file_type`, and the type of most tensors."""

    name: str
    number: int
    base: TensorType
    about: str

    @property
    def keeps_numbers(self) -> bool:
        """Whether the mix only changes the width of numbers, without rules for single tensors."""
        return self.base in PLAIN


def _mixes() -> Mapping[str, Mix]:
    T = TensorType  # noqa: N806 - a table is read down its columns
    rows = (
        Mix("F32", 0, T.F32, "every number as it was trained, or wider"),
        Mix("F16", 1, T.F16, "half precision"),
        Mix("BF16", 32, T.BF16, "half precision with the range of f32"),
        Mix("Q8_0", 7, T.Q8_0, "hardly a difference to be measured"),
        Mix("Q6_K", 18, T.Q6_K, "a difference to be measured, not felt"),
        Mix("Q5_K_M", 17, T.Q5_K, "very good"),
        Mix("Q5_K_S", 16, T.Q5_K, "very good, a little smaller"),
        Mix("Q5_1", 9, T.Q5_1, "older format"),
        Mix("Q5_0", 8, T.Q5_0, "older format"),
        Mix("Q4_K_M", 15, T.Q4_K, "good: what most people take"),
        Mix("Q4_K_S", 14, T.Q4_K, "good, a little smaller"),
        Mix("IQ4_NL", 25, T.IQ4_NL, "4 bits on a curve, in short blocks"),
        Mix("IQ4_XS", 30, T.IQ4_XS, "4 bits on a curve: the smallest good one"),
        Mix("Q4_1", 3, T.Q4_1, "older format"),
        Mix("Q4_0", 2, T.Q4_0, "older format, fast where it is repacked"),
        Mix("MXFP4_MOE", 38, T.MXFP4, "experts in 4-bit floats, the rest in Q8_0"),
        Mix("Q3_K_L", 13, T.Q3_K, "loses visibly"),
        Mix("Q3_K_M", 12, T.Q3_K, "loses visibly"),
        Mix("Q3_K_S", 11, T.Q3_K, "loses much"),
        Mix("IQ3_M", 27, T.IQ3_S, "loses visibly"),
        Mix("IQ3_S", 26, T.IQ3_S, "loses visibly"),
        Mix("IQ3_XS", 22, T.IQ3_S, "loses visibly; needs an importance matrix"),
        Mix("IQ3_XXS", 23, T.IQ3_XXS, "loses much; needs an importance matrix"),
        Mix("Q2_K", 10, T.Q2_K, "loses much"),
        Mix("Q2_K_S", 21, T.Q2_K, "loses very much; needs an importance matrix"),
        Mix("IQ2_M", 29, T.IQ2_S, "loses much; needs an importance matrix"),
        Mix("IQ2_S", 28, T.IQ2_XS, "loses much; needs an importance matrix"),
        Mix("IQ2_XS", 20, T.IQ2_XS, "loses very much; needs an importance matrix"),
        Mix("IQ2_XXS", 19, T.IQ2_XXS, "loses very much; needs an importance matrix"),
        Mix("IQ1_M", 31, T.IQ1_M, "for very large models only; needs an importance matrix"),
        Mix("IQ1_S", 24, T.IQ1_S, "for very large models only; needs an importance matrix"),
        Mix("TQ2_0", 37, T.TQ2_0, "for models trained with three-valued weights"),
        Mix("TQ1_0", 36, T.TQ1_0, "for models trained with three-valued weights"),
        Mix("Q2_0", 41, T.Q2_0, "for models trained with two-bit weights"),
        Mix("Q1_0", 40, T.Q1_0, "for models trained with one-bit weights"),
    )
    return {mix.name: mix for mix in rows}


def mixes() -> list[Mix]:
    """Every mix, from the most bits to the fewest."""
    return list(_mixes().values())


FILE_TYPE_NAMES: Final = {39: "NVFP4", **{mix.number: mix.name for mix in mixes()}}
"""The names of all numbers of `general.file_type`. NVFP4 can be read but not made."""


@dataclass(frozen=True, slots=True)
class Override:
    """Gives `type` to tensors whose names contain a match of `pattern`, a regular expression."""

    pattern: str
    type: TensorType

    def __str__(self) -> str:
        return f"{self.pattern}={self.type.name}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A mix and overrides for single tensors. The first override that matches wins."""

    mix: Mix
    overrides: tuple[Override, ...] = ()

    @property
    def name(self) -> str:
        """The name for users, such as "Q4_K_M" or "Q4_K_M + output=Q8_0"."""
        return " + ".join([self.mix.name, *map(str, self.overrides)])

    def override_of(self, tensor: str) -> TensorType | None:
        """The type that an override gives to the tensor of that name; None if none matches."""
        for override in self.overrides:
            if re.search(override.pattern, tensor):
                return override.type
        return None


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe from user input.

    Args:
        name: of a mix, in any case, with or without "_": "Q4_K_M", "q4km". Q3_K, Q4_K and Q5_K
            mean the medium mix.
        overrides: "PATTERN=TYPE", such as "attn_v=Q8_0"; the pattern is a regular expression that
            is searched in tensor names.

    Raises:
        BadRecipe: there is no such mix or type, or a pattern is not a regular expression.
    """
    known = _mixes()
    wanted = _folded(name)
    by_folded = {_folded(mix): mix for mix in known}
    for kind in ("Q3_K", "Q4_K", "Q5_K"):
        by_folded[_folded(kind)] = f"{kind}_M"
    if wanted not in by_folded:
        raise BadRecipe(
            f'There is no type "{name}" to quantize to.',
            f"There are: {', '.join(known)}.",
            name=name,
        )
    return Recipe(known[by_folded[wanted]], tuple(_read_override(text) for text in overrides))


def _folded(name: str) -> str:
    return name.upper().replace("_", "").replace("-", "")


def _read_override(text: str) -> Override:
    pattern, separator, name = text.rpartition("=")
    if not separator or not pattern:
        raise BadRecipe(
            f'"{text}" says no type for a tensor.', "Write PATTERN=TYPE, such as attn_v=Q8_0."
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadRecipe(
            f'"{pattern}" is no regular expression: {error}.', "Escape what it should not mean."
        ) from None
    possible = {_folded(kind.name): kind for kind in TensorType if kind not in NOT_WEIGHTS}
    kind = possible.get(_folded(name))
    if kind is None:
        raise BadRecipe(
            f'There is no type "{name}" for a tensor.',
            f"There are: {', '.join(kind.name for kind in possible.values())}.",
            name=name,
        )
    return Override(pattern, kind)
