"""What is kept of a conversation that exceeds the context: its newest complete turns and the system
prompt.

A turn is a question with everything up to the next one, so that tool calls stay with their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from hearth.backends.contract.messages import Message
from hearth.backends.errors import PromptTooLong

Overflow = Literal["drop-turns", "refuse"]

_KEPT_SHARE: Final = 0.75
"""Share of the context that the newest turns may take when others are dropped. The rest is for the
answer, and for further questions that continue what is cached.
"""


def newest_turns(messages: Sequence[Message], error: PromptTooLong) -> tuple[Message, ...] | None:
    """`messages` without their oldest turns; None if there is only one turn. Drops approximately as
    many as the numbers of `error` require, or one if it has none. System messages stay.

    Args:
        error: the error that the prompt of `messages` caused.
    """
    turns = [at for at, message in enumerate(messages) if message.role == "user"]
    first = next((at for at, message in enumerate(messages) if message.role != "system"), 0)
    if turns and first < turns[0]:  # A greeting, or the end of a turn whose question is missing.
        turns.insert(0, first)
    if len(turns) < 2:
        return None
    over = _characters_over(messages, error)
    keep = turns[1]
    for start in turns[2:]:
        if sum(map(_characters, messages[turns[0] : keep])) >= over:
            break
        keep = start
    return tuple(
        message for at, message in enumerate(messages) if at >= keep or message.role == "system"
    )


def _characters_over(messages: Sequence[Message], error: PromptTooLong) -> float:
    """The number of characters to drop; 0 if unknown."""
    tokens, context = error.data.get("prompt_tokens"), error.data.get("context")
    if not isinstance(tokens, int) or not isinstance(context, int) or tokens < 1:
        return 0
    return sum(map(_characters, messages)) * (1 - _KEPT_SHARE * context / tokens)


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning) + calls
