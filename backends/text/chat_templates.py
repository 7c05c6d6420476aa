"""The chat templates of a model by name, and which of them a conversation gets.

As in transformers and llama.cpp, most models have one template, called "default"; some have another
for conversations with tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hearth.backends.contract.models import ModelSettings

DEFAULT: Final = "default"
WITH_TOOLS: Final = "tool_use"
HINT: Final = (
    "Give another chat_template in the model's settings, or complete text without one: "
    "hearth run MODEL --raw."
)
"""Advice for a template that does not work."""

ChatTemplates = Mapping[str, str]
"""Jinja sources by name; empty for a model that does not chat."""


def templates_of(settings: ModelSettings, own: ChatTemplates) -> ChatTemplates:
    """The template in `settings`, which replaces all of the model's own, or else `own`."""
    return {DEFAULT: settings.chat_template} if settings.chat_template else own


def template_for(templates: ChatTemplates, *, tools: bool) -> str | None:
    """The Jinja source for a conversation, as transformers chooses it (`get_chat_template`); None
    if there is none.

    Args:
        tools: the model is shown tools.
    """
    if tools and WITH_TOOLS in templates:
        return templates[WITH_TOOLS]
    return templates.get(DEFAULT)
