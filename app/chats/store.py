"""`ChatStore`: the stored chats of this user."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self, get_args

from hearth.app.chats import messages
from hearth.app.chats.database import Database
from hearth.app.chats.errors import (
    ChatNotFound,
    ChatsDiskFull,
    ChatsLocked,
    ChatsUnwritable,
    InvalidChat,
    MessageInUse,
)
from hearth.app.chats.messages import clean
from hearth.app.chats.search import TITLES, find, forget, index_title
from hearth.app.chats.titles import one_line, title_from
from hearth.app.chats.tree import ChatMessage, Hit, Numbers, Outline, Thread
from hearth.app.chats.writers import Ending, Unsaved, Writers
from hearth.backends.contract.messages import Role, ToolCall
from hearth.backends.errors import HearthError

log = logging.getLogger(__name__)

_THREADS: Final = (
    "SELECT id, title, created_at, changed_at, pinned, archived, model, system, settings, leaf, "
    "(SELECT count(*) FROM branch WHERE branch.thread = thread.id) FROM thread"
)
_UNWRITABLE_NOW: Final = (ChatsLocked, ChatsDiskFull, ChatsUnwritable)
_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 30.0


class ChatStore:
    """Threads and the trees of their messages, in one SQLite file.

    The changes of a method are on disk when it returns. Any thread may call, and several processes
    may have the same file open. Messages that have ended never change: an edit adds a sibling, and
    a clone shares messages. Lone surrogates in texts are stored as U+FFFD.

    Args:
        path: the file; created if missing, accessible only to its owner.
        busy_timeout_s: how long to wait for other processes.

    Raises (here and from every method):
        ChatsLocked, ChatsDiskFull, ChatsUnwritable, ChatsCorrupt, ChatsForeign: the file cannot be
            used; what was stored before is kept.
        ChatNotFound: the thread does not exist, or has no such message.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 10.0) -> None:
        self._database = Database(path, busy_timeout_s)
        self._writers = Writers(path)
        self._unsaved = Unsaved(path)
        self._is_closed = False
        try:
            self.stop_cut_off()
        except _UNWRITABLE_NOW as error:
            self._retry_later(error, _FIRST_RETRY_S)
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file. Unfinished answers of this store are marked as stopped; what cannot be
        written now is written when a store is next opened.
        """
        self._is_closed = True
        try:
            if own := self._writers.name:
                with self._write() as connection:
                    messages.stop_cut_off(connection, lambda writer: writer != own)
        except _UNWRITABLE_NOW as error:
            log.warning("the ends of answers are saved at the next start: %s", error.message)
        finally:
            self._unsaved.close()
            self._writers.release()
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- threads

    def threads(self, *, archived: bool = False, limit: int | None = None) -> list[Thread]:
        """The archived threads, or those that are not archived: pinned ones first, then by last
        change, newest first.
        """
        with self._database.read() as connection:
            rows = connection.execute(
                f"{_THREADS} WHERE archived = ? "
                "ORDER BY pinned DESC, changed_at DESC, number DESC LIMIT ?",
                (archived, -1 if limit is None else limit),
            )
            return [_thread_of(row) for row in rows]

    def newest(self) -> Thread | None:
        """The unarchived thread that changed last, pinned or not; None if there is none."""
        with self._database.read() as connection:
            row = connection.execute(
                f"{_THREADS} WHERE NOT archived ORDER BY changed_at DESC, number DESC LIMIT 1"
            ).fetchone()
            return None if row is None else _thread_of(row)

    def create(
        self,
        *,
        title: str = "",
        system: str = "",
        model: str = "",
        settings: dict[str, Any] | None = None,
    ) -> Thread:
        """Create an empty thread."""
        with self._write() as connection:
            return _get(connection, _insert(connection, title, system, model, settings or {}))

    def thread(self, thread_id: str) -> Thread:
        """The thread in its current state."""
        with self._database.read() as connection:
            return _get(connection, thread_id)

    def update(
        self,
        thread_id: str,
        *,
        title: str | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        model: str | None = None,
        system: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Thread:
        """Change the given fields. With an empty title, the user's next message supplies one."""
        fields = {
            "title": None if title is None else one_line(title),
            "pinned": pinned,
            "archived": archived,
            "model": None if model is None else clean(model),
            "system": None if system is None else clean(system),
            "settings": None if settings is None else _settings_json(settings),
        }
        with self._write() as connection:
            _get(connection, thread_id)
            _change(connection, thread_id, {k: v for k, v in fields.items() if v is not None})
            return _get(connection, thread_id)

    def clone(self, thread_id: str, leaf: str | None = None) -> Thread:
        """Create a thread whose past is the path to `leaf` (default: the end of the shown branch).

        The new thread shares these messages, except for an answer at the end: that one is copied,
        since it may be continued in one thread and not in the other.
        """
        with self._tree(self._write, thread_id, leaf) as (connection, old, shape):
            new = _insert(connection, old.title, old.system, old.model, old.settings)
            path = shape.path(leaf or old.leaf)
            if path:
                (last,) = messages.read(connection, shape, path[-1:])
                if last.role == "assistant":
                    path[-1] = messages.insert(connection, messages.stopped(last))
                messages.hold(connection, new, path, path[-1])
            return _get(connection, new)

    def delete(self, thread_id: str) -> None:
        """Delete a thread and the messages that no other thread shares. After the store is closed,
        neither the file nor the files next to it contain any trace of them.
        """
        with self._tree(self._write, thread_id) as (connection, _, shape):
            (number,) = connection.execute(
                "DELETE FROM thread WHERE id = ? RETURNING number", (thread_id,)
            ).fetchone()
            index_title(connection, number, "")
            forget(connection, [TITLES])
            messages.leave(connection, thread_id, shape.messages)
            connection.execute("DELETE FROM draft WHERE thread = ?", (thread_id,))

    def draft(self, thread_id: str = "") -> str:
        """The unsent text in the prompt of this chat; '' stands for the new chat."""
        with self._database.read() as connection:
            query = "SELECT text FROM draft WHERE thread = ?"
            row = connection.execute(query, (thread_id,)).fetchone()
            return row[0] if row else ""

    def keep_draft(self, thread_id: str, text: str) -> None:
        """Store the unsent text; an empty text removes it."""
        with self._write() as connection:
            if thread_id:
                _get(connection, thread_id)
            connection.execute("DELETE FROM draft WHERE thread = ?", (thread_id,))
            if text:
                insertion = "INSERT INTO draft(thread, text) VALUES (?, ?)"
                connection.execute(insertion, (thread_id, clean(text)))

    # ---- messages

    def path(self, thread_id: str, leaf: str | None = None) -> list[ChatMessage]:
        """The messages from the first to `leaf` (default: the end of the shown branch)."""
        with self._tree(self._database.read, thread_id, leaf) as (connection, thread, shape):
            path = shape.path(leaf or thread.leaf)
            return self._with_unsaved(messages.read(connection, shape, path))

    def tree(self, thread_id: str) -> tuple[Thread, list[ChatMessage]]:
        """The thread and all its messages in the order of creation, parents first."""
        with self._tree(self._database.read, thread_id) as (connection, thread, shape):
            return thread, self._with_unsaved(messages.read(connection, shape, shape.messages))

    def message(self, message_id: str) -> ChatMessage:
        """The message. If several threads share it, its siblings are those of the thread that
        changed last.
        """
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT thread.id FROM branch JOIN thread ON thread.id = branch.thread "
                "WHERE branch.message = ? ORDER BY changed_at DESC, number DESC LIMIT 1",
                (message_id,),
            ).fetchone()
            if row is None:
                raise messages.no_message(message_id)
            shape = messages.outline(connection, row[0])
            return self._with_unsaved(messages.read(connection, shape, [message_id]))[0]

    def add(
        self,
        thread_id: str,
        parent: str | None,
        role: Role,
        content: str,
        reasoning: str = "",
        tool_calls: Sequence[ToolCall] = (),
    ) -> ChatMessage:
        """Add a message after `parent` (None: as a first message) and show the branch that it ends.

        Raises:
            MessageInUse: `parent` is still being written.
        """
        said = ChatMessage("", parent, role, content, reasoning, tuple(tool_calls))
        with self._write() as connection:
            thread = _get(connection, thread_id)
            added = messages.append(connection, thread_id, said)
            if role == "user" and not thread.title:
                _change(connection, thread_id, {"title": title_from(added.content)})
            _touch(connection, thread_id)
            return added

    def edit(self, thread_id: str, message_id: str, content: str) -> ChatMessage:
        """Add a sibling with different text and show it. The message itself and its descendants
        stay.
        """
        with self._tree(self._write, thread_id, message_id) as (connection, _, shape):
            (old,) = messages.read(connection, shape, [message_id])
            other = ChatMessage("", old.parent, old.role, content, old.reasoning, old.tool_calls)
            _touch(connection, thread_id)
            return messages.append(connection, thread_id, other)

    def select(self, thread_id: str, message_id: str) -> list[ChatMessage]:
        """Show the branch through this message, down to the end that was last shown or created.
        Returns its messages.
        """
        with self._tree(self._write, thread_id, message_id) as (connection, _, shape):
            leaf = shape.end_of(message_id)
            messages.show(connection, thread_id, shape, leaf)
            return messages.read(connection, shape, shape.path(leaf))

    def delete_branch(self, thread_id: str, message_id: str) -> list[ChatMessage]:
        """Delete this message and all its descendants, as `delete` does, unless another thread
        shares them. If the branch was shown, a sibling's branch is shown next, or the parent.
        Returns the shown messages.
        """
        with self._tree(self._write, thread_id, message_id) as (connection, thread, shape):
            gone = shape.subtree(message_id)
            leaf = thread.leaf
            if leaf in gone:
                leaf = shape.after_deletion(message_id)
                connection.execute("UPDATE thread SET leaf = ? WHERE id = ?", (leaf, thread_id))
            messages.leave(connection, thread_id, gone)
            shape = messages.outline(connection, thread_id)
            if leaf is not None:
                messages.show(connection, thread_id, shape, leaf)
            _touch(connection, thread_id)
            return messages.read(connection, shape, shape.path(leaf))

    # ---- answers

    def begin_answer(self, thread_id: str, parent: str | None, model: str = "") -> ChatMessage:
        """Add and show an empty answer after `parent`, to be written by this store.

        Raises:
            MessageInUse: `parent` is still being written.
        """
        numbers = Numbers(model=clean(model)) if model else None
        begun = ChatMessage("", parent, "assistant", "", state="streaming", numbers=numbers)
        writer = self._own_name()
        with self._write() as connection:
            _get(connection, thread_id)
            _touch(connection, thread_id)
            return messages.append(connection, thread_id, begun, writer)

    def save_answer(
        self,
        message_id: str,
        content: str,
        reasoning: str,
        tool_calls: Sequence[ToolCall] = (),
    ) -> None:
        """Store the current state of an answer.

        Raises:
            MessageInUse: the answer has ended, or another store writes it.
        """
        writer = self._own_name()
        with self._write() as connection:
            messages.save(connection, message_id, writer, content, reasoning, tool_calls)

    def end_answer(self, answer: ChatMessage) -> None:
        """Store the complete answer and its end state.

        When the file cannot be written (`ChatsLocked`, `ChatsDiskFull`, `ChatsUnwritable`), the
        answer is kept in memory and in a second file, and every method returns it. It is written to
        the database with the next change, by retries, or when a store is next opened.

        Raises:
            MessageInUse: the answer had already ended, or another store writes it.
        """
        ending = Ending(answer, self._own_name())
        with self._database.lock:
            self._unsaved.endings.pop(answer.id, None)
        try:
            with self._write() as connection:
                _end(connection, ending)
        except _UNWRITABLE_NOW as failure:
            with self._database.lock:
                self._unsaved.keep(ending)
            self._retry_later(failure, _FIRST_RETRY_S)
            raise

    def continue_answer(self, message_id: str) -> None:
        """Reopen an answer that has ended, to be written by this store.

        Raises:
            MessageInUse: the message is being written, is not an answer, or others build on it.
        """
        writer = self._own_name()
        with self._write() as connection:
            messages.resume(connection, message_id, writer)

    def stop_cut_off(self) -> None:
        """Store the answers left behind by stores that were killed, and mark their other unfinished
        answers as stopped. Runs whenever a store is opened.
        """
        with self._database.lock, self._database.translated():
            self._writers.clear()
            self._unsaved.recover(self._writers.is_alive)
        with self._database.read() as connection:
            unfinished = messages.unfinished(connection)
        if self._unsaved.endings or not all(map(self._writers.is_alive, unfinished)):
            with self._write() as connection:
                messages.stop_cut_off(connection, self._writers.is_alive)

    # ---- all of them

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Find titles, then messages, that contain all words of `query`, of which the last may be
        unfinished; the best first. The query has no syntax. Archived threads are searched too.
        """
        with self._database.read() as connection:
            return find(connection, query, limit)

    def insert(self, thread: Thread, tree: Sequence[ChatMessage]) -> Thread:
        """Add a thread from elsewhere, with new ids.

        Args:
            thread: its `leaf` is one of the messages and has no children.
            tree: parents before children; streaming messages are stored as stopped.
        """
        with self._write() as connection:
            new = _insert(connection, thread.title, thread.system, thread.model, thread.settings)
            ids: dict[str | None, str | None] = {None: None}
            held = []
            for message in tree:
                moved = replace(messages.stopped(message), parent=ids[message.parent])
                added = ids[message.id] = messages.insert(connection, moved)
                held.append(added)
            leaf = ids[thread.leaf]
            if leaf is not None:
                messages.hold(connection, new, held, leaf)
            fields = {
                "created_at": thread.created_at,
                "changed_at": thread.changed_at,
                "pinned": thread.pinned,
                "archived": thread.archived,
            }
            _change(connection, new, fields)
            return _get(connection, new)

    @contextlib.contextmanager
    def _tree(
        self,
        begin: Callable[[], AbstractContextManager[sqlite3.Connection]],
        thread_id: str,
        message_id: str | None = None,
    ) -> Iterator[tuple[sqlite3.Connection, Thread, Outline]]:
        """A transaction of `begin`, the thread and its shape. Raises `ChatNotFound` if the thread
        does not exist or does not hold `message_id`.
        """
        with begin() as connection:
            thread = _get(connection, thread_id)
            shape = messages.outline(connection, thread_id)
            if message_id is not None and message_id not in shape:
                raise messages.no_message(message_id)
            yield connection, thread, shape

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, which also stores the answers that could not be saved before."""
        with self._database.lock:
            waiting = list(self._unsaved.endings.values())
            with self._database.write() as connection:
                for ending in waiting:
                    # The answer may have been deleted, or ended by another store.
                    with contextlib.suppress(ChatNotFound, MessageInUse):
                        _end(connection, ending)
                yield connection
            self._unsaved.forget(waiting)

    def _retry_later(self, error: HearthError, delay_s: float) -> None:
        log.warning("an answer is saved later: %s", error.message)
        timer = threading.Timer(delay_s, self._retry, (delay_s,))
        timer.daemon = True
        timer.start()

    def _retry(self, waited_s: float) -> None:
        if self._is_closed:
            return
        try:
            with self._database.without_waiting():
                self.stop_cut_off()
        except HearthError as error:
            self._retry_later(error, min(2 * waited_s, _LONGEST_RETRY_S))

    def _with_unsaved(self, found: Sequence[ChatMessage]) -> list[ChatMessage]:
        """`found`, with the current text and state of answers that could not be saved yet."""
        return [
            replace(
                ending.answer,
                parent=message.parent,
                created_at=message.created_at,
                siblings=message.siblings,
                numbers=ending.answer.numbers or message.numbers,
            )
            if (ending := self._unsaved.endings.get(message.id)) and message.state == "streaming"
            else message
            for message in found
        ]

    def _own_name(self) -> str:
        with self._database.lock, self._database.translated():
            name = self._writers.own()
            self._unsaved.reserve(name)
            return name


