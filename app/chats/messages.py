"""Messages as rows: reading, adding, updating and ending answers, and removing what is not needed.

Every function runs within a transaction of the caller.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, Final, get_args

from hearth.app.chats.errors import ChatNotFound, InvalidChat, MessageInUse
from hearth.app.chats.search import forget, index_message
from hearth.app.chats.tree import ChatMessage, Numbers, Outline
from hearth.backends.contract.messages import Role, ToolCall

ROLES: Final = get_args(Role)
_COLUMNS: Final = (
    "id, parent, role, content, reasoning, tool_calls, created_at, state, finish_reason, error, "
    "numbers"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def new_id() -> str:
    """A random id for a thread or message: 16 hexadecimal digits."""
    return os.urandom(8).hex()


def clean(text: str) -> str:
    """`text` with lone surrogates, which cannot be encoded in a file, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


# ---- reading


def outline(connection: sqlite3.Connection, thread: str) -> Outline:
    """The shape of the message tree of `thread`."""
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
    """These messages of the thread with shape `shape`, in the given order."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM message WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(messages),),
    )
    by_id = {row[0]: _message_of(row, shape.siblings(row[0])) for row in rows}
    return [by_id[message] for message in messages]


def no_message(message: str) -> ChatNotFound:
    """The error for a message that does not exist."""
    return ChatNotFound(
        f"There is no message {message!r} in this chat.",
        "It may have been deleted; open the chat again.",
        message_id=message,
    )


def _message_of(row: Sequence[Any], siblings: tuple[str, ...]) -> ChatMessage:
    """The message in a row of `_COLUMNS`."""
    return ChatMessage(
        id=row[0],
        parent=row[1],
        role=row[2],
        content=row[3],
        reasoning=row[4],
        tool_calls=tuple(ToolCall(*call) for call in json.loads(row[5])),
        created_at=row[6],
        state=row[7],
        finish_reason=row[8],
        error=row[9],
        numbers=None if row[10] is None else Numbers(**json.loads(row[10])),
        siblings=siblings,
    )


# ---- adding


def append(
    connection: sqlite3.Connection, thread: str, message: ChatMessage, writer: str = ""
) -> ChatMessage:
    """Add `message` to `thread`, with the current time and a new id, after its parent (None: as a
    first message), and show it.

    Raises:
        ChatNotFound: the thread does not hold the parent.
        MessageInUse: the parent is still being written.
    """
    if message.parent is not None:
        query = (
            "SELECT message.state FROM branch JOIN message ON message.id = branch.message "
            "WHERE branch.thread = ? AND branch.message = ?"
        )
        row = connection.execute(query, (thread, message.parent)).fetchone()
        if row is None:
            raise no_message(message.parent)
        if row[0] == "streaming":
            raise MessageInUse(
                "The answer before is still being written.", "Wait for its end, or stop it."
            )
    added = insert(connection, replace(message, created_at=time.time()), writer)
    shape = hold(connection, thread, [added], added)
    return read(connection, shape, [added])[0]


def insert(connection: sqlite3.Connection, message: ChatMessage, writer: str = "") -> str:
    """Add `message` to the table under a new id, which is returned, and to the index if it has
    ended. Its parent must have ended. `writer`: the store that writes it while it is streaming.
    """
    role, parent = message.role, message.parent
    if role not in ROLES:
        raise InvalidChat("role", f"{role!r} is not one of {', '.join(ROLES)}.")
    content, reasoning = clean(message.content), clean(message.reasoning)
    calls = _calls_json(message.tool_calls)
    ended = message.state != "streaming"
    name = new_id()
    (number,) = connection.execute(
        f"INSERT INTO message(number, {_COLUMNS}, hash, writer) VALUES (1 + max("
        "(SELECT ifnull(max(number), 0) FROM message), "
        "(SELECT ifnull(max(message), 0) FROM deleted_words)), "
        "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number",
        (
            name,
            parent,
            role,
            content,
            reasoning,
            calls,
            message.created_at,
            message.state,
            clean(message.finish_reason),
            clean(message.error),
            _numbers_json(message.numbers),
            b"" if ended else None,
            writer,
        ),
    ).fetchone()
    if ended:
        index_message(connection, number, content)
    return name


def stopped(message: ChatMessage) -> ChatMessage:
    """`message`, with a streaming one marked as stopped."""
    return replace(message, state="stopped") if message.state == "streaming" else message


def hold(
    connection: sqlite3.Connection, thread: str, messages: Iterable[str], leaf: str
) -> Outline:
    """Let `thread` hold `messages`, which are on one path or come with their parents, and show the
    branch to `leaf`. Returns the new shape of the thread.
    """
    connection.executemany(
        "INSERT INTO branch(thread, message) VALUES (?, ?)",
        ((thread, message) for message in messages),
    )
    shape = outline(connection, thread)
    show(connection, thread, shape, leaf)
    return shape


def show(connection: sqlite3.Connection, thread: str, shape: Outline, leaf: str) -> None:
    """Make `leaf` the end of the shown branch, and record in each message before it which child the
    branch continues with.
    """
    path = shape.path(leaf)
    connection.executemany(
        "UPDATE branch SET shown = ?2 WHERE thread = ?3 AND message = ?1 AND shown IS NOT ?2",
        ((before, after, thread) for before, after in pairwise(path)),
    )
    connection.execute("UPDATE thread SET leaf = ? WHERE id = ?", (leaf, thread))


# ---- answers in progress


def save(
    connection: sqlite3.Connection,
    message: str,
    writer: str,
    content: str,
    reasoning: str,
    calls: Sequence[ToolCall],
) -> None:
    """Store the current state of an answer."""
    changed = connection.execute(
        "UPDATE message SET content = ?, reasoning = ?, tool_calls = ? "
        "WHERE id = ? AND state = 'streaming' AND writer = ?",
        (clean(content), clean(reasoning), _calls_json(calls), message, writer),
    )
    if changed.rowcount == 0:
        raise _not_written(connection, message)


def end(connection: sqlite3.Connection, answer: ChatMessage, writer: str) -> None:
    """Store the end state of a saved answer, and add it to the index."""
    numbers = answer.numbers
    row = connection.execute(
        "SELECT number, content, numbers FROM message "
        "WHERE id = ? AND state = 'streaming' AND writer = ?",
        (answer.id, writer),
    ).fetchone()
    if row is None:
        raise _not_written(connection, answer.id)
    number, content, begun = row
    if numbers is not None and not numbers.model and begun is not None:
        # The model was stored when the answer began.
        known = Numbers(**json.loads(begun))
        numbers = replace(numbers, model=known.model, quantization=known.quantization)
    connection.execute(
        "UPDATE message SET state = ?, finish_reason = ?, error = ?, numbers = ?, "
        "hash = x'', writer = '' WHERE number = ?",
        (
            answer.state,
            clean(answer.finish_reason),
            clean(answer.error),
            _numbers_json(numbers) or begun,
            number,
        ),
    )
    index_message(connection, number, content)


def resume(connection: sqlite3.Connection, message: str, writer: str) -> None:
    """Reopen an ended answer, to be written by `writer`."""
    query = (
        "SELECT role, state, (SELECT count(*) FROM message WHERE parent = ?1) "
        "+ (SELECT count(*) FROM branch WHERE message = ?1) FROM message WHERE id = ?1"
    )
    row = connection.execute(query, (message,)).fetchone()
    if row is None:
        raise no_message(message)
    role, state, held = row
    if role != "assistant":
        raise MessageInUse("Only answers can go on.", "Ask for an answer to this message instead.")
    if state == "streaming":
        raise MessageInUse("This answer is already being written.", "Wait for its end.")
    if held > 1:
        raise MessageInUse(
            "Other messages or other chats build on this answer.",
            "Edit it: its copy can go on, and this one stays.",
        )
    connection.execute(
        "UPDATE message SET state = 'streaming', finish_reason = '', error = '', hash = NULL, "
        "writer = ? WHERE id = ?",
        (writer, message),
    )


def unfinished(connection: sqlite3.Connection) -> list[str]:
    """The names of the writers that have answers in progress."""
    query = "SELECT DISTINCT writer FROM message WHERE state = 'streaming'"
    return [row[0] for row in connection.execute(query)]


def stop_cut_off(connection: sqlite3.Connection, is_alive: Callable[[str], bool]) -> None:
    """Mark the unfinished answers of writers that are gone as stopped."""
    for writer in unfinished(connection):
        if not is_alive(writer):
            query = "SELECT id FROM message WHERE state = 'streaming' AND writer = ?"
            for (message,) in connection.execute(query, (writer,)).fetchall():
                stopped_one = ChatMessage(message, None, "assistant", "", state="stopped")
                end(connection, stopped_one, writer)


def _not_written(connection: sqlite3.Connection, message: str) -> Exception:
    query = "SELECT 1 FROM message WHERE id = ?"
    if connection.execute(query, (message,)).fetchone() is None:
        return no_message(message)
    return MessageInUse(
        "This answer is not being written here: it has ended, or another Hearth writes it.",
        "Continue it, or ask for another one.",
    )


# ---- removing


def leave(connection: sqlite3.Connection, thread: str, messages: Sequence[str]) -> None:
    """Remove `messages` from `thread`, and delete those that no other thread holds."""
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


# ---- columns


def _calls_json(calls: Sequence[ToolCall]) -> str:
    """A JSON list of [id, name, arguments]."""
    return json.dumps([[clean(call.id), clean(call.name), clean(call.arguments)] for call in calls])


def _numbers_json(numbers: Numbers | None) -> str | None:
    """A JSON object of the fields, or None."""
    return None if numbers is None else json.dumps(asdict(numbers))
