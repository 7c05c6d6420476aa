"""From a chat to the request for its next answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any, Final

from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.settings import ModelUse
from hearth.backends.contract import Backend, Constraint, Message, ModelInfo, Request
from hearth.backends.errors import NoChatTemplate

_SEED_BITS: Final = 53  # so that every JSON reader keeps it exactly


@dataclass(frozen=True, slots=True)
class Asking:
    """A request, and the model that it is for."""

    request: Request
    info: ModelInfo
    backend: Backend


def build(
    thread: Thread, messages: Sequence[ChatMessage], use: ModelUse, info: ModelInfo
) -> Request:
    """The request to `info`'s model for an answer to `messages`.

    Raises:
        NoChatTemplate: it cannot chat.
    """
    if not info.has_chat_template:
        raise NoChatTemplate(
            f"{info.name} has no chat template, so it cannot chat.", "Choose another model."
        )
    system = thread.system or use.system
    head = (Message("system", system),) if system else ()
    return Request(
        messages=(*head, *map(message_of, _answered(messages))),
        sampling=replace(use.sampling, seed=reportable_seed(use)),
        max_tokens=use.max_tokens,
        stop=use.stop,
        session=thread.id,
        constraint=constraint_of(thread.settings),
        template_values=_template_values(thread.settings, info),
    )


def reportable_seed(use: ModelUse) -> int:
    """The seed of the settings, or a random one."""
    seed = use.sampling.seed
    return SystemRandom().getrandbits(_SEED_BITS) if seed is None else seed


def message_of(kept: ChatMessage) -> Message:
    """A message of the store as the contract has it."""
    reasoning = kept.reasoning if kept.role == "assistant" else ""
    calls = kept.tool_calls if kept.role == "assistant" else ()
    return Message(kept.role, kept.content, reasoning, calls)


def constraint_of(settings: dict[str, Any]) -> Constraint | None:
    """The constraint on the answers of a chat with these settings; None: free text."""
    found = settings.get("constraint")
    return None if not found else Constraint(found["kind"], found.get("source", ""))


def _answered(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """`messages` without the questions whose answers failed or were stopped before their first
    word: most templates want an answer after each question.
    """
    sent: list[ChatMessage] = []
    for message in messages:
        if message.role != "assistant" or message.content or message.tool_calls:
            sent.append(message)
            continue
        while sent and sent[-1].role == "user":
            sent.pop()
    return sent


def _template_values(settings: dict[str, Any], info: ModelInfo) -> dict[str, Any]:
    thinking = settings.get("thinking")
    if thinking is None or "thinking" not in info.capabilities:
        return {}
    return {"enable_thinking": bool(thinking)}
