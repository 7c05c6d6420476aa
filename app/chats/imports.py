"""`import_json`: a chat from elsewhere, checked to the last field before anything of it is kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, get_args

from hearth.app.chats.errors import InvalidChat
from hearth.app.chats.messages import ROLES
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers, State, Thread
from hearth.backends.messages import ToolCall

FORMAT: Final = "hearth.chat"
VERSION: Final = 1
MOST_MESSAGES: Final = 100_000
LONGEST_TEXT: Final = 16 << 20
"""Characters of one text."""
LONGEST_CHAT: Final = 256 << 20
"""Characters of all texts together."""
LATEST_S: Final = 253_402_300_799
"""The last second of the year 9999: later times are no dates."""
MOST_TOKENS: Final = 2**53
_DEEPEST: Final = 32
_LARGEST: Final = 2**64
_HINT: Final = "Only what Hearth exported as JSON can be imported; nothing was kept of this."


def import_json(store: ChatStore, data: Any) -> Thread:
    """Keep the chat that `to_json` made, under new ids.

    Args:
        data: what `json.loads` gives.

    Raises:
        InvalidChat: it is not such a chat, or too large; `field` in `data` says where.
    """
    top = _object(data, "chat", {"format", "version", "thread", "messages"})
    if top["format"] != FORMAT:
        raise InvalidChat("format", f"this is no chat of Hearth (expected {FORMAT!r}).", _HINT)
    version = top["version"]
    if type(version) is not int or version != VERSION:
        raise InvalidChat(
            "version", f"this Hearth reads version {VERSION}.", "A newer Hearth may have made it."
        )
    reader = _Reader()
    tree = _in_order(reader.messages(top["messages"]))
    return store.insert(reader.thread(top["thread"], tree), tree)


class _Reader:
    """Reads fields and counts their characters."""

    def __init__(self) -> None:
        self._left = LONGEST_CHAT

    def thread(self, value: Any, tree: list[ChatMessage]) -> Thread:
        """The thread, whose leaf ends a branch of `tree`."""
        names = {field.name for field in fields(Thread)} - {"id", "messages"}
        given = _object(value, "thread", names)
        leaf = given["leaf"]
        if leaf is None and tree:
            raise InvalidChat("thread.leaf", "it names no message.", _HINT)
        if leaf is not None:
            leaf = self._text(leaf, "thread.leaf")
            if leaf not in {message.id for message in tree}:
                raise InvalidChat("thread.leaf", f"there is no message {leaf[:40]!r}.", _HINT)
            if any(message.parent == leaf for message in tree):
                raise InvalidChat("thread.leaf", "other messages follow it.", _HINT)
        return Thread(
            id="",
            title=self._text(given["title"], "thread.title"),
            created_at=_number(given["created_at"], "thread.created_at", LATEST_S),
            changed_at=_number(given["changed_at"], "thread.changed_at", LATEST_S),
            pinned=_boolean(given["pinned"], "thread.pinned"),
            archived=_boolean(given["archived"], "thread.archived"),
            model=self._text(given["model"], "thread.model"),
            system=self._text(given["system"], "thread.system"),
            settings=self._settings(given["settings"]),
            leaf=leaf,
            messages=len(tree),
        )

    def messages(self, value: Any) -> list[ChatMessage]:
        """All messages, in any order."""
        if not isinstance(value, list):
            raise InvalidChat("messages", "it must be a list.", _HINT)
        if len(value) > MOST_MESSAGES:
            raise InvalidChat(
                "messages", f"{len(value)} are too many (at most {MOST_MESSAGES}).", _HINT
            )
        return [self._message(entry, f"messages[{at}]") for at, entry in enumerate(value)]

    def _message(self, value: Any, where: str) -> ChatMessage:
        names = {field.name for field in fields(ChatMessage)} - {"siblings", "hash"}
        given = _object(value, where, names)
        parent = given["parent"]
        calls = given["tool_calls"]
        if not isinstance(calls, list):
            raise InvalidChat(f"{where}.tool_calls", "it must be a list.", _HINT)
        return ChatMessage(
            id=self._text(given["id"], f"{where}.id"),
            parent=None if parent is None else self._text(parent, f"{where}.parent"),
            role=_one_of(given["role"], f"{where}.role", ROLES),
            content=self._text(given["content"], f"{where}.content"),
            reasoning=self._text(given["reasoning"], f"{where}.reasoning"),
            tool_calls=tuple(
                self._call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)
            ),
            created_at=_number(given["created_at"], f"{where}.created_at", LATEST_S),
            state=_one_of(given["state"], f"{where}.state", get_args(State)),
            finish_reason=self._text(given["finish_reason"], f"{where}.finish_reason"),
            error=self._text(given["error"], f"{where}.error"),
            numbers=self._numbers(given["numbers"], f"{where}.numbers"),
        )

    def _call(self, value: Any, where: str) -> ToolCall:
        names = [field.name for field in fields(ToolCall)]
        given = _object(value, where, set(names))
        return ToolCall(**{name: self._text(given[name], f"{where}.{name}") for name in names})

    def _numbers(self, value: Any, where: str) -> Numbers | None:
        if value is None:
            return None
        given = _object(value, where, {field.name for field in fields(Numbers)})
        return Numbers(
            ttft_s=_number(given["ttft_s"], f"{where}.ttft_s"),
            tok_per_s=_number(given["tok_per_s"], f"{where}.tok_per_s"),
            prompt_tokens=_count(given["prompt_tokens"], f"{where}.prompt_tokens"),
            cached_tokens=_count(given["cached_tokens"], f"{where}.cached_tokens"),
            completion_tokens=_count(given["completion_tokens"], f"{where}.completion_tokens"),
            model=self._text(given["model"], f"{where}.model"),
            quantization=self._text(given["quantization"], f"{where}.quantization"),
        )

    def _settings(self, value: Any) -> dict[str, Any]:
        where = "thread.settings"
        if not isinstance(value, dict):
            raise InvalidChat(where, "it must be an object.", _HINT)
        _check_json(value, where, _DEEPEST)
        self._text(json.dumps(value), where)
        return value

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise InvalidChat(where, "it must be a text.", _HINT)
        if len(value) > LONGEST_TEXT:
            raise InvalidChat(
                where, f"{len(value)} characters are too many (at most {LONGEST_TEXT}).", _HINT
            )
        self._left -= len(value)
        if self._left < 0:
            raise InvalidChat(
                where, f"the chat has more than {LONGEST_CHAT} characters up to here.", _HINT
            )
        return value


def _in_order(found: list[ChatMessage]) -> list[ChatMessage]:
    """Parents before children, and otherwise as they stand. Raises `InvalidChat` for an id that is
    there twice, a parent that is not there, and messages that follow themselves.
    """
    at: dict[str, int] = {}
    for index, message in enumerate(found):
        if message.id in at:
            raise InvalidChat(f"messages[{index}].id", "another message has the same.", _HINT)
        at[message.id] = index
    for index, message in enumerate(found):
        if message.parent is not None and message.parent not in at:
            raise InvalidChat(
                f"messages[{index}].parent", f"there is no message {message.parent[:40]!r}.", _HINT
            )
    placed: set[str | None] = {None}
    ordered: list[ChatMessage] = []
    for message in found:
        chain = [message]
        walked = {message.id}
        while chain[-1].parent not in placed:
            parent = found[at[str(chain[-1].parent)]]
            if parent.id in walked:
                raise InvalidChat(f"messages[{at[message.id]}].parent", "it follows itself.", _HINT)
            walked.add(parent.id)
            chain.append(parent)
        for link in reversed(chain):
            if link.id not in placed:
                placed.add(link.id)
                ordered.append(link)
    return ordered


def _object(value: Any, where: str, names: set[str]) -> Mapping[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict):
        raise InvalidChat(where, "it must be an object.", _HINT)
    for name in sorted(names - value.keys()):
        raise InvalidChat(f"{where}.{name}", "it is missing.", _HINT)
    for name in sorted(map(str, value.keys() - names)):
        raise InvalidChat(f"{where}.{name[:40]}", "there is no such field.", _HINT)
    return value


def _one_of(value: Any, where: str, allowed: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidChat(where, f"it must be one of {', '.join(allowed)}.", _HINT)
    return value


def _number(value: Any, where: str, most: float = math.inf) -> float:
    """A finite number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidChat(where, "it must be a number.", _HINT)
    if not 0 <= value <= min(most, float(2**63)):
        raise InvalidChat(where, "it is out of range.", _HINT)
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int:
        raise InvalidChat(where, "it must be a whole number.", _HINT)
    if not 0 <= value <= MOST_TOKENS:
        raise InvalidChat(where, "it is out of range.", _HINT)
    return value


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidChat(where, "it must be true or false.", _HINT)
    return value


def _check_json(value: Any, where: str, depth: int) -> None:
    """Raises `InvalidChat` for what is no JSON value, or nested deeper than `depth`."""
    if depth < 0:
        raise InvalidChat(where, f"it is nested deeper than {_DEEPEST}.", _HINT)
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise InvalidChat(where, "names must be texts.", _HINT)
            _check_json(inner, where, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check_json(inner, where, depth - 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidChat(where, "numbers must be finite.", _HINT)
    elif isinstance(value, int):
        if abs(value) > _LARGEST:
            raise InvalidChat(where, "a number is out of range.", _HINT)
    elif value is not None and not isinstance(value, str):
        raise InvalidChat(where, f"{type(value).__name__} is no JSON value.", _HINT)
