"""The chat: the list of chats, the transcript, and the box to write in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from hearth.app.chats.tree import Thread
from hearth.app.session.events import Changed, Ended, Moved, Noticed, Piece, SessionEvent
from hearth.app.session.sessions import ChatSession
from hearth.app.tui.attachments import expand, not_found
from hearth.app.tui.chat_actions import ChatActions
from hearth.app.tui.commands import Command
from hearth.app.tui.links import host_of
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.widgets.context_meter import ContextMeter
from hearth.app.tui.widgets.prompt_box import PromptBox
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.app.tui.widgets.answer import AnswerView
    from hearth.app.tui.widgets.message import MessageView, Shown
    from hearth.app.tui.widgets.slab import LinkAsked


class ChatScreen(HearthScreen):
    """One chat at a time is shown; others go on."""

    NAME = "chat"
    AUTO_FOCUS = "PromptArea"
    DEFAULT_CSS = """
    ChatScreen #chat { height: 1fr; }
    ChatScreen #chat > Vertical { width: 1fr; }
    ChatScreen.-narrow ThreadList { display: none; }
    ChatScreen ThreadList.-hidden { display: none; }
    ChatScreen.-narrow ThreadList.-wanted { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+n", "new", "new chat", id="chat.new"),
        Binding("ctrl+f", "search", "search", id="chat.search"),
        Binding("ctrl+b", "toggle_list", "chats", id="chat.list"),
        Binding("ctrl+g", "sampling", "settings of the chat", id="chat.settings", show=False),
        Binding("alt+down", "other(1)", "next chat", id="chat.next", show=False),
        Binding("alt+up", "other(-1)", "previous chat", id="chat.previous", show=False),
        Binding("escape", "stop", "stop", id="chat.stop", show=False),
        Binding("ctrl+t", "select", "messages", id="chat.messages", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.session: ChatSession | None = None
        self._leave_session: Callable[[], None] = lambda: None
        self._shown: list[Shown] = []
        self._threads: list[Thread] = []
        self._syncing = asyncio.Lock()
        self._draft_tokens = 0
        self._fed = ("", 0, 0)
        """Id of the answer under way, and how much of its text and its thoughts the view has."""

    def body(self) -> ComposeResult:
        with Horizontal(id="chat"):
            yield ThreadList(id="threads")
            with Vertical():
                yield Transcript(id="transcript")
                yield ContextMeter(id="meter")
                yield PromptBox(id="prompt")

    @cached_property
    def actions(self) -> ChatActions:
        """What can be done here."""
        return ChatActions(self)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> PromptBox:
        return self.query_one(PromptBox)

    async def on_mount(self) -> None:
        """Open the chat that the app was started with, or an empty one; the list of chats is read
        once there is something to be seen.
        """
        if self.hearth.first_thread:
            await self.told(self.open(self.hearth.first_thread))
        else:
            self.show_meter()
        self.call_after_refresh(self.reload_list)
        self.set_interval(1.0, self.show_list)

    async def on_screen_resume(self) -> None:
        """Another screen may want a chat to be shown."""
        wanted, self.hearth.wanted_thread = self.hearth.wanted_thread, ""
        if wanted:
            await self.told(self.open(wanted))
            await self.refresh_list()
            self.prompt.focus()

    # ---- which chat

    async def open(self, thread: str) -> None:
        """Show the chat with this id."""
        session = await self.sessions.open(thread)
        self._leave_session()
        self.session = session
        self._leave_session = session.subscribe(self._hear)
        self._fed = ("", 0, 0)
        async with self._syncing:
            await self.transcript.show(self._read_shown(session))
        self._show_live()
        self.prompt.set_busy(session.is_busy)
        self.show_meter()
        self.show_list()

    async def need_session(self) -> ChatSession:
        """The chat that is shown, made now if there is none yet."""
        if self.session is None:
            made = await self.sessions.create(**self.actions.first_values())
            await self.open(made.thread.id)
        assert self.session is not None
        return self.session

    async def leave(self) -> None:
        """Show no chat; the next message begins a new one."""
        self._leave_session()
        self._leave_session = lambda: None
        self.session = None
        self._shown = []
        async with self._syncing:
            await self.transcript.show([])
        self.prompt.set_busy(False)
        self.prompt.focus()
        self.show_meter()
        await self.refresh_list()

    async def refresh_list(self) -> None:
        """Read the list of chats anew."""
        try:
            self._threads = await asyncio.to_thread(self.services.chats.threads)
        except HearthError as error:
            self.tell_error(error)
        self.show_list()

    @work(group="list")
    async def reload_list(self) -> None:
        """Read the list of chats anew, beside what goes on."""
        await self.refresh_list()

    def show_list(self) -> None:
        """Show the list of chats, with what they do now."""
        current = self.session.thread.id if self.session is not None else ""

        def state_of(thread: str) -> tuple[str, bool]:
            session = self.sessions.open_ones.get(thread)
            return ("idle", False) if session is None else (session.state, session.unread)

        self.query_one(ThreadList).show(self._threads, current, state_of)

    # ---- what happens in it

    def _hear(self, happening: SessionEvent) -> None:
        if isinstance(happening, Piece):
            self._show_live()
        elif isinstance(happening, Moved):
            self._show_state(happening)
        elif isinstance(happening, Noticed):
            self.tell(happening.text, severity=happening.severity)
        elif isinstance(happening, Changed | Ended):
            self._sync()

    def _answer(self) -> AnswerView | None:
        """The view of the answer under way; None where there is none yet."""
        live = self.session.live if self.session is not None else None
        if live is None or self._syncing.locked() or self._fed[0] != live.id:
            return None
        return self.transcript.answer(live.id)

    def _show_live(self) -> None:
        """Give the view of the answer under way what came since it was last given something."""
        answer = self._answer()
        if answer is None or self.session is None or self.session.live is None:
            return
        live = self.session.live
        _, content, reasoning = self._fed
        if len(live.reasoning) > reasoning:
            answer.feed(live.reasoning[reasoning:], "reasoning")
        if len(live.content) > content:
            answer.feed(live.content[content:])
        self._fed = (live.id, len(live.content), len(live.reasoning))

    def _read_shown(self, session: ChatSession) -> list[Shown]:
        """What is to be shown of `session`; remembers it, and how much of the answer under way it
        has.
        """
        from hearth.app.tui.shown import shown_of

        self._shown = shown_of(session)
        for one in self._shown:
            if one.state == "streaming" and self._fed[0] != one.id:
                self._fed = (one.id, len(one.content), len(one.reasoning))
        return self._shown

    def _show_state(self, moved: Moved) -> None:
        session = self.session
        if session is None:
            return
        self.prompt.set_busy(session.is_busy)
        answer = self._answer()
        if answer is not None:
            answer.status("" if moved.state == "generating" else in_words(moved))
        self.show_meter()
        if moved.state == "idle":
            self.reload_list()

    @work(group="sync")
    async def _sync(self) -> None:
        """Let the transcript show what the session holds, with as little change as can be."""
        async with self._syncing:
            session = self.session
            if session is None:
                return
            before, now = self._shown, self._read_shown(session)
            same = 0
            while same < min(len(before), len(now)) and before[same].id == now[same].id:
                is_live = now[same].state == "streaming"
                if is_live and before[same].state != "streaming":
                    break  # It goes on: its view must take more text.
                if before[same] != now[same] and not is_live:
                    await self.transcript.replace(now[same])
                same += 1
            if same < len(before):
                if same:
                    await self.transcript.remove_after(now[same - 1].id)
                else:
                    await self.transcript.show([])
            for one in now[same:]:
                await self.transcript.append(one)
        self._show_live()
        self._show_state(session.progress)

    def show_meter(self) -> None:
        """Show model, state and context of the chat."""
        session = self.session
        context = session.info.context if session is not None and session.info else 0
        used = session.context_tokens if session is not None else 0
        self.query_one(ContextMeter).show(
            session.model if session is not None else self.actions.first_model(),
            in_words(session.progress) if session is not None else "",
            used=used,
            context=context,
            draft=self._draft_tokens,
            left_out=session.left_out if session is not None else 0,
            would_leave_out=self._would_leave_out(used, context),
        )

    def _would_leave_out(self, used: int, context: int) -> int:
        """How many of the oldest messages would have to go for the draft, at their average size."""
        session = self.session
        over = used + self._draft_tokens - context
        if session is None or not context or over <= 0 or not session.messages:
            return 0
        each = max(1, used // max(1, len(session.messages) - session.left_out))
        return min(len(session.messages) - session.left_out, -(-over // each))

    # ---- what the user does

    async def on_prompt_box_submitted(self, event: PromptBox.Submitted) -> None:
        """Say what was written."""
        self._draft_tokens = 0
        self.say(event.text)

    @work(group="say")
    async def say(self, text: str) -> None:
        """Say `text`, with the files that it names."""

        async def do() -> None:
            expanded = await asyncio.to_thread(expand, text, self.actions.folder)
            session = await self.need_session()
            await session.send(expanded.text)
            if expanded.unmatched:
                self.tell(not_found(expanded.unmatched), severity="warning")

        if not await self.told(do()):
            self.prompt.restore(text)
        await self.refresh_list()

    @work(group="draft", exclusive=True)
    async def on_prompt_box_drafted(self, event: PromptBox.Drafted) -> None:
        """Count what is being written, once the writer pauses."""
        await asyncio.sleep(0.3)
        self._draft_tokens, hint = await self.actions.count(event.text)
        self.prompt.set_hint(hint)
        self.show_meter()

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.command(event.command)

    @work(group="command")
    async def command(self, command: Command) -> None:
        """Do a slash command."""
        await self.told(self.actions.run(command))

    def on_prompt_box_stop(self) -> None:
        self.action_stop()

    def on_message_view_action(self, event: MessageView.Action) -> None:
        self.act(event.id, event.action)

    @work(group="act")
    async def act(self, message: str, action: str) -> None:
        """Do something with a message."""
        await self.told(self.actions.on_message(message, action))

    @work(group="link", exclusive=True)
    async def on_link_asked(self, event: LinkAsked) -> None:
        """Open a link of an answer, if the user says so to its host."""
        from hearth.app.tui.screens.dialogs import Confirm

        try:
            host = host_of(event.url)
        except HearthError as error:
            self.tell_error(error)
            return
        question = Confirm(f"Open {host} in the browser?", event.url, yes="Open it", no="No")
        if await self.app.push_screen_wait(question):
            self.app.open_url(event.url)

    def on_thread_list_asked(self, event: ThreadList.Asked) -> None:
        self.act_on_thread(event.thread, event.action)

    @work(group="threads")
    async def act_on_thread(self, thread: str, action: str) -> None:
        """Do something with a chat of the list."""
        await self.told(self.actions.on_thread(thread, action))
        await self.refresh_list()

    @work(group="command")
    async def action_new(self) -> None:
        """Begin a new chat."""
        await self.leave()

    def action_search(self) -> None:
        """Search all chats."""
        self.command(Command("search", ""))

    def action_sampling(self) -> None:
        """Show the settings of this chat."""
        self.command(Command("settings", ""))

    def action_toggle_list(self) -> None:
        """Show or hide the list of chats."""
        threads = self.query_one(ThreadList)
        if self.has_class("-narrow"):
            threads.toggle_class("-wanted")
        else:
            threads.toggle_class("-hidden")
        if threads.display:
            threads.focus()
        else:
            self.prompt.focus()

    @work(group="threads")
    async def action_other(self, by: int) -> None:
        """Show the next chat of the list."""
        ids = [thread.id for thread in self._threads]
        if not ids:
            return
        current = self.session.thread.id if self.session is not None else ""
        at = ids.index(current) + by if current in ids else 0
        await self.told(self.open(ids[at % len(ids)]))

    def action_stop(self) -> None:
        """End the answer under way, of which stays what came; without one, go back to writing."""
        if self.session is not None and self.session.is_busy:
            self.session.stop()
        else:
            self.prompt.focus()

    def action_select(self) -> None:
        """Go from message to message."""
        self.transcript.focus()


def in_words(moved: Moved) -> str:
    """What goes on."""
    if moved.state == "prefill" and moved.total:
        left = "" if moved.left_s is None else f" · about {max(1, round(moved.left_s))} s"
        return f"reading the prompt {moved.done:,}/{moved.total:,}{left}"
    words = {"loading": "loading the model", "prefill": "reading the prompt"}
    words |= {"generating": "answering", "stopping": "stopping"}
    return words.get(moved.state, "")
