"""Open chats: their messages, the answers that are being generated, and the services they use.
Independent of any widgets.
"""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hearth.app.chats.errors import NotAnswered
from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.chosen import Chosen, with_settings
from hearth.app.kv_files import forget_kv
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import Library
from hearth.app.paths import Paths
from hearth.app.session.events import (
    Changed,
    Ended,
    Listener,
    Moved,
    Noticed,
    SessionEvent,
)
from hearth.app.settings import Settings, layer_of
from hearth.backends.errors import Busy, HearthError, InvalidParameter

if TYPE_CHECKING:
    from hearth.app.host_connection import HostConnection
    from hearth.app.overflow import Overflow
    from hearth.app.session.turn import StreamingAnswer, Turn
    from hearth.backends.contract.backend import Backend
    from hearth.backends.contract.loaded import ModelInfo
    from hearth.backends.contract.requests import Request


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded model, with the settings that apply to it."""

    chosen: Chosen
    backend: Backend
    info: ModelInfo


@dataclass(slots=True)
class ChatServices:
    """The services behind the open chats.

    Attributes:
        settings: of the file, the environment and flags.
        shown_notices: notices of models, with the models' paths, that were already shown.
        index: the names of the library's models, for lookups on the event loop.
    """

    paths: Paths
    settings: Settings
    library: Library
    chats: ChatStore
    host: HostConnection
    shown_notices: set[tuple[str, str]] = field(default_factory=set, kw_only=True)
    index: LibraryIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = LibraryIndex(self.library)

    async def choose(self, model: str, changes: Mapping[str, Any]) -> Chosen:
        """The model called `model` (empty: the default model) with the settings that apply to it.

        Args:
            changes: the chat's own values of settings, by name.

        Raises:
            HearthError: as `LibraryIndex.resolve`.
            SettingsError: a change is out of range, or the settings cannot be used.
        """
        settings = self.settings.with_flags(layer_of(changes, "this chat"))
        resolved = await self.index.resolve(model or settings.text("model"))
        # In a thread, because it may read a template file.
        return await asyncio.to_thread(with_settings, resolved, settings)

    async def load(self, model: str, changes: Mapping[str, Any]) -> Loaded:
        """As `choose`, and load the model. Raises HearthError."""
        chosen = await self.choose(model, changes)
        backend = await self.host.backend(chosen.spec)
        return Loaded(chosen, backend, await backend.info())


class ChatSession:
    """An open chat. Its answers continue without subscribers.

    Every change is in the store before it takes effect. Methods that change something, except
    `stop`, raise `Busy` while an answer is being generated or another of them is running.

    Attributes:
        thread: title, model, system prompt, settings.
        messages: the shown branch, oldest first.
        live: the answer that is being generated; None between turns.
        progress: the state of the turn.
        info: describes the model that answered last; None before the first answer.
    """

    def __init__(self, services: ChatServices, thread: Thread, messages: list[ChatMessage]) -> None:
        self.thread = thread
        self.messages = messages
        self.live: StreamingAnswer | None = None
        self.progress = Moved("idle")
        self.info: ModelInfo | None = None
        self.unread = False
        """Whether an answer ended without a subscriber."""
        self._is_prepared = False
        self._is_changing = False
        self._services = services
        self._listeners: list[Listener] = []
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None

    # ---- watching

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each event from now on; returns a function that unsubscribes it."""
        self._listeners.append(listener)
        self.unread = False
        return lambda: self._listeners.remove(listener)

    def emit(self, event: SessionEvent) -> None:
        """Call all listeners with `event`."""
        if isinstance(event, Moved):
            self.progress = event
        for listener in tuple(self._listeners):
            listener(event)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is being generated."""
        is_over = self._task is None or self._task.done()
        return self.live is not None and not is_over

    @property
    def model(self) -> str:
        """The name of the model that answers next."""
        return self.thread.model or self._services.settings.text("model")

    @property
    def left_out(self) -> int:
        """Number of first messages that are no longer sent because the context is full."""
        first = self._turn.first if self._turn is not None else ""
        return next((at for at, one in enumerate(self.messages) if one.id == first), 0)

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer of the last turn, as counted by its worker."""
        for message in reversed(self.messages):
            if message.numbers is not None and message.numbers.prompt_tokens:
                return message.numbers.prompt_tokens + message.numbers.completion_tokens
        return 0

    # ---- turns

    async def send(self, text: str) -> None:
        """Add `text` and start the answer.

        Raises:
            NotAnswered: `text` was added, but its answer cannot begin.
            HearthError: `text` was not added.
        """
        with self._changing():
            parent = self.messages[-1].id if self.messages else None
            await to_thread(self._services.chats.add, self.thread.id, parent, "user", text)
            try:
                await self.refresh()
                await self._answer(self.messages)
            except HearthError as error:
                raise NotAnswered(
                    f"The message is saved, but its answer cannot begin: {error.message}",
                    error.hint,
                ) from error

    async def regenerate(self, message: str) -> None:
        """Answer again: as an alternative to this answer, or to the answers to this question."""
        with self._changing():
            at = self._index(message)
            is_answer = self.messages[at].role == "assistant"
            await self._answer(self.messages[:at] if is_answer else self.messages[: at + 1])

    async def resume(self, message: str) -> None:
        """Continue this answer, which must be the last message of the branch."""
        with self._changing():
            at = self._index(message)
            if self.messages[at].role != "assistant" or at + 1 < len(self.messages):
                raise InvalidParameter(
                    "message", "Only the last answer can be continued.", "Regenerate it instead."
                )
            await to_thread(self._services.chats.continue_answer, message)
            await self._refresh_begun(self.messages[at])
            await self._answer(self.messages[:at], begun=self.messages[at])

    async def edit(self, message: str, content: str) -> None:
        """Add an alternative to this message and keep the old branch. A question is answered
        again.
        """
        with self._changing():
            role = self.messages[self._index(message)].role
            await to_thread(self._services.chats.edit, self.thread.id, message, content)
            await self.refresh()
            if role == "user":
                await self._answer(self.messages)

    def stop(self) -> None:
        """End the answer that is being generated; its text so far is kept."""
        if self._turn is not None and self.is_busy:
            self.emit(Moved("stopping"))
            self._turn.stop()

    async def wait(self) -> None:
        """Wait until the answer that is being generated has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the answer that is being generated; its text so far is kept."""
        self.stop()
        await self.wait()

    # ---- the tree

    async def step(self, message: str, by: int) -> None:
        """Show the alternative `by` positions after this message, and the messages below it."""
        siblings = self.messages[self._index(message)].siblings
        wanted = siblings.index(message) + by
        if 0 <= wanted < len(siblings):
            await self.select(siblings[wanted])

    async def select(self, message: str) -> None:
        """Show the branch through this message."""
        with self._changing():
            self._turn = None
            await to_thread(self._services.chats.select, self.thread.id, message)
            await self.refresh()

    async def delete_branch(self, message: str) -> None:
        """Delete this message and its descendants, and the chat's keys and values on disk.

        Raises:
            FolderUnusable: the keys and values cannot be deleted; the messages are deleted.
        """
        with self._changing():
            await to_thread(self._services.chats.delete_branch, self.thread.id, message)
            try:
                await to_thread(forget_kv, self._services.paths, self.thread.id)
            finally:
                await self.refresh()

    async def clone(self, message: str | None = None) -> Thread:
        """Create another chat with the same past up to this message."""
        return await to_thread(self._services.chats.clone, self.thread.id, message)

    async def change(self, **fields: Any) -> None:
        """Change title, pinned, archived, model, system or settings of the chat."""
        if {"model", "system", "settings"} & fields.keys():
            self.check_idle()
        self.thread = await to_thread(self._services.chats.update, self.thread.id, **fields)
        self.emit(Changed())

    async def refresh(self) -> None:
        """Read the thread and its messages again."""
        await self._read()
        self.emit(Changed())

    async def refresh_idle(self) -> None:
        """As `refresh`, but do nothing while the messages are being changed."""
        with suppress(Busy), self._changing():
            await self.refresh()

    async def _read(self) -> None:
        chats = self._services.chats
        self.thread = await to_thread(chats.thread, self.thread.id)
        self.messages = await to_thread(chats.path, self.thread.id)

    # ---- internal

    async def request_for(
        self, messages: Sequence[ChatMessage]
    ) -> tuple[Request, ModelInfo, Backend, Overflow]:
        """The request for an answer to `messages`, its model, which is loaded now, and what to do
        if they exceed the context. Notices of the model are emitted once each, and only if there
        are subscribers.
        """
        from hearth.app.session.turn import build

        loaded = await self._services.load(self.thread.model, self.thread.settings.get("set", {}))
        info = self.info = loaded.info
        shown = self._services.shown_notices
        for notice in info.notices if self._listeners else ():
            if (info.path, notice) not in shown:
                shown.add((info.path, notice))
                self.emit(Noticed(notice))
        use = loaded.chosen.use
        overflow = use.context_overflow or "drop-turns"
        return build(self.thread, messages, use, info), info, loaded.backend, overflow

    async def prepare(self) -> None:
        """Called when the user starts typing: load the model that answered before, and restore the
        chat's keys and values from disk. Errors are reported when a message is sent.
        """
        if self._is_prepared or self.is_busy or not self.messages:
            return
        self._is_prepared = True
        if self.messages[-1].role == "assistant":
            with suppress(HearthError):
                request, _, backend, _ = await self.request_for(self.messages)
                await backend.restore(request)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude other changes of the messages until the block ends. The check at its beginning is
        not enough, since an answer begins only after some writes.
        """
        self.check_idle()
        self._is_changing = True
        try:
            yield
        finally:
            self._is_changing = False

    def check_idle(self) -> None:
        """Raise `Busy` while an answer is being generated or the messages are being changed."""
        if self.is_busy or self._is_changing:
            raise Busy("This chat is already generating an answer.", "Stop it, or wait.")

    def _index(self, message: str) -> int:
        for index, shown in enumerate(self.messages):
            if shown.id == message:
                return index
        raise InvalidParameter("message", "This message is not shown any more.", "Choose another.")

    async def _answer(
        self, messages: Sequence[ChatMessage], begun: ChatMessage | None = None
    ) -> None:
        if begun is None:
            parent = messages[-1].id if messages else None
            begin = self._services.chats.begin_answer
            begun = await to_thread(begin, self.thread.id, parent, self.model)
            await self._refresh_begun(replace(begun, state="failed"))
        # Imported with the first turn, so that drawing the app does not wait for it.
        from hearth.app.session.turn import StreamingAnswer, Turn

        self.live = StreamingAnswer(begun)
        self._turn = Turn(
            self._services.chats,
            self.live,
            list(messages),
            self._turn.first if self._turn is not None else "",
            self.request_for,
            self.emit,
        )
        self._task = asyncio.create_task(self._run(self._turn))

    async def _refresh_begun(self, otherwise: ChatMessage) -> None:
        """As `refresh`, after an answer has begun in the store; if it fails, the answer is stored
        as `otherwise`.
        """
        try:
            await self.refresh()
        except BaseException:
            with suppress(HearthError):
                await to_thread(self._services.chats.end_answer, otherwise)
            raise

    async def _run(self, turn: Turn) -> None:
        try:
            await turn.run()
        finally:
            ended = turn.ended
            try:
                await to_thread(self._services.chats.end_answer, ended)
            except HearthError as error:
                self.emit(Noticed(f"The answer is not saved: {error.message}", "error"))
            with suppress(HearthError):  # The messages are read again before the next change.
                await self._read()
            # Nothing is awaited from here on, so that the session is idle when it emits `Ended`.
            self.live = None
            self.messages = [ended if one.id == ended.id else one for one in self.messages]
            self.unread = not self._listeners
            self.emit(Ended(ended.id, turn.failure))
            self.emit(Moved("idle"))
            self.emit(Changed())


@dataclass(slots=True)
class Sessions:
    """The open chats."""

    services: ChatServices
    open_ones: dict[str, ChatSession] = field(default_factory=dict)

    async def open(self, thread: str) -> ChatSession:
        """The chat with this id, opened if needed. One that is already open is read again, since
        another process may have changed it. Raises what the store raises.
        """
        if thread in self.open_ones:
            session = self.open_ones[thread]
            await session.refresh_idle()
            return session
        stored = await to_thread(self.services.chats.thread, thread)
        path = await to_thread(self.services.chats.path, thread)
        return self.open_ones.setdefault(thread, ChatSession(self.services, stored, path))

    async def create(self, model: str = "", system: str = "", settings: Any = None) -> ChatSession:
        """Create a chat."""
        create = self.services.chats.create
        thread = await to_thread(create, model=model, system=system, settings=settings)
        return await self.open(thread.id)

    async def delete(self, thread: str) -> None:
        """Delete a chat permanently, and its keys and values on disk.

        Raises:
            FolderUnusable: the keys and values cannot be deleted; the chat is deleted.
        """
        session = self.open_ones.pop(thread, None)
        if session is not None:
            await session.close()
        await to_thread(self.services.chats.delete, thread)
        await to_thread(forget_kv, self.services.paths, thread)

    @property
    def busy(self) -> list[ChatSession]:
        """The sessions whose answers are being generated."""
        return [session for session in self.open_ones.values() if session.is_busy]

    async def close(self) -> None:
        """End all answers that are being generated; their texts so far are kept."""
        await asyncio.gather(*(session.close() for session in self.open_ones.values()))
