"""Which variables a request may give to a chat template that reads certain ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from hearth.backends.errors import InvalidParameter, UnsupportedParameter

_SWITCHES: Final = ("enable_thinking", "thinking")
"""Two names of one thing: whether the model thinks."""


def honoured_values(
    asked: Mapping[str, Any], read: Collection[str], *, thinks: bool
) -> dict[str, Any]:
    """The variables to render with, so that each value of `asked` is honoured.

    Args:
        read: variables that the template reads.
        thinks: the model thinks before it answers, unless it is told not to.

    Raises:
        UnsupportedParameter: the template does not read a value that would change something.
        InvalidParameter: two values contradict each other.
    """
    values: dict[str, Any] = {}
    for name, value in asked.items():
        for variable, given in _as_read(name, value, read, thinks=thinks).items():
            if values.setdefault(variable, given) != given:
                raise InvalidParameter(
                    f"template_values.{name}",
                    f"template_values.{name} contradicts another value of template_values.",
                    "Send only one of them.",
                )
    return values


def _as_read(name: str, value: Any, read: Collection[str], *, thinks: bool) -> dict[str, Any]:
    """The same by the variables that the template reads."""
    if name in read:
        return {name: value}
    switch = next((one for one in _SWITCHES if one in read), None)
    if name in _SWITCHES:
        if switch is not None:
            return {switch: value}
        if value == thinks:
            return {}
    elif name == "reasoning_effort" and value == "none":
        if switch is not None:
            return {switch: False}
        if not thinks:
            return {}
    elif (name == "preserve_thinking" and not value and not thinks) or value == []:
        return {}
    hint = "Leave it out."
    if name == "reasoning_effort" and switch is not None:
        hint = 'This model only knows thinking or not: send "none", or leave it out.'
    raise UnsupportedParameter(
        f"template_values.{name}",
        f"{name} {_shown(value)} is not possible: this model's chat template does not read it.",
        hint,
    )


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) else f"of {len(value)} items"
