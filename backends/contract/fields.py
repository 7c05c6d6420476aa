"""The numeric fields of requests and settings with their ranges, declared once for all code that
shows or checks them.

The flags of the command line, the keys of the settings file, and the schema and documentation of
the endpoint are made from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

Kind = Literal["float", "int"]

MOST_TOKENS: Final = 2**31 - 1
MOST_TOP: Final = 20


@dataclass(frozen=True, slots=True)
class Field:
    """A number that a user may set."""

    name: str
    kind: Kind
    minimum: float
    maximum: float
    help: str
    above_minimum: bool = False
    """The minimum itself is refused."""
    optional: bool = False
    """None is allowed and means: not set."""

    @property
    def interval(self) -> str:
        """The allowed values in mathematical notation, e.g. "(0, 1]"."""
        opening = "(" if self.above_minimum else "["
        return f"{opening}{plain(self.minimum)}, {plain(self.maximum)}]"


def plain(value: float) -> str:
    """A number as people write it: 1, 0.5, -100; for huge integers their size in bits."""
    if isinstance(value, int) and abs(value) > 2**64:
        return f"a whole number of {value.bit_length()} bits"
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


def number(
    default: float | None, minimum: float, maximum: float, what: str = "", *, above: bool = False
) -> Any:
    """A dataclass field with these bounds: a float if `default` or `minimum` is a float, else an
    integer. With `above` the minimum itself is refused.
    """
    is_float = isinstance(default, float) or isinstance(minimum, float)
    kind: Kind = "float" if is_float else "int"
    bounds = Field("", kind, minimum, maximum, what, above, optional=default is None)
    return field(default=default, metadata={"number": bounds})


def numbers_of(kind: type) -> tuple[Field, ...]:
    """The fields that `number` declares in the dataclass `kind`."""
    numbers = (one for one in fields(kind) if "number" in one.metadata)
    return tuple(replace(one.metadata["number"], name=one.name) for one in numbers)


REQUEST_FIELDS: Final = (
    Field("max_tokens", "int", 1, MOST_TOKENS, "at most this many new tokens", optional=True),
    Field(
        "min_tokens",
        "int",
        0,
        MOST_TOKENS,
        "no stop string or end token ends it before this many new tokens, unless a grammar can only"
        " end",
    ),
    Field(
        "truncate_prompt_tokens",
        "int",
        -1,
        MOST_TOKENS,
        "keep only the last tokens of the prompt, this many; -1: as many as fit",
        optional=True,
    ),
    Field(
        "attention_sinks",
        "int",
        0,
        256,
        "a text that exceeds the context goes on: its first tokens, this many (4 is usual), and the"
        " newest ones stay, and the model forgets what is between",
        optional=True,
    ),
    Field("n", "int", 1, 16, "answers to the same prompt"),
    Field("priority", "int", -100, 100, "higher goes first among those that wait"),
)
"""The numeric fields of `Request`."""
