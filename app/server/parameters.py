"""Every field of a request body: honoured, accepted without an effect, or refused by name.

Nothing is ignored in silence: a field that stands in no table is refused as well. Types and ranges
of what is honoured are checked by `backends.engine.validate`, the same for all front ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from hearth.app.nearest import did_you_mean
from hearth.backends.engine.validate import REQUEST_FIELDS, SAMPLING_FIELDS
from hearth.backends.errors import InvalidParameter, UnsupportedParameter


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a request body.

    Attributes:
        treatment: "without effect" is for what changes no answer of a server on one machine.
        neutral: values of a refused field that ask for nothing, and so are accepted.
    """

    name: str
    treatment: Literal["honoured", "without effect", "refused"]
    neutral: tuple[Any, ...] = ()


Table = Mapping[str, Parameter]


def _honoured(names: Iterable[str]) -> list[Parameter]:
    return [Parameter(name, "honoured") for name in names]


def _without_effect(names: Iterable[str]) -> list[Parameter]:
    return [Parameter(name, "without effect") for name in names]


def _table(*groups: list[Parameter]) -> Table:
    return {parameter.name: parameter for group in groups for parameter in group}


_NUMBERS: Final = tuple(field.name for field in (*SAMPLING_FIELDS, *REQUEST_FIELDS))
_COMMON: Final = (
    *("model", "stream", "stream_options", "user", "stop", "logit_bias"),
    *("dry_sequence_breakers", "ignore_eos", *_NUMBERS),
)

CHAT: Final = _table(
    _honoured(("messages", "max_completion_tokens", "top_logprobs", *_COMMON)),
    _without_effect(
        (
            *("store", "metadata", "service_tier", "safety_identifier", "moderation"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
            *("parallel_tool_calls", "prediction", "verbosity"),
        )
    ),
    [
        Parameter("response_format", "refused", ({"type": "text"},)),
        Parameter("modalities", "refused", (["text"],)),
        Parameter("tools", "refused", ([],)),
        Parameter("tool_choice", "refused", ("none", "auto")),
        Parameter("functions", "refused", ([],)),
        Parameter("function_call", "refused", ("none", "auto")),
        Parameter("reasoning_effort", "refused", ("none",)),
        Parameter("audio", "refused"),
        Parameter("web_search_options", "refused"),
    ],
)
"""`/v1/chat/completions`."""

COMPLETIONS: Final = _table(
    _honoured(("prompt", "echo", "best_of", *_COMMON)),
    [Parameter("suffix", "refused", ("",))],
)
"""`/v1/completions`."""


def accept(table: Table, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `body` that are honoured; null is the same as absent, as OpenAI has it.

    Raises:
        UnsupportedParameter: a field that is known and cannot be honoured.
        InvalidParameter: a field that nobody knows.
    """
    honoured = {}
    for name, value in body.items():
        parameter = table.get(name)
        if parameter is None:
            raise InvalidParameter(
                name[:100],
                f'There is no parameter "{name[:100]}" here.{did_you_mean(name[:100], table)}',
                "Leave it out.",
            )
        if value is None:
            continue
        if parameter.treatment == "refused" and value not in parameter.neutral:
            raise UnsupportedParameter(
                name, f"{name} is not possible in this version of Hearth.", "Leave it out."
            )
        if parameter.treatment == "honoured":
            honoured[name] = value
    return honoured
