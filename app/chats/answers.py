"""Answers under way: begun, saved while they grow, ended, continued; and those that were cut off.

All of it runs within a transaction of the caller.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from hearth.app.chats.errors import MessageInUse
from hearth.app.chats.index import index_message
from hearth.app.chats.messages import clean_calls, no_message
from hearth.app.chats.rows import clean, hash_of, numbers_json
from hearth.app.chats.tree import EndState, Numbers
from hearth.backends.messages import ToolCall


def save(
    connection: sqlite3.Connection,
    message: str,
    writer: str,
    content: str,
    reasoning: str,
    calls: Sequence[ToolCall],
) -> None:
    """Keep what an answer has become."""
    changed = connection.execute(
        "UPDATE message SET content = ?, reasoning = ?, tool_calls = ? "
        "WHERE id = ? AND state = 'streaming' AND writer = ?",
        (clean(content), clean(reasoning), clean_calls(calls), message, writer),
    )
    if changed.rowcount == 0:
        raise _not_written(connection, message)


def end(
    connection: sqlite3.Connection,
    message: str,
    writer: str,
    state: EndState,
    finish_reason: str = "",
    error: str = "",
    numbers: Numbers | None = None,
) -> None:
    """Give a saved answer its end, hash and place in the index."""
    row = connection.execute(
        "SELECT number, parent, role, content, reasoning, tool_calls, numbers FROM message "
        "WHERE id = ? AND state = 'streaming' AND writer = ?",
        (message, writer),
    ).fetchone()
    if row is None:
        raise _not_written(connection, message)
    number, parent, role, content, reasoning, calls, begun = row
    connection.execute(
        "UPDATE message SET state = ?, finish_reason = ?, error = ?, numbers = ?, hash = ?, "
        "writer = '' WHERE number = ?",
        (
            state,
            clean(finish_reason),
            clean(error),
            _numbers(numbers, begun),
            hash_of(connection, parent, role, content, reasoning, calls),
            number,
        ),
    )
    index_message(connection, number, content)


def resume(connection: sqlite3.Connection, message: str, writer: str) -> None:
    """Let an ended answer go on, written by `writer`."""
    query = "SELECT role, state FROM message WHERE id = ?"
    row = connection.execute(query, (message,)).fetchone()
    if row is None:
        raise no_message(message)
    if row[0] != "assistant":
        raise MessageInUse("Only answers can go on.", "Ask for an answer to this message instead.")
    if row[1] == "streaming":
        raise MessageInUse("This answer is already being written.", "Wait for its end.")
    if _is_built_on(connection, message):
        raise MessageInUse(
            "Other messages or other chats build on this answer.",
            "Edit it: its copy can go on, and this one stays.",
        )
    connection.execute(
        "UPDATE message SET state = 'streaming', finish_reason = '', error = '', hash = NULL, "
        "writer = ? WHERE id = ?",
        (writer, message),
    )


def is_written_by(connection: sqlite3.Connection, message: str, writer: str) -> bool:
    """The answer is under way, and `writer` writes it."""
    query = "SELECT 1 FROM message WHERE id = ? AND state = 'streaming' AND writer = ?"
    return connection.execute(query, (message, writer)).fetchone() is not None


def unfinished(connection: sqlite3.Connection) -> list[str]:
    """The names of the writers that have answers under way."""
    query = "SELECT DISTINCT writer FROM message WHERE state = 'streaming'"
    return [row[0] for row in connection.execute(query)]


def stop_cut_off(connection: sqlite3.Connection, is_alive: Callable[[str], bool]) -> None:
    """Let the answers of writers that are gone be stopped ones."""
    for writer in unfinished(connection):
        if is_alive(writer):
            continue
        query = "SELECT id FROM message WHERE state = 'streaming' AND writer = ?"
        for (message,) in connection.execute(query, (writer,)).fetchall():
            end(connection, message, writer, "stopped")


def _numbers(measured: Numbers | None, begun: str | None) -> str | None:
    """What was measured; the model is known since the answer began."""
    if measured is None or begun is None:
        return numbers_json(measured) or begun
    known = Numbers(**json.loads(begun))
    if not measured.model:
        measured = replace(measured, model=known.model, quantization=known.quantization)
    return json.dumps(asdict(measured))


def _is_built_on(connection: sqlite3.Connection, message: str) -> bool:
    (children,) = connection.execute(
        "SELECT count(*) FROM message WHERE parent = ?", (message,)
    ).fetchone()
    (threads,) = connection.execute(
        "SELECT count(*) FROM branch WHERE message = ?", (message,)
    ).fetchone()
    return bool(children) or threads > 1


def _not_written(connection: sqlite3.Connection, message: str) -> Exception:
    query = "SELECT 1 FROM message WHERE id = ?"
    if connection.execute(query, (message,)).fetchone() is None:
        return no_message(message)
    return MessageInUse(
        "This answer is not being written here: it has ended, or another Hearth writes it.",
        "Continue it, or ask for another one.",
    )
