"""One chat that is open: its messages, and the answer under way. Knows no widgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hearth.app.chats.tree import ChatMessage, Thread
from hearth.app.tui.happenings import Changed, Happening, Listener, Moved, Noticed, TurnState
from hearth.app.tui.services import Services
from hearth.backends.errors import Busy, HearthError, InvalidParameter

if TYPE_CHECKING:
    from hearth.app.tui.turn import Turn
    from hearth.backends.contract import Backend, ModelInfo, Request, ToolCall


@dataclass(slots=True)
class Live:
    """The answer under way, as far as it is there."""

    id: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Asking:
    """A request, and the model that it is for."""

    request: Request
    info: ModelInfo
    backend: Backend


class ChatSession:
    """A chat that is open. Answers go on while nobody looks; whoever does, subscribes.

    Every change is in the store before anything is done with it. Methods that change something
    raise `Busy` while an answer is under way, except `stop`.

    Attributes:
        thread: title, model, system prompt, settings.
        messages: the shown branch, oldest first.
        live: the answer under way; None between turns.
        state, progress: where the turn is.
        info: of the model that answered last; None before the first answer.
        left_out: so many first messages are not sent any more: the context is full.
    """

    def __init__(self, services: Services, thread: Thread, messages: list[ChatMessage]) -> None:
        self.thread = thread
        self.messages = messages
        self.live: Live | None = None
        self.state: TurnState = "idle"
        self.progress = Moved("idle")
        self.info: ModelInfo | None = None
        self.left_out = 0
        self.unread = False
        """An answer ended while nobody looked."""
        self._services = services
        self._listeners: list[Listener] = []
        self._turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, services: Services, thread: str) -> ChatSession:
        """The chat with this id. Raises what the store raises."""
        found = await asyncio.to_thread(services.chats.thread, thread)
        messages = await asyncio.to_thread(services.chats.path, thread)
        return cls(services, found, messages)

    # ---- watching

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` what happens from now on; returns what ends that."""
        self._listeners.append(listener)
        self.unread = False
        return lambda: self._listeners.remove(listener)

    def tell(self, happening: Happening) -> None:
        """Tell everybody who watches."""
        if isinstance(happening, Moved):
            self.state, self.progress = happening.state, happening
        for listener in tuple(self._listeners):
            listener(happening)

    @property
    def is_busy(self) -> bool:
        """An answer is under way."""
        return self._task is not None and not self._task.done()

    @property
    def model(self) -> str:
        """The name of the model that answers next."""
        return self.thread.model or self._services.settings.text("model")

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer of the last turn, as its worker counted them."""
        for message in reversed(self.messages):
            if message.numbers is not None and message.numbers.prompt_tokens:
                return message.numbers.prompt_tokens + message.numbers.completion_tokens
        return 0

    # ---- turns

    async def send(self, text: str) -> None:
        """Say `text` and let the model answer."""
        self._check_idle()
        parent = self.messages[-1].id if self.messages else None
        await self._keep("add", self.thread.id, parent, "user", text)
        await self.refresh()
        await self._answer(self.messages)

    async def regenerate(self, message: str) -> None:
        """Let the model answer again: beside this answer, or to this question."""
        self._check_idle()
        at = self._index(message)
        found = self.messages[at]
        await self._answer(
            self.messages[:at] if found.role == "assistant" else self.messages[: at + 1]
        )

    async def resume(self, message: str) -> None:
        """Let the model go on with this answer, the last of the branch."""
        self._check_idle()
        at = self._index(message)
        if self.messages[at].role != "assistant" or at + 1 < len(self.messages):
            raise InvalidParameter(
                "message", "Only the last answer can be continued.", "Regenerate it instead."
            )
        await self._keep("continue_answer", message)
        await self.refresh()
        await self._answer(self.messages[:at], begun=self.messages[at])

    async def edit(self, message: str, content: str) -> None:
        """Put another text beside this one; a question is answered anew. The old branch stays."""
        self._check_idle()
        role = self.messages[self._index(message)].role
        await self._keep("edit", self.thread.id, message, content)
        await self.refresh()
        if role == "user":
            await self._answer(self.messages)

    def stop(self) -> None:
        """End the answer under way; what came stays."""
        if self._turn is not None and self.is_busy:
            self.tell(Moved("stopping"))
            self._turn.stop()

    async def wait(self) -> None:
        """Until the answer under way is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End what is under way and keep what came."""
        self.stop()
        await self.wait()

    # ---- the tree

    async def step(self, message: str, by: int) -> None:
        """Show the `by`-th next alternative of this message, and what followed it."""
        self._check_idle()
        siblings = self.messages[self._index(message)].siblings
        wanted = siblings.index(message) + by
        if 0 <= wanted < len(siblings):
            await self.select(siblings[wanted])

    async def select(self, message: str) -> None:
        """Show the branch through this message."""
        self._check_idle()
        self.left_out = 0
        await self._keep("select", self.thread.id, message)
        await self.refresh()

    async def delete_branch(self, message: str) -> None:
        """Delete this message and what followed it."""
        self._check_idle()
        await self._keep("delete_branch", self.thread.id, message)
        await self.refresh()

    async def clone(self, message: str | None = None) -> Thread:
        """Another chat with the same past, up to this message."""
        thread: Thread = await self._keep("clone", self.thread.id, message)
        return thread

    async def change(self, **fields: Any) -> None:
        """Change title, pinned, archived, model, system or settings of the chat."""
        if {"model", "system", "settings"} & fields.keys():
            self._check_idle()
        self.thread = await self._keep("update", self.thread.id, **fields)
        self.tell(Changed())

    async def refresh(self) -> None:
        """Read thread and messages anew."""
        self.thread = await self._keep("thread", self.thread.id)
        self.messages = await self._keep("path", self.thread.id)
        self.tell(Changed())

    # ---- within

    async def asking(self, messages: Sequence[ChatMessage]) -> Asking:
        """What would be asked after `messages`, and of which model, which is loaded for it."""
        from hearth.app.tui.request import build

        changes = self.thread.settings.get("set", {})
        chosen = await self._services.choose(self.thread.model, changes)
        backend = await self._services.host.backend(chosen.spec)
        self.info = await backend.info()
        self._tell_notices(self.info)
        return Asking(build(self.thread, messages, chosen.use, self.info), self.info, backend)

    def _tell_notices(self, info: ModelInfo) -> None:
        """What the user should know of a model, once, and where somebody watches."""
        told = self._services.told
        for notice in info.notices if self._listeners else ():
            if (info.path, notice) not in told:
                told.add((info.path, notice))
                self.tell(Noticed(notice))

    def _check_idle(self) -> None:
        if self.is_busy:
            raise Busy("An answer is under way in this chat.", "Stop it, or wait for its end.")

    def _index(self, message: str) -> int:
        for index, shown in enumerate(self.messages):
            if shown.id == message:
                return index
        raise InvalidParameter("message", "This message is not shown any more.", "Choose another.")

    async def _keep(self, method: str, *args: Any, **fields: Any) -> Any:
        return await asyncio.to_thread(getattr(self._services.chats, method), *args, **fields)

    async def _answer(
        self, messages: Sequence[ChatMessage], begun: ChatMessage | None = None
    ) -> None:
        if begun is None:
            parent = messages[-1].id if messages else None
            begun = await self._keep("begin_answer", self.thread.id, parent, self.model)
            await self.refresh()
        # What a turn needs is imported with the first one, not before the app is drawn.
        from hearth.app.tui.turn import Turn

        self.live = Live(begun.id, begun.content, begun.reasoning, begun.tool_calls)
        self._turn = Turn(self, self._services, list(messages), self.live)
        self._task = asyncio.create_task(self._run(self._turn))

    async def _run(self, turn: Turn) -> None:
        try:
            await turn.run()
        except HearthError as error:
            self.tell(Noticed(error.message, "error"))
        finally:
            self.live = None
            self.unread = not self._listeners
            self.tell(Moved("idle"))
            await self.refresh()


@dataclass(slots=True)
class Sessions:
    """The chats that are open."""

    services: Services
    open_ones: dict[str, ChatSession] = field(default_factory=dict)

    async def open(self, thread: str) -> ChatSession:
        """The chat with this id, opened now if need be."""
        if thread not in self.open_ones:
            self.open_ones[thread] = await ChatSession.open(self.services, thread)
        return self.open_ones[thread]

    async def create(self, model: str = "", system: str = "", settings: Any = None) -> ChatSession:
        """A new chat."""
        thread = await asyncio.to_thread(
            lambda: self.services.chats.create(model=model, system=system, settings=settings)
        )
        return await self.open(thread.id)

    async def delete(self, thread: str) -> None:
        """Delete a chat for good."""
        session = self.open_ones.pop(thread, None)
        if session is not None:
            await session.close()
        await asyncio.to_thread(self.services.chats.delete, thread)

    @property
    def busy(self) -> list[ChatSession]:
        """Those whose answers are under way."""
        return [session for session in self.open_ones.values() if session.is_busy]

    async def close(self) -> None:
        """End every answer that is under way; what came is kept."""
        for session in self.busy:
            session.stop()
        await asyncio.gather(*(session.wait() for session in self.busy))
