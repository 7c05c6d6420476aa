"""Which family of models a chat template belongs to, and how that family writes its output."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hearth.backends.text.output.parts import OutputFormat

_NO_TOKENS: Final[Mapping[str, int]] = MappingProxyType({})


def format_of(
    template: str | None, control_tokens: Mapping[str, int] = _NO_TOKENS
) -> OutputFormat:
    """How models with this chat template write reasoning and tool calls.

    Args:
        template: Jinja source; None: the model has none, and all it writes is content.
        control_tokens: ids of the vocabulary's control tokens by their text. A grammar names these
            by id, and spells every other marker out as text.
    """
    raise NotImplementedError


def takes_tools(template: str | None) -> bool:
    """Does the template show tools to the model?"""
    return template is not None and "tools" in template


def thinks(template: str | None) -> bool:
    """Does the template speak of reasoning?"""
    return template is not None and any(
        mark in template
        for mark in ("<think>", "enable_thinking", "reasoning", "<|channel|>", "[THINK]")
    )
