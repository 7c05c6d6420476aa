"""The numbers that a request carries, with their ranges: one table for all that show or check them.

The command line makes its flags from it, the settings file its keys, the endpoint its schema and
its documentation. It needs nothing but itself, since the terminal app has it before its first
paint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["float", "int"]

MOST_TOKENS: Final = 2**31 - 1
MOST_TOP: Final = 20


@dataclass(frozen=True, slots=True)
class Field:
    """A number that people may set."""

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
    """A number as people write it: 1, 0.5, -100; huge integers by their size."""
    if isinstance(value, int) and abs(value) > 2**64:
        return f"a whole number of {value.bit_length()} bits"
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


SAMPLING_FIELDS: Final = (
    Field("temperature", "float", 0, 10, "higher is more varied; 0 takes the likeliest token"),
    Field("top_k", "int", 0, MOST_TOKENS, "keep the k likeliest tokens; 0 is off"),
    Field("top_p", "float", 0, 1, "keep the likeliest tokens that reach p; 1 is off", True),
    Field("min_p", "float", 0, 1, "drop tokens below this share of the likeliest; 0 is off"),
    Field("typical_p", "float", 0, 1, "keep the most typical tokens that reach p; 1 is off", True),
    Field("repetition_penalty", "float", 0, 10, "makes said tokens less likely; 1 is off", True),
    Field("repetition_window", "int", -1, MOST_TOKENS, "tokens to look back; -1 all, 0 none"),
    Field("frequency_penalty", "float", -2, 2, "subtracted for each occurrence of a token"),
    Field("presence_penalty", "float", -2, 2, "subtracted once for a token that occurs"),
    Field("dry_multiplier", "float", 0, 100, "DRY: penalty for a repeated run; 0 is off"),
    Field("dry_base", "float", 1, 10, "DRY: growth of the penalty for each token of the run"),
    Field("dry_allowed_length", "int", 1, MOST_TOKENS, "DRY: shorter runs are free"),
    Field("dry_window", "int", -1, MOST_TOKENS, "DRY: tokens to look back; -1 all, 0 none"),
    Field("xtc_probability", "float", 0, 1, "XTC: chance to drop the top choices; 0 is off"),
    Field("xtc_threshold", "float", 0, 1, "XTC: probability that makes a token a top choice"),
    Field("seed", "int", 0, 2**64 - 1, "same seed, same text", optional=True),
    Field(
        "logprobs", "int", 0, MOST_TOP, "log probabilities of the n likeliest tokens", optional=True
    ),
)
"""The numbers of `SamplingParams`."""

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
    Field("n", "int", 1, 16, "answers to the same prompt"),
    Field("priority", "int", -100, 100, "higher goes first among those that wait"),
)
"""The numbers of `Request`."""
