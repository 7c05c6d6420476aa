"""From a chat to the request that its next answer needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any, Final

from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.settings import ModelUse
from hearth.backends.contract import Constraint, Message, ModelInfo, Request
from hearth.backends.errors import NoChatTemplate

_SEED_BITS: Final = 53  # so that every JSON reader keeps it exactly


def build(
    thread: Thread, messages: Sequence[ChatMessage], use: ModelUse, info: ModelInfo
) -> Request:
    """What is asked of `info`'s model after `messages`.

    Raises:
        NoChatTemplate: it cannot chat.
    """
    if not info.has_chat_template:
        raise NoChatTemplate(
            f"{info.name} has no chat template, so it cannot chat.", "Choose another model."
        )
    seed = use.sampling.seed
    if seed is None:
        seed = SystemRandom().getrandbits(_SEED_BITS)
    system = thread.system or use.system
    head = (Message("system", system),) if system else ()
    return Request(
        messages=(*head, *map(message_of, messages)),
        sampling=replace(use.sampling, seed=seed),
        max_tokens=use.max_tokens,
        stop=use.stop,
        session=thread.id,
        constraint=constraint_of(thread.settings),
        template_values=_template_values(thread.settings, info),
    )


def message_of(kept: ChatMessage) -> Message:
    """A message of the store as the contract has it."""
    reasoning = kept.reasoning if kept.role == "assistant" else ""
    calls = kept.tool_calls if kept.role == "assistant" else ()
    return Message(kept.role, kept.content, reasoning, calls)


def constraint_of(settings: dict[str, Any]) -> Constraint | None:
    """What answers of a chat with these settings must look like; None: they are free."""
    found = settings.get("constraint")
    return None if not found else Constraint(found["kind"], found.get("source", ""))


def _template_values(settings: dict[str, Any], info: ModelInfo) -> dict[str, Any]:
    thinking = settings.get("thinking")
    if thinking is None or "thinking" not in info.capabilities:
        return {}
    return {"enable_thinking": bool(thinking)}
