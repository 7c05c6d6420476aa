"""Messages in the tree of a thread: reading, adding, and removing what is not needed.

All of it runs within a transaction of the caller.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, get_args

from hearth.app.chats.errors import ChatNotFound, InvalidChat, MessageInUse
from hearth.app.chats.index import forget, index_message
from hearth.app.chats.outline import Outline
from hearth.app.chats.rows import MESSAGE_COLUMNS, calls_json, clean, hash_of, message_of
from hearth.app.chats.tree import ChatMessage, State
from hearth.backends.messages import Role, ToolCall

ROLES: Final = get_args(Role)


def new_id() -> str:
    """A name for a thread or message: 16 hexadecimal digits, of chance."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class Draft:
    """What a message is made of."""

    role: str
    content: str
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    state: State = "complete"
    finish_reason: str = ""
    error: str = ""
    numbers: str | None = None
    """JSON."""
    writer: str = ""
    """Who writes it on, while it is streaming."""


def insert(
    connection: sqlite3.Connection, parent: str | None, draft: Draft, created_at: float
) -> str:
    """Add a message to the table, and if it has ended to the index; returns its id. The parent has
    ended.
    """
    if draft.role not in ROLES:
        raise InvalidChat("role", f"{draft.role!r} is none of {', '.join(ROLES)}.")
    content, reasoning = clean(draft.content), clean(draft.reasoning)
    calls = clean_calls(draft.tool_calls)
    ended = draft.state != "streaming"
    digest = hash_of(connection, parent, draft.role, content, reasoning, calls) if ended else None
    message = new_id()
    (number,) = connection.execute(
        f"INSERT INTO message(number, {MESSAGE_COLUMNS}, writer) VALUES (1 + max("
        "(SELECT ifnull(max(number), 0) FROM message), "
        "(SELECT ifnull(max(message), 0) FROM deleted_words)), "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
        (
            message,
            parent,
            draft.role,
            content,
            reasoning,
            calls,
            created_at,
            draft.state,
            clean(draft.finish_reason),
            clean(draft.error),
            draft.numbers,
            digest,
            draft.writer,
        ),
    ).fetchone()
    if ended:
        index_message(connection, number, content)
    return message


def clean_calls(calls: Sequence[ToolCall]) -> str:
    """The JSON of `calls`, which can be kept."""
    return calls_json(
        [ToolCall(clean(call.id), clean(call.name), clean(call.arguments)) for call in calls]
    )


def append(
    connection: sqlite3.Connection, thread: str, parent: str | None, draft: Draft
) -> ChatMessage:
    """Say something in `thread` after `parent` (None: first of all), and show it.

    Raises:
        ChatNotFound: the thread does not hold `parent`.
        MessageInUse: `parent` is still being written.
    """
    require_parent(connection, thread, parent)
    added = insert(connection, parent, draft, time.time())
    join(connection, thread, [added])
    shape = outline(connection, thread)
    show(connection, thread, shape, added)
    return read(connection, shape, [added])[0]


def copy_of(connection: sqlite3.Connection, message: str) -> str:
    """Another message of the same parent and content; an answer under way is a stopped one in the
    copy. Returns its id.
    """
    query = f"SELECT {MESSAGE_COLUMNS} FROM message WHERE id = ?"
    row = connection.execute(query, (message,)).fetchone()
    found = message_of(row)
    state: State = "stopped" if found.state == "streaming" else found.state
    draft = Draft(
        found.role,
        found.content,
        found.reasoning,
        found.tool_calls,
        state,
        found.finish_reason,
        found.error,
        numbers=row[10],
    )
    return insert(connection, found.parent, draft, found.created_at)


def outline(connection: sqlite3.Connection, thread: str) -> Outline:
    """The shape of the tree of `thread`."""
    return Outline(
        connection.execute(
            "SELECT message.id, message.parent, branch.shown FROM branch "
            "JOIN message ON message.id = branch.message "
            "WHERE branch.thread = ? ORDER BY message.number",
            (thread,),
        )
    )


def read(
    connection: sqlite3.Connection, shape: Outline, messages: Sequence[str]
) -> list[ChatMessage]:
    """These messages of the thread with `shape`, in this order."""
    rows = connection.execute(
        f"SELECT {MESSAGE_COLUMNS} FROM message WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(messages),),
    )
    found = {row[0]: message_of(row, shape.siblings(row[0])) for row in rows}
    return [found[message] for message in messages]


def require_in(connection: sqlite3.Connection, thread: str, message: str) -> None:
    """Raises `ChatNotFound` unless `thread` holds `message`."""
    query = "SELECT 1 FROM branch WHERE thread = ? AND message = ?"
    if connection.execute(query, (thread, message)).fetchone() is None:
        raise no_message(message)


def require_parent(connection: sqlite3.Connection, thread: str, parent: str | None) -> None:
    """Raises `ChatNotFound` or `MessageInUse` unless something can be said after `parent`."""
    if parent is None:
        return
    require_in(connection, thread, parent)
    query = "SELECT state FROM message WHERE id = ?"
    if connection.execute(query, (parent,)).fetchone()[0] == "streaming":
        raise MessageInUse(
            "The answer before is still being written.", "Wait for its end, or stop it."
        )


def no_message(message: str) -> ChatNotFound:
    """The error for a message that does not exist."""
    return ChatNotFound(
        f"There is no message {message!r} in this chat.",
        "It may have been deleted; open the chat again.",
        message_id=message,
    )


def show(connection: sqlite3.Connection, thread: str, shape: Outline, leaf: str) -> None:
    """Make `leaf` the end of the shown branch, and note at each message before it which way that
    goes.
    """
    path = shape.path(leaf)
    connection.executemany(
        "UPDATE branch SET shown = ?2 WHERE thread = ?3 AND message = ?1 AND shown IS NOT ?2",
        ((before, after, thread) for before, after in pairwise(path)),
    )
    connection.execute("UPDATE thread SET leaf = ? WHERE id = ?", (leaf, thread))


def join(connection: sqlite3.Connection, thread: str, messages: Iterable[str]) -> None:
    """Let `thread` hold `messages`, which stand on one path or come with their parents."""
    connection.executemany(
        "INSERT INTO branch(thread, message) VALUES (?, ?)",
        ((thread, message) for message in messages),
    )


def leave(connection: sqlite3.Connection, thread: str, messages: Sequence[str]) -> None:
    """Let `thread` hold `messages` no longer; those that no other thread holds are deleted."""
    gone = json.dumps(messages)
    connection.execute(
        "UPDATE branch SET shown = NULL "
        "WHERE thread = ? AND shown IN (SELECT value FROM json_each(?))",
        (thread, gone),
    )
    connection.execute(
        "DELETE FROM branch WHERE thread = ? AND message IN (SELECT value FROM json_each(?))",
        (thread, gone),
    )
    orphans = (
        "FROM message WHERE id IN (SELECT value FROM json_each(?)) "
        "AND NOT EXISTS (SELECT 1 FROM branch WHERE branch.message = message.id)"
    )
    numbers = [row[0] for row in connection.execute(f"SELECT number {orphans}", (gone,))]
    forget(connection, numbers)
    connection.execute(f"DELETE {orphans}", (gone,))