def _get(connection: sqlite3.Connection, thread: str) -> Thread:
    """Raises `ChatNotFound`."""
    row = connection.execute(f"{_THREADS} WHERE id = ?", (thread,)).fetchone()
    if row is None:
        raise ChatNotFound(
            f"There is no chat {thread!r}.", "It may have been deleted.", thread_id=thread
        )
    return _thread_of(row)


def _thread_of(row: Sequence[Any]) -> Thread:
    """The thread in a row of `_THREADS`."""
    return Thread(
        id=row[0],
        title=row[1],
        created_at=row[2],
        changed_at=row[3],
        pinned=bool(row[4]),
        archived=bool(row[5]),
        model=row[6],
        system=row[7],
        settings=_settings_of(row[8]),
        leaf=row[9],
        messages=row[10],
    )


def _settings_of(text: str) -> dict[str, Any]:
    """The settings of a chat. Earlier versions did not check imported settings: values of the wrong
    form are left out here, and a value out of range is refused when the chat sends a request.
    """
    stored = json.loads(text)
    settings = stored if isinstance(stored, dict) else {}
    kept = {name: value for name, value in settings.items() if _has_form(name, value)}
    if kept != stored:
        _warn_of(text)
    return kept


@functools.lru_cache
def _warn_of(settings: str) -> None:
    """Log each text once, although chats are read often."""
    log.warning("settings of a chat are ignored: %s", settings)


