"""Which variables of a request have an effect on a chat template."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from hearth.backends.errors import InvalidParameter, UnsupportedParameter

_SWITCHES: Final = ("enable_thinking", "thinking")
"""Two names of the same variable: whether the model thinks."""


def honoured_values(
    asked: Mapping[str, Any], read: Collection[str], *, thinks: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The variables to render with, and one notice for each value of `asked` that the template
    does not read.

    Args:
        read: variables that the template reads.
        thinks: the model thinks before it answers, unless it is told not to.

    Raises:
        UnsupportedParameter: `asked` has documents, and the template does not read them.
        InvalidParameter: two values contradict each other.
    """
    values: dict[str, Any] = {}
    notices: list[str] = []
    for name, value in asked.items():
        variables = _as_read(name, value, read, thinks=thinks)
        if variables is None:
            notices.append(
                f"{name} {json.dumps(value)} has no effect:"
                " this model's chat template does not read it."
            )
            continue
        for variable, given in variables.items():
            if values.setdefault(variable, given) != given:
                raise InvalidParameter(
                    f"template_values.{name}",
                    f"template_values.{name} contradicts another value of template_values.",
                    "Send only one of them.",
                )
    return values, tuple(notices)


def _as_read(
    name: str, value: Any, read: Collection[str], *, thinks: bool
) -> dict[str, Any] | None:
    """The variables of the template that have the same effect; empty if the template behaves that
    way anyway, None if it cannot.
    """
    if name in read:
        return {name: value}
    switch = next((one for one in _SWITCHES if one in read), None)
    if name in _SWITCHES:
        if switch is not None:
            return {switch: value}
        return {} if value == thinks else None
    if name == "reasoning_effort" and value == "none":
        if switch is not None:
            return {switch: False}
        return None if thinks else {}
    if name == "documents" and value:
        raise UnsupportedParameter(
            "template_values.documents",
            f"documents ({len(value)}) cannot be shown: this model's chat template does not read"
            " them.",
            "Put their text into a message.",
        )
    is_so_anyway = not value and (name == "documents" or not thinks)
    return {} if is_so_anyway else None
