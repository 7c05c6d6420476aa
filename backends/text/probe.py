"""What a chat template does to a conversation, found out by rendering sentinels, and the cure.

Some templates drop the system prompt without a word, some refuse it, some refuse turns that do not
alternate. `adapt` makes a conversation that the template keeps whole, and says what it changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from hearth.backends.contract import Message
from hearth.backends.errors import TemplateError

_SYSTEM: Final = "systemsentinel7401"
_USER: Final = "usersentinel5288"
_SECOND: Final = "secondsentinel9136"
_NO_ANSWER: Final = ("timeout", "crashed")
"""Reasons of a `TemplateError` that say nothing about the conversation."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """How a chat template treats what people write."""

    system: Literal["kept", "dropped", "refused"] = "kept"
    must_alternate: bool = False
    """Two messages of one role in a row are refused or lose text."""


def probe(render: Callable[[Sequence[Message]], str]) -> TemplateTraits:
    """Render three short conversations.

    Args:
        render: what the template makes of a conversation; raises `TemplateError`.

    Raises:
        TemplateError: the template cannot even render one user message, or drops it; or a render
            took too long or crashed, so that nothing is known.
    """
    user = Message("user", _USER)
    if not _keeps(render([user]), _USER):
        raise TemplateError(
            "The chat template drops what the user wrote.",
            "Give another template in the model's settings, or use --raw to go without one.",
            reason="dropped",
        )
    system: Literal["kept", "dropped", "refused"]
    try:
        kept = _keeps(render([Message("system", _SYSTEM), user]), _SYSTEM, _USER)
        system = "kept" if kept else "dropped"
    except TemplateError as error:
        _check_is_answer(error)
        system = "refused"
    try:
        must_alternate = not _keeps(render([user, Message("user", _SECOND)]), _USER, _SECOND)
    except TemplateError as error:
        _check_is_answer(error)
        must_alternate = True
    return TemplateTraits(system, must_alternate)


def adapt(
    messages: Sequence[Message], traits: TemplateTraits
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The conversation as the template can take it, and one sentence for each change."""
    adapted = list(messages)
    notices: list[str] = []
    if traits.system != "kept" and any(message.role == "system" for message in adapted):
        adapted = _fold_system(adapted)
        verb = "drops" if traits.system == "dropped" else "refuses"
        notices.append(
            f"This model's chat template {verb} the system prompt, "
            "so it was put at the start of the first message."
        )
    if traits.must_alternate:
        merged = _merge_turns(adapted)
        if len(merged) < len(adapted):
            adapted = merged
            notices.append(
                "This model's chat template wants turns that alternate, "
                "so messages in a row from the same side were joined."
            )
    return tuple(adapted), tuple(notices)


def _check_is_answer(error: TemplateError) -> None:
    """Raise `error` again unless the template itself refused."""
    if error.data.get("reason") in _NO_ANSWER:
        raise error


def _keeps(prompt: str, *sentinels: str) -> bool:
    folded = prompt.casefold()
    return all(sentinel in folded for sentinel in sentinels)


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    system = "\n\n".join(one.content for one in messages if one.role == "system")
    others = [one for one in messages if one.role != "system"]
    for index, message in enumerate(others):
        if message.role == "user":
            others[index] = replace(message, content=f"{system}\n\n{message.content}")
            return others
    return [Message("user", system), *others]


def _merge_turns(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            joined = f"{merged[-1].content}\n\n{message.content}"
            merged[-1] = replace(message, content=joined)
        else:
            merged.append(message)
    return merged