def _has_form(name: str, value: object) -> bool:
    match name:
        case "set":
            return isinstance(value, dict)
        case "thinking":
            return isinstance(value, bool | None)
        case "preset":
            return isinstance(value, str)
        case "constraint":
            if not isinstance(value, dict):
                return value is None
            # Imported here: the chat screen imports this module before the first paint.
            from hearth.backends.contract.requests import ConstraintKind

            kind, source = value.get("kind"), value.get("source", "")
            return kind in get_args(ConstraintKind) and isinstance(source, str)
        case _:
            return True


def _insert(
    connection: sqlite3.Connection, title: str, system: str, model: str, settings: dict[str, Any]
) -> str:
    """Add a thread without messages; returns its id."""
    now, new = time.time(), messages.new_id()
    connection.execute(
        "INSERT INTO thread(id, title, created_at, changed_at, model, system, settings) "
        "VALUES (?, '', ?, ?, ?, ?, ?)",
        (new, now, now, clean(model), clean(system), _settings_json(settings)),
    )
    _change(connection, new, {"title": one_line(title)})
    return new


def _settings_json(settings: dict[str, Any]) -> str:
    """Raises `InvalidChat` for values that JSON cannot represent."""
    try:
        return json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidChat(
            "settings", f"they cannot be kept: {error}.", "Settings are JSON values."
        ) from error


def _change(connection: sqlite3.Connection, thread: str, fields: Mapping[str, Any]) -> None:
    """Set these columns of the thread."""
    for name, value in fields.items():
        query = f"UPDATE thread SET {name} = ? WHERE id = ? RETURNING number"
        (number,) = connection.execute(query, (value, thread)).fetchone()
        if name == "title":
            index_title(connection, number, value)


def _touch(connection: sqlite3.Connection, thread: str) -> None:
    """Record that the thread's messages change now."""
    _change(connection, thread, {"changed_at": time.time()})


def _end(connection: sqlite3.Connection, ending: Ending) -> None:
    """Store the complete answer and its end state."""
    answer, writer = ending
    parts = answer.content, answer.reasoning, answer.tool_calls
    messages.save(connection, answer.id, writer, *parts)
    messages.end(connection, answer, writer)
    connection.execute(
        "UPDATE thread SET changed_at = ? "
        "WHERE id IN (SELECT thread FROM branch WHERE message = ?)",
        (time.time(), answer.id),
    )
