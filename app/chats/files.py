"""A chat as a file: Markdown for reading, and JSON for import, of which every field is checked
before anything is stored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any, Final, get_args

from hearth.app.chats.errors import InvalidChat
from hearth.app.chats.messages import ROLES
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Numbers, State, Thread
from hearth.backends.contract.messages import ToolCall
from hearth.backends.errors import HearthError

_NAMES: Final = {"system": "System", "user": "User", "assistant": "Assistant", "tool": "Tool"}
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
FORMAT: Final = "hearth.chat"
VERSION: Final = 1
MOST_MESSAGES: Final = 100_000
LONGEST_TEXT: Final = 16 << 20
"""Upper limit of the characters of one text."""
LONGEST_CHAT: Final = 256 << 20
"""Upper limit of the characters of all texts together."""
LATEST_S: Final = 253_402_214_399
"""A day before the end of the year 9999 in UTC: a valid date in every time zone."""
MOST_TOKENS: Final = 2**53
_HINT: Final = "Only what Hearth exported as JSON can be imported; nothing was kept of this."


def to_markdown(store: ChatStore, thread_id: str) -> str:
    """The shown branch, with its dates and numbers; the reasoning is folded.

    Texts are included verbatim: to print the result to a terminal, pass it through `safe_text`.
    """
    thread = store.thread(thread_id)
    facts = [
        f"- Begun: {_when(thread.created_at)}",
        f"- Last change: {_when(thread.changed_at)}",
    ]
    if thread.model:
        facts.insert(0, f"- Model: {thread.model}")
    parts = [f"# {thread.title or 'Chat'}", "\n".join(facts)]
    if thread.system:
        parts += ["## System prompt", _closed(thread.system)]
    for message in store.path(thread_id):
        parts += _message(message)
    return "\n\n".join(parts) + "\n"


def to_json(store: ChatStore, thread_id: str) -> dict[str, Any]:
    """The whole tree as JSON values: {"format", "version", "thread", "messages"}, parents before
    children. The fields are those of `Thread` and `ChatMessage`.
    """
    thread, tree = store.tree(thread_id)
    fields = asdict(thread)
    del fields["id"], fields["messages"]
    return {
        "format": FORMAT,
        "version": VERSION,
        "thread": fields,
        "messages": [_plain(message) for message in tree],
    }


def _plain(message: ChatMessage) -> dict[str, Any]:
    fields = asdict(message)
    del fields["siblings"]
    fields["tool_calls"] = list(fields["tool_calls"])
    return fields


def _message(message: ChatMessage) -> list[str]:
    parts = [f"## {_NAMES[message.role]}", f"*{_line(message)}*"]
    if message.reasoning:
        thoughts = _closed(re.sub("</(details|summary)", r"&lt;/\1", message.reasoning, flags=re.I))
        parts.append(f"<details>\n<summary>Thoughts</summary>\n\n{thoughts}\n\n</details>")
    if message.content:
        parts.append(_closed(message.content))
    for call in message.tool_calls:
        fence = "`" * (1 + max((len(run) for run in re.findall("`+", call.arguments)), default=2))
        parts.append(f"Tool call `{call.name}`:\n\n{fence}json\n{call.arguments}\n{fence}")
    return parts


def _line(message: ChatMessage) -> str:
    """Date, numbers, and how the answer ended if not normally."""
    facts = [_when(message.created_at), *_facts(message.numbers)]
    if message.state != "complete":
        facts.append("still being written" if message.state == "streaming" else message.state)
    if message.error:
        facts.append(" ".join(message.error.split()))
    return " · ".join(facts)


def _facts(numbers: Numbers | None) -> list[str]:
    if numbers is None:
        return []
    facts = [" ".join(part for part in (numbers.model, numbers.quantization) if part)]
    if numbers.prompt_tokens:
        facts.append(f"{numbers.prompt_tokens} prompt tokens, {numbers.cached_tokens} cached")
    if numbers.completion_tokens:
        facts.append(f"{numbers.completion_tokens} tokens")
    if numbers.ttft_s:
        facts.append(f"first token after {numbers.ttft_s:.2f} s")
    if numbers.tok_per_s:
        facts.append(f"{numbers.tok_per_s:.1f} tok/s")
    return [fact for fact in facts if fact]


def _closed(text: str) -> str:
    """`text` with its open code block closed, so that what follows is not part of that block.
    Source: CommonMark 0.31.2, section 4.5.
    """
    opened = ""
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence is None:
            continue
        marks, rest = fence.groups()
        if not opened:
            opened = "" if marks[0] == "`" and "`" in rest else marks
        elif marks[0] == opened[0] and len(marks) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().isoformat(" ", "seconds")


def import_json(store: ChatStore, data: Any) -> Thread:
    """Store the chat that `to_json` made, under new ids.

    Args:
        data: the result of `json.loads`.

    Raises:
        InvalidChat: `data` is not such a chat, or is too large; `field` in `data` says where.
    """
    top = _object(data, "chat", {"format", "version", "thread", "messages"})
    is_chat = top["format"] == FORMAT
    _require(is_chat, "format", f"this is not a chat of Hearth (expected {FORMAT!r}).")
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
        """The thread; its leaf must end a branch of `tree`."""
        where = "thread.leaf"
        given = _object(value, "thread", _names(Thread) - {"id", "messages"})
        leaf = given["leaf"]
        if leaf is None:
            _require(not tree, where, "it names no message.")
        else:
            is_there = self._text(leaf, where) in {message.id for message in tree}
            _require(is_there, where, f"there is no message {leaf[:40]!r}.")
            is_last = all(message.parent != leaf for message in tree)
            _require(is_last, where, "other messages follow it.")
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
        _require(isinstance(value, list), "messages", "it must be a list.")
        too_many = f"{len(value)} are too many (at most {MOST_MESSAGES})."
        _require(len(value) <= MOST_MESSAGES, "messages", too_many)
        return [self._message(entry, f"messages[{at}]") for at, entry in enumerate(value)]

    def _message(self, value: Any, where: str) -> ChatMessage:
        given = _object(value, where, _names(ChatMessage) - {"siblings"})
        parent, calls = given["parent"], given["tool_calls"]
        _require(isinstance(calls, list), f"{where}.tool_calls", "it must be a list.")
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
        given = _object(value, where, _names(ToolCall))
        return ToolCall(**{name: self._text(given[name], f"{where}.{name}") for name in given})

    def _numbers(self, value: Any, where: str) -> Numbers | None:
        if value is None:
            return None
        given = _object(value, where, _names(Numbers))
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
        # Imported here: the chat screen imports this module before the first paint.
        from hearth.app.presets import check_chat_settings

        try:
            settings = check_chat_settings(value)
        except HearthError as error:
            raise InvalidChat(where, error.message, _HINT) from error
        self._text(json.dumps(settings), where)
        return settings

    def _text(self, value: Any, where: str) -> Any:
        _require(isinstance(value, str), where, "it must be a text.")
        too_many = f"{len(value)} characters are too many (at most {LONGEST_TEXT})."
        _require(len(value) <= LONGEST_TEXT, where, too_many)
        self._left -= len(value)
        too_many = f"the chat has more than {LONGEST_CHAT} characters up to here."
        _require(self._left >= 0, where, too_many)
        return value


def _in_order(found: list[ChatMessage]) -> list[ChatMessage]:
    """Sort parents before children, keeping the order otherwise. Raises `InvalidChat` for an id
    that occurs twice, a missing parent, and messages that follow themselves.
    """
    by_id: dict[str | None, ChatMessage] = {}
    for index, message in enumerate(found):
        is_new = message.id not in by_id
        _require(is_new, f"messages[{index}].id", "another message has the same.")
        by_id[message.id] = message
    for index, message in enumerate(found):
        is_there = message.parent is None or message.parent in by_id
        missing = f"there is no message {str(message.parent)[:40]!r}."
        _require(is_there, f"messages[{index}].parent", missing)
    ordered: dict[str, ChatMessage] = {}
    for index, message in enumerate(found):
        chain: dict[str, ChatMessage] = {}
        link: ChatMessage | None = message
        while link is not None and link.id not in ordered:
            _require(link.id not in chain, f"messages[{index}].parent", "it follows itself.")
            chain[link.id] = link
            link = by_id.get(link.parent)
        ordered.update(reversed(chain.items()))
    return list(ordered.values())


def _require(condition: bool, where: str, otherwise: str) -> None:
    """Raise `InvalidChat` for the field `where` with text `otherwise`, unless `condition`."""
    if not condition:
        raise InvalidChat(where, otherwise, _HINT)


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


def _object(value: Any, where: str, names: set[str]) -> Mapping[str, Any]:
    """`value`, if it is an object with exactly these fields."""
    if not isinstance(value, dict):
        raise InvalidChat(where, "it must be an object.", _HINT)
    for name in sorted(names - value.keys()):
        raise InvalidChat(f"{where}.{name}", "it is missing.", _HINT)
    for name in sorted(map(str, value.keys() - names)):
        raise InvalidChat(f"{where}.{name[:40]}", "there is no such field.", _HINT)
    return value


def _one_of(value: Any, where: str, allowed: tuple[Any, ...]) -> Any:
    is_allowed = isinstance(value, str) and value in allowed
    _require(is_allowed, where, f"it must be one of {', '.join(allowed)}.")
    return value


def _number(value: Any, where: str, most: float = math.inf) -> Any:
    """`value`, if it is a finite number, at least 0 and at most `most`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(is_number, where, "it must be a number.")
    _require(0 <= value <= min(most, float(2**63)), where, "it is out of range.")
    return value


def _count(value: Any, where: str) -> Any:
    _require(type(value) is int, where, "it must be a whole number.")
    return _number(value, where, MOST_TOKENS)


def _boolean(value: Any, where: str) -> Any:
    _require(isinstance(value, bool), where, "it must be true or false.")
    return value
