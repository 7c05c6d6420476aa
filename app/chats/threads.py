"""Threads as rows: made, changed, cloned, removed.

All of it runs within a transaction of the caller.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hearth.app.chats import messages
from hearth.app.chats.errors import ChatNotFound
from hearth.app.chats.index import TITLES, forget, index_title
from hearth.app.chats.messages import Draft
from hearth.app.chats.outline import Outline
from hearth.app.chats.rows import THREAD_QUERY, clean, numbers_json, settings_json, thread_of
from hearth.app.chats.titles import one_line, title_from
from hearth.app.chats.tree import ChatMessage, Thread


def get(connection: sqlite3.Connection, thread: str) -> Thread:
    """Raises `ChatNotFound`."""
    row = connection.execute(f"{THREAD_QUERY} WHERE id = ?", (thread,)).fetchone()
    if row is None:
        raise ChatNotFound(
            f"There is no chat {thread!r}.", "It may have been deleted.", thread_id=thread
        )
    return thread_of(row)


def select(
    connection: sqlite3.Connection, archived: bool, limit: int | None, offset: int
) -> list[Thread]:
    """Pinned ones first, then by their last change, the newest first."""
    rows = connection.execute(
        f"{THREAD_QUERY} WHERE archived = ? "
        "ORDER BY pinned DESC, changed_at DESC, number DESC LIMIT ? OFFSET ?",
        (archived, -1 if limit is None else limit, offset),
    )
    return [thread_of(row) for row in rows]


def insert(
    connection: sqlite3.Connection, title: str, system: str, model: str, settings: dict[str, Any]
) -> Thread:
    """A new thread, empty."""
    now = time.time()
    new = messages.new_id()
    connection.execute(
        "INSERT INTO thread(id, title, created_at, changed_at, model, system, settings) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (new, one_line(title), now, now, clean(model), clean(system), settings_json(settings)),
    )
    _index(connection, new)
    return get(connection, new)


def change(connection: sqlite3.Connection, thread: str, fields: Mapping[str, Any]) -> None:
    """Set these columns."""
    for name, value in fields.items():
        connection.execute(f"UPDATE thread SET {name} = ? WHERE id = ?", (value, thread))
    if "title" in fields:
        _index(connection, thread)


def touch(connection: sqlite3.Connection, thread: str) -> None:
    """Its messages change now."""
    change(connection, thread, {"changed_at": time.time()})


def touch_holders(connection: sqlite3.Connection, message: str) -> None:
    """The messages of all threads that hold `message` change now."""
    query = "SELECT thread FROM branch WHERE message = ?"
    for (thread,) in connection.execute(query, (message,)).fetchall():
        touch(connection, thread)


def name_after(connection: sqlite3.Connection, thread: str, content: str) -> None:
    """Make a title of what the user says, where there is none."""
    if not get(connection, thread).title:
        change(connection, thread, {"title": title_from(content)})


def clone(connection: sqlite3.Connection, old: Thread, shape: Outline, leaf: str | None) -> Thread:
    """A thread that shares the path to `leaf`; an answer at its end is copied."""
    new = insert(connection, old.title, old.system, old.model, old.settings)
    path = shape.path(leaf)
    if path:
        if messages.read(connection, shape, path[-1:])[0].role == "assistant":
            path[-1] = messages.copy_of(connection, path[-1])
        _hold(connection, new.id, path, path[-1])
    return get(connection, new.id)


def remove(connection: sqlite3.Connection, thread: str, shape: Outline) -> None:
    """Delete a thread and the messages that no other one holds."""
    (number,) = connection.execute(
        "DELETE FROM thread WHERE id = ? RETURNING number", (thread,)
    ).fetchone()
    index_title(connection, number, "")
    forget(connection, [TITLES])
    messages.leave(connection, thread, shape.messages)
    keep_draft(connection, thread, "")


def restore(connection: sqlite3.Connection, thread: Thread, tree: Sequence[ChatMessage]) -> Thread:
    """Add a thread that comes from elsewhere, with new ids; see `ChatStore.insert`."""
    new = insert(connection, thread.title, thread.system, thread.model, thread.settings)
    ids: dict[str | None, str | None] = {None: None}
    held = []
    for message in tree:
        draft = Draft(
            message.role,
            message.content,
            message.reasoning,
            message.tool_calls,
            "stopped" if message.state == "streaming" else message.state,
            message.finish_reason,
            message.error,
            numbers_json(message.numbers),
        )
        added = messages.insert(connection, ids[message.parent], draft, message.created_at)
        ids[message.id] = added
        held.append(added)
    leaf = ids[thread.leaf]
    if leaf is not None:
        _hold(connection, new.id, held, leaf)
    fields = {
        "created_at": thread.created_at,
        "changed_at": thread.changed_at,
        "pinned": thread.pinned,
        "archived": thread.archived,
    }
    change(connection, new.id, fields)
    return get(connection, new.id)


def keep_draft(connection: sqlite3.Connection, thread: str, text: str) -> None:
    """Keep the text that is not sent yet; an empty one is removed. `thread` '': the new chat."""
    connection.execute("DELETE FROM draft WHERE thread = ?", (thread,))
    if text:
        connection.execute("INSERT INTO draft(thread, text) VALUES (?, ?)", (thread, clean(text)))


def _hold(connection: sqlite3.Connection, thread: str, held: Sequence[str], leaf: str) -> None:
    messages.join(connection, thread, held)
    messages.show(connection, thread, messages.outline(connection, thread), leaf)


def _index(connection: sqlite3.Connection, thread: str) -> None:
    query = "SELECT number, title FROM thread WHERE id = ?"
    index_title(connection, *connection.execute(query, (thread,)).fetchone())
