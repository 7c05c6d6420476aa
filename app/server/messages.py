"""The `messages` of a chat: text and text parts; what no model can be shown is refused by name."""

from __future__ import annotations

from typing import Any, Final

from hearth.backends.contract import Message, Role
from hearth.backends.errors import InvalidParameter, UnsupportedParameter

MOST_MESSAGES: Final = 2048
_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_LATER: Final = ("tool", "function")
_EMPTY: Final[tuple[Any, ...]] = (None, [], "")


def read_messages(value: Any, system: str) -> tuple[Message, ...]:
    """The messages of a request; `system`, if not empty, goes first where they have no system
    message of their own.

    Raises:
        InvalidParameter: no list of messages, or one of them is malformed.
        UnsupportedParameter: pictures, sound, tools, names; an answer begun for the model.
    """
    if not isinstance(value, list) or not value:
        raise InvalidParameter(
            "messages", "messages must be a list of one message or more.", "Send what to answer."
        )
    if len(value) > MOST_MESSAGES:
        raise InvalidParameter(
            "messages", f"{len(value):,} messages; at most {MOST_MESSAGES:,} are possible."
        )
    messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))
    if messages[-1].role == "assistant":
        raise UnsupportedParameter(
            f"messages[{len(messages) - 1}].role",
            "The last message is the assistant's; answers cannot be continued in this version.",
            "End with a message of the user.",
        )
    if system and all(message.role != "system" for message in messages):
        messages = (Message("system", system), *messages)
    return messages


def _message(value: Any, param: str) -> Message:
    if not isinstance(value, dict):
        raise InvalidParameter(param, f"{param} must be an object with role and content.")
    role = value.get("role")
    if role in _LATER:
        raise UnsupportedParameter(
            f"{param}.role", f"{param} is of the role {role}; tools are not possible yet."
        )
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidParameter(
            f"{param}.role",
            f"{param}.role must be one of {', '.join(_ROLES)}.",
        )
    for name, content in value.items():
        if name not in ("role", "content") and content not in _EMPTY:
            raise UnsupportedParameter(
                f"{param}.{name[:100]}",
                f"{name[:100]} in a message is not possible in this version of Hearth.",
                "Leave it out.",
            )
    return Message(_ROLES[role], _text(value.get("content"), f"{param}.content"))


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidParameter(param, f"{param} must be text or a list of parts.")
    return "".join(_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _part(part: Any, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise InvalidParameter(f"{param}.type", f"{param} must be an object with a type.")
    if kind != "text":
        raise UnsupportedParameter(
            f"{param}.type", f"A part of type {kind[:100]} is not possible: only text is."
        )
    for name, value in part.items():
        if name not in ("type", "text") and value not in _EMPTY:
            raise UnsupportedParameter(
                f"{param}.{name[:100]}",
                f"{name[:100]} in a part is not possible in this version of Hearth.",
                "Leave it out.",
            )
    if not isinstance(part.get("text"), str):
        raise InvalidParameter(f"{param}.text", f"{param}.text must be text.")
    return str(part["text"])
