"""Messages and threads as rows: what each column holds, and the hash of a message."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from hearth.app.chats.errors import InvalidChat
from hearth.app.chats.tree import ChatMessage, Numbers, Thread
from hearth.backends.messages import ToolCall

MESSAGE_COLUMNS: Final = (
    "id, parent, role, content, reasoning, tool_calls, created_at, state, finish_reason, error, "
    "numbers, hash"
)
THREAD_QUERY: Final = (
    "SELECT id, title, created_at, changed_at, pinned, archived, model, system, settings, leaf, "
    "(SELECT count(*) FROM branch WHERE branch.thread = thread.id) FROM thread"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, which no file can hold."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def message_of(row: Sequence[Any], siblings: tuple[str, ...] = ()) -> ChatMessage:
    """The message in a row of `MESSAGE_COLUMNS`."""
    numbers = None if row[10] is None else Numbers(**json.loads(row[10]))
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
        numbers=numbers,
        siblings=siblings,
        hash="" if row[11] is None else row[11].hex(),
    )


def thread_of(row: Sequence[Any]) -> Thread:
    """The thread in a row of `THREAD_QUERY`."""
    return Thread(
        id=row[0],
        title=row[1],
        created_at=row[2],
        changed_at=row[3],
        pinned=bool(row[4]),
        archived=bool(row[5]),
        model=row[6],
        system=row[7],
        settings=json.loads(row[8]),
        leaf=row[9],
        messages=row[10],
    )


def calls_json(calls: Sequence[ToolCall]) -> str:
    """A list of [id, name, arguments]."""
    return json.dumps([[call.id, call.name, call.arguments] for call in calls])


def numbers_json(numbers: Numbers | None) -> str | None:
    """An object of the fields, or None."""
    return None if numbers is None else json.dumps(asdict(numbers))


def settings_json(settings: dict[str, Any]) -> str:
    """Raises `InvalidChat` for what JSON cannot say."""
    try:
        return json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidChat(
            "settings", f"they cannot be kept: {error}.", "Settings are JSON values."
        ) from error


def hash_of(
    connection: sqlite3.Connection,
    parent: str | None,
    role: str,
    content: str,
    reasoning: str,
    calls: str,
) -> bytes:
    """BLAKE2b of a message and of all before it, so that equal pasts have equal hashes. 32 bytes.

    Args:
        calls: as `calls_json` gives them.
    """
    before = b""
    if parent is not None:
        query = "SELECT hash FROM message WHERE id = ?"
        (before,) = connection.execute(query, (parent,)).fetchone()
    said = json.dumps([role, content, reasoning, calls])
    return hashlib.blake2b(before + said.encode("ascii"), digest_size=32).digest()
