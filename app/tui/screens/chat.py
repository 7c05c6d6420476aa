"""The chat: the list of chats, the transcript, and the prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from hearth.app.chats.errors import ChatNotFound, NotAnswered
from hearth.app.chats.files import import_json, to_json, to_markdown
from hearth.app.chats.tree import Thread
from hearth.app.format import size
from hearth.app.guide_pages import page_for
from hearth.app.paths import FolderUnusable
from hearth.app.session.events import Changed, Ended, Moved, Noticed, Piece, SessionEvent
from hearth.app.session.sessions import ChatSession
from hearth.app.slash_commands import Command, changed_setting, is_command, parse
from hearth.app.tui import attachments
from hearth.app.tui.links import host_of
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.prompt_box import ChatCommands, PromptBox, with_draft
from hearth.app.tui.widgets.status_line import StatusLine, settings_in_words
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.app.tui.widgets.transcript import Transcript
from hearth.app.tui.widgets.welcome import Welcome
from hearth.backends.errors import HearthError, InvalidParameter

if TYPE_CHECKING:
    from hearth.app.presets import Preset
    from hearth.app.tui.model_facts import ModelFacts
    from hearth.app.tui.widgets.answer import AnswerView
    from hearth.app.tui.widgets.message import MessageView, Shown
    from hearth.app.tui.widgets.slab import LinkAsked
    from hearth.backends.contract.backend import Backend

_GUIDE: Final = "guide"
"""The bundled model, which answers questions about Hearth."""
_BYTES_PER_TOKEN: Final = 4
"""Approximate average for English text."""
_STATES: Final = {
    "loading": "loading the model",
    "prefill": "reading the prompt",
    "generating": "answering",
    "stopping": "stopping",
}
_LIST_FROM_WIDTH: Final = 100
"""Width of the terminal, in cells, from which the list of chats has room."""


class ChatScreen(HearthScreen):
    """Shows one chat at a time; answers in other chats continue.

    Attributes:
        session: the chat shown; None for a new one, which is created by its first message.
        folder: base of relative paths.
    """

    NAME = "chat"
    AUTO_FOCUS = "PromptArea"
    COMMANDS = HearthScreen.COMMANDS | {ChatCommands}
    DEFAULT_CSS = """
    ChatScreen #chat { height: 1fr; }
    ChatScreen #chat > Vertical { width: 1fr; }
    ChatScreen ThreadList { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", id="chat.stop"),
        Binding("escape", "write", "write", id="chat.write", show=False),
        Binding("ctrl+n", "command('new')", "new chat", id="chat.new"),
        Binding("ctrl+f", "command('search')", "search", id="chat.search"),
        Binding("ctrl+b", "toggle_list", "chats", id="chat.list"),
        Binding(
            "ctrl+g",
            "command('settings')",
            "settings of the chat",
            id="chat.settings",
            show=False,
        ),
        Binding("alt+down", "other(1)", "next chat", id="chat.next", show=False),
        Binding("alt+up", "other(-1)", "previous chat", id="chat.previous", show=False),
        Binding("ctrl+t", "select", "messages", id="chat.messages", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.session: ChatSession | None = None
        self.folder = Path.cwd()
        self._first: dict[str, Any] = {
            "model": self.hearth.first_model,
            "system": "",
            "settings": {},
        }
        """Model, system prompt and settings of the next new chat."""
        self._leave_session: Callable[[], None] = lambda: None
        self._shown: list[Shown] = []
        self._threads: list[Thread] = []
        self._syncing = asyncio.Lock()
        self._creating = asyncio.Lock()
        self._switches = 0
        """How often the user switched to another chat."""
        self._hides_numbers = False
        self._draft, self._draft_tokens = "", 0
        self._file_tokens: dict[tuple[str, str], int] = {}
        self._kept: dict[str, str] = {}
        """Drafts as stored, by chat id."""
        self._keeping = asyncio.Lock()
        self._wants_list: bool | None = None
        """Whether the user wants the list of chats; if None, chats and room decide."""
        self._facts: ModelFacts | None = None
        self._facts_of = ""
        """The model that `_facts` describes, or whose facts are being looked up."""
        self._fed = ("", 0, 0)
        """Id of the answer in progress, and the shown lengths of its text and its thoughts."""

    def body(self) -> ComposeResult:
        with Horizontal(id="chat"):
            yield ThreadList(id="threads")
            with Vertical():
                yield Welcome()
                yield Transcript(id="transcript")
                yield StatusLine(id="status")
                yield PromptBox(self.services.paths.state / "prompt-history", id="prompt")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> PromptBox:
        return self.query_one(PromptBox)

    async def on_mount(self) -> None:
        """Open the chat that the app was started with, or a new one.

        The list of chats is read after the first paint.
        """
        if self.hearth.first_thread:
            await self.succeeds(self.open(self.hearth.first_thread))
        else:
            self._show_parts()
            self.show_status()
            if draft := await self._read_draft():
                self.prompt.restore(draft)
        self.reload_list()
        self.set_interval(1.0, self.show_list)

    def on_resize(self) -> None:
        """Show or hide the list of chats, as the new width allows."""
        if self.is_mounted:
            self._show_parts()

    async def on_screen_resume(self) -> None:
        """Open the chat that another screen asked for, and show what was changed there."""
        if self._facts is None:
            self._facts_of = ""  # The model may have been downloaded meanwhile.
        self.show_status()
        wanted, self.hearth.wanted_thread = self.hearth.wanted_thread, ""
        if wanted:
            await self.succeeds(self.open(wanted))
            await self.refresh_list()
            self.prompt.focus()

    async def on_unmount(self) -> None:
        """Save the unsent draft."""
        self._leave_session()
        with suppress(HearthError):
            await self._keep_draft(self._draft, self._shown_thread)

    # ---- which chat

    async def open(self, thread: str) -> None:
        """Show the chat with this id, and its unsent draft."""
        await self._switch(await self.sessions.open(thread))

    async def leave(self) -> None:
        """Show a new chat."""
        await self._switch(None)
        self.prompt.focus()
        await self.refresh_list()

    async def _switch(self, session: ChatSession | None) -> None:
        if self.session is not session:
            draft = await self._read_draft(session.thread.id if session is not None else "")
            # Read after the wait, so that text typed meanwhile stays with the chat it was typed in.
            written, before = self.prompt.text, self._shown_thread
            self.session = session
            self._switches += 1
            self.prompt.load(draft)
            await self.succeeds(self._keep_draft(written, before))
        await self._watch()

    async def _watch(self) -> None:
        """Show the whole chat, and follow its events from now on."""
        session = self.session
        if session is not None and session.model == _GUIDE:  # Loads the guide's pages.
            await asyncio.to_thread(page_for, "")
            if self.session is not session:
                return  # Another chat was opened meanwhile.
        self._leave_session()
        self._leave_session = (
            (lambda: None) if session is None else session.subscribe(self._show_event)
        )
        self._fed = ("", 0, 0)
        async with self._syncing:
            shown = self._read_shown()
            self._show_parts()
            await self.transcript.show(shown)
        self._show_live()
        self.prompt.set_busy(self._is_busy)
        self.show_status()
        self.show_list()

    async def need_session(self) -> ChatSession:
        """The chat shown; if it is new, it is created and its stored draft is cleared."""
        async with self._creating:
            if self.session is None:
                created = await self.sessions.create(**self._first)
                await self._keep_draft("", "")
                self.session = created
                await self._watch()
                self._first |= {"system": "", "settings": {}}
        return self.current

    @property
    def current(self) -> ChatSession:
        """The chat shown. Raises `InvalidParameter` if it is a new one."""
        if self.session is None:
            raise _no_message()
        return self.session

    @property
    def _is_busy(self) -> bool:
        return self.session is not None and self.session.is_busy

    @property
    def model(self) -> str:
        """The name of the model that answers next."""
        if self.session is not None:
            return self.session.model
        return str(self._first["model"]) or self.services.settings.text("model")

    @property
    def _setup(self) -> dict[str, Any]:
        """Model, system prompt and settings of the chat that is shown, or of the new one."""
        if self.session is None:
            return self._first
        thread = self.session.thread
        return {"model": thread.model, "system": thread.system, "settings": thread.settings}

    async def _read_draft(self, thread: str = "") -> str:
        """The unsent draft of the chat `thread`; '' for the new chat."""
        self._kept[thread] = await asyncio.to_thread(self.services.chats.draft, thread)
        return self._kept[thread]

    @property
    def _shown_thread(self) -> str:
        """Id of the chat shown; '' for a new one."""
        return self.session.thread.id if self.session is not None else ""

    async def _keep_draft(self, text: str, thread: str) -> None:
        """Save `text` as the unsent draft of the chat `thread`."""

        async def keep() -> None:
            async with self._keeping:
                if self._kept.get(thread, "") != text:
                    await asyncio.to_thread(self.services.chats.keep_draft, thread, text)
                    self._kept[thread] = text

        # Shielded: the draft is written before the next one even if the caller is cancelled.
        await asyncio.shield(keep())

    async def refresh_list(self) -> None:
        """Read the list of chats again."""
        with self.errors_shown():
            self._threads = await asyncio.to_thread(self.services.chats.threads)
        self._show_parts()
        self.show_list()

    @work(group="list")
    async def reload_list(self) -> None:
        """Read the list of chats again, in the background and after the first paint."""
        await self.hearth.drawn.wait()
        await self.refresh_list()

    def show_list(self) -> None:
        """Show the list of chats, with the state of each."""
        current = self._shown_thread

        def state_of(thread: str) -> tuple[str, bool]:
            session = self.sessions.open_ones.get(thread)
            return ("idle", False) if session is None else (session.progress.state, session.unread)

        model = self.services.settings.text("model")
        self.query_one(ThreadList).show(self._threads, current, state_of, model)

    def _show_parts(self) -> None:
        """Show the messages, or the welcome view if there are none, and the list of chats.

        The list is shown if there are chats and the terminal is wide, unless the user chose
        otherwise.
        """
        self.query_one(Welcome).display = not self._shown
        self.transcript.display = bool(self._shown)
        has_room = self.app.size.width >= _LIST_FROM_WIDTH and bool(self._threads)
        self.query_one(ThreadList).display = (
            has_room if self._wants_list is None else self._wants_list
        )

    # ---- events

    def _show_event(self, event: SessionEvent) -> None:
        match event:
            case Piece():
                self._show_live()
            case Moved():
                self._show_state(event)
            case Noticed():
                super().show_notice(event.text, severity=event.severity)
            case Changed() | Ended():
                self._sync()

    def _answer(self) -> AnswerView | None:
        """The view of the answer in progress; None if there is none yet."""
        live = self.session.live if self.session is not None else None
        if live is None or self._syncing.locked() or self._fed[0] != live.id:
            return None
        return self.transcript.answer(live.id)

    def _show_live(self) -> None:
        """Pass the text that arrived since the last call to the view of the answer in progress."""
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

    def _read_shown(self) -> list[Shown]:
        """The messages to show; remembers them, and how much of the live answer they include."""
        from hearth.app.tui.shown import shown_of

        self._shown = shown_of(self.session) if self.session is not None else []
        if self._hides_numbers:
            self._shown = [replace(one, numbers="") for one in self._shown]
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
        self.show_status()
        if moved.state == "idle":
            self.reload_list()

    @work(group="sync")
    async def _sync(self) -> None:
        """Update the transcript to what the session holds, with as few changes as possible."""
        async with self._syncing:
            session = self.session
            if session is None:
                return
            place = self.transcript.selected_place
            before, now = self._shown, self._read_shown()
            self._show_parts()
            same = 0
            for old, new in zip(before, now, strict=False):
                goes_on = new.state == "streaming" != old.state  # It needs a view that streams.
                if old.id != new.id or goes_on:
                    break
                if old != new and new.state != "streaming":
                    await self.transcript.replace(new)
                same += 1
            if same < len(before):
                if same:
                    await self.transcript.remove_after(now[same - 1].id)
                else:
                    await self.transcript.show([])
            for message in now[same:]:
                await self.transcript.append(message)
            if place not in (None, self.transcript.selected_place):
                self.transcript.select_place(place)
        self._show_live()
        self._show_state(session.progress)
        self._count_files(session)

    @work(group="files", exclusive=True)
    async def _count_files(self, session: ChatSession) -> None:
        """Count the tokens of attached files, once the model is loaded."""
        if self.session is not session or session.info is None:
            return
        from hearth.app.tui.widgets.folded import Attachment

        for file in self.transcript.query(Attachment):
            key = (session.info.path, file.file.text)
            if key not in self._file_tokens:
                try:
                    backend = await self._backend(session)
                    self._file_tokens[key] = len(await backend.tokenize(file.file.text))
                except HearthError:
                    return  # No count is shown; the next answer reports the error.
            if not file.tokens:
                file.show_tokens(self._file_tokens[key])

    async def _backend(self, session: ChatSession) -> Backend:
        changes = session.thread.settings.get("set", {})
        chosen = await self.services.choose(session.thread.model, changes)
        return await self.services.host.backend(chosen.spec)

    def show_status(self) -> None:
        """Show the model, its state, the settings, and how full the context is."""
        session, setup = self.session, self._setup
        if self._facts_of != self.model:
            self._facts, self._facts_of = None, self.model
            self.query_one(Welcome).show(self.model, "", is_guide=self.model == _GUIDE)
            self._find_facts(self.model)
        info = session.info if session is not None else None
        name, quantization, context = Path(self.model).name, "", 0
        if info is not None:
            name, quantization, context = info.name, info.quantization, info.context
        elif (facts := self._facts) is not None:
            name, quantization, context = facts.model.name, facts.model.file_type, facts.context
        if quantization and quantization.lower() not in name.lower():
            name = f"{name} {quantization}"
        used = session.context_tokens if session is not None else 0
        self.query_one(StatusLine).show(
            name,
            in_words(session.progress) if session is not None else "",
            settings_in_words(setup["system"], setup["settings"]),
            self._overflow(used, context),
            used=used,
            draft=self._draft_tokens,
            context=context,
        )

    def _overflow(self, used: int, context: int) -> str:
        """What does not fit the context, by the messages' average size; empty if everything fits.

        With attention sinks, describes what the model sees.
        """
        session, draft = self.session, self._draft_tokens
        changes = self._setup["settings"].get("set", {})
        sinks = self.services.settings.all(self.model)["attention_sinks"].value
        sinks = changes.get("attention_sinks", sinks)
        if isinstance(sinks, int):
            newest = f"{context - sinks:,} tokens" if context else "tokens"
            is_over = "; earlier text is forgotten" if used + draft > context > 0 else ""
            return f"streaming: {sinks} sinks + last {newest}{is_over}"
        if context and draft > context:
            return "this message does not fit"
        left_out = session.left_out if session is not None else 0
        over = used + draft - context
        if session is not None and context and over > 0 and session.messages:
            left = len(session.messages) - left_out
            count = min(left, -(-over * left // max(1, used)))
            return f"{count} oldest messages will be left out"
        return f"{left_out} oldest messages left out" if left_out else ""

    @work(group="facts", exclusive=True)
    async def _find_facts(self, model: str) -> None:
        """Look up and show the facts about `model` before it is loaded."""
        await self.hearth.drawn.wait()
        from hearth.app.tui.model_facts import facts_of

        try:
            facts = self._facts = await facts_of(self.services, model)
            line, larger = facts.line, facts.larger
            self.show_status()
        except HearthError as error:
            line, larger = str(error), ""
        self.query_one(Welcome).show(line, larger, is_guide=model == _GUIDE)

    # ---- what the user does

    def show_notice(self, text: str, *, severity: str = "information") -> None:
        """Show a notice below the prompt until the next key."""
        self.prompt.note(text, is_wrong=severity == "error")

    def on_key(self) -> None:
        """Clear the notice on a key press that the prompt does not see."""
        self.prompt.note("")

    def on_welcome_chosen(self, event: Welcome.Chosen) -> None:
        self.prompt.focus()
        if is_command(event.text):
            self.command(parse(event.text))
        else:
            self.send_text(event.text)

    def on_prompt_box_submitted(self, event: PromptBox.Submitted) -> None:
        self._draft_tokens = 0
        self.send_text(event.text)

    @work(group="say")
    async def send_text(self, text: str) -> None:
        """Send `text`, with the files that it names."""
        # Reading files takes a while, in which another chat may be opened.
        session, switches = self.session, self._switches

        async def send() -> None:
            expanded = await asyncio.to_thread(attachments.expand, text, self.folder)
            if session is not None:
                await self._send(session, expanded.text)
            elif switches == self._switches:
                await self._send(await self.need_session(), expanded.text)
            else:
                created = await self.sessions.create(**self._first)
                self._first |= {"system": "", "settings": {}}
                await self._send(created, expanded.text)
            if expanded.unmatched:
                self.show_notice(attachments.not_found(expanded.unmatched))

        if not await self.succeeds(send()):
            with self.errors_shown():
                await self._restore(text, session, switches)
        await self.refresh_list()

    async def _restore(self, text: str, session: ChatSession | None, switches: int) -> None:
        """Put `text`, a message or command that failed, back into the draft of its chat.

        Args:
            session, switches: the chat shown when it was entered, and `_switches` at that time.
        """

        def is_shown() -> bool:
            return self.session is session or switches == self._switches

        thread = session.thread.id if session is not None else ""
        draft = "" if is_shown() else await self._read_draft(thread)
        if is_shown():
            self.prompt.restore(text)
        else:
            with suppress(ChatNotFound):  # The chat was deleted meanwhile.
                await self._keep_draft(with_draft(text, draft), thread)

    async def _send(self, session: ChatSession, text: str) -> None:
        """Send `text`. Raises `HearthError` if it did not become part of the chat."""
        try:
            await session.send(text)
        except NotAnswered as error:
            self.show_notice(f"{error} /retry asks for the answer again.", severity="error")

    def on_prompt_box_drafted(self, event: PromptBox.Drafted) -> None:
        self._draft = event.text
        self._count_draft()
        if event.text.strip() and not is_command(event.text):
            self._prepare()

    @work(group="prepare")
    async def _prepare(self) -> None:
        """Load the model and restore the chat's KV cache while the user writes."""
        if self.session is not None:
            await self.session.prepare()

    @work(group="draft", exclusive=True)
    async def _count_draft(self) -> None:
        """Save the draft and count its tokens, once the user pauses typing."""
        await asyncio.sleep(0.3)
        await self.succeeds(self._keep_draft(self.prompt.text, self._shown_thread))
        self._draft_tokens, hint = await self._count(self.prompt.text)
        self.prompt.set_hint(hint)
        self.show_status()

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.command(event.command, event.text)

    @work(group="command")
    async def command(self, command: Command, written: str = "") -> None:
        """Run a slash command; if it fails, put `written` back into the draft of its chat."""
        session, switches = self.session, self._switches
        if not await self.succeeds(self._run(command)) and written:
            with self.errors_shown():
                await self._restore(written, session, switches)

    def on_message_view_action(self, event: MessageView.Action) -> None:
        self.act(event.id, event.action)

    @work(group="act")
    async def act(self, message: str, action: str) -> None:
        """Do something with a message."""
        await self.succeeds(self._do_with_message(message, action))

    @work(group="link", exclusive=True)
    async def on_link_asked(self, event: LinkAsked) -> None:
        """Open a link in an answer, if the user confirms its host."""
        from hearth.app.tui.screens.dialogs import Confirm

        with self.errors_shown():
            question = Confirm(f"Open {host_of(event.url)} in the browser?", event.url, yes="Open")
            if await self.app.push_screen_wait(question):
                self.app.open_url(event.url)

    @work(group="threads")
    async def on_thread_list_asked(self, event: ThreadList.Asked) -> None:
        """Do something with a chat of the list."""
        await self.succeeds(self._do_with_thread(event.thread, event.action))

    def action_command(self, name: str) -> None:
        """Run the slash command called `name`."""
        self.command(Command(name))

    def action_toggle_list(self) -> None:
        """Show or hide the list of chats."""
        threads = self.query_one(ThreadList)
        self._wants_list = not threads.display
        self._show_parts()
        (threads if threads.display else self.prompt).focus()

    async def action_other(self, by: int) -> None:
        """Show the next chat of the list, which is read again because another app may change it.

        Later keys wait until that chat is shown, so that escape stops the answer in it.
        """
        await self.refresh_list()
        ids = [thread.id for thread in self._threads]
        if not ids:
            return
        current = self._shown_thread
        at = ids.index(current) + by if current in ids else 0
        await self.succeeds(self.open(ids[at % len(ids)]))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only an answer in progress can be stopped."""
        return action != "stop" or self._is_busy

    def action_stop(self) -> None:
        """Stop the answer in progress; its text so far is kept."""
        if self.session is not None:
            self.session.stop()

    def action_write(self) -> None:
        """Go back to the prompt."""
        self.prompt.focus()

    def action_select(self) -> None:
        """Go to the last message, from which the earlier ones can be reached."""
        self.transcript.action_select(-1)

    # ---- commands

    async def _run(self, command: Command) -> None:
        argument = command.argument
        with_argument: dict[str, Callable[[str], Awaitable[None]]] = {
            "guide": self._ask_guide,
            "model": self._choose_model,
            "system": self._set_system,
            "think": self._set_thinking,
            "set": self._set_value,
            "preset": self._use_preset,
            "save-preset": self._save_preset,
            "search": self._search,
            "compare": self._compare,
            "import": self._import,
        }
        match command.name:
            case name if name in with_argument:
                await with_argument[name](argument)
            case "help":
                self.hearth.action_help()
            case "new":
                await self.leave()
            case "settings":
                await self._edit_settings()
            case "json" if argument == "off":
                await self._constrain("Answers are free text.")
            case "json":
                await self._constrain("Answers are JSON.", "json")
            case "schema":
                source, _ = await self._read_json(argument)
                said = f"Answers follow the JSON schema {argument}."
                await self._constrain(said, "json_schema", source)
            case "regex":
                await self._constrain(f"Answers match {argument}", "regex", argument)
            case "choice":
                texts = [text.strip() for text in argument.split("|") if text.strip()]
                source = json.dumps(texts, ensure_ascii=False)
                await self._constrain(f"Answers are one of {source}.", "choice", source)
            case "retry" | "continue" as action:
                await self._do_with_message(self._last(), action)
            case "copy":
                await self._do_with_message(self._last_answer(), "copy")
            case "edit" as action:
                await self._do_with_message(self._last("user"), action)
            case "stop":
                self.current.stop()
            case "prompt":
                await self._show_prompt()
            case "rename" | "pin" | "archive" | "clone" | "delete" | "export" as action:
                await self._do_with_thread(self.current.thread.id, action, argument)
            case "stats":
                self._hides_numbers = not self._hides_numbers
                self._sync()
                state = "hidden" if self._hides_numbers else "shown"
                self.show_notice(f"Numbers below answers are {state}.")
            case "suspend":
                self.hearth.action_suspend()
            case "quit":
                await self.hearth.action_leave()
            case screen:
                self.hearth.action_go(screen)

    async def _change(self, said: str, **fields: Any) -> None:
        """Change the chat that is shown, or the new one, and confirm it."""
        if self.session is None:
            self._first |= fields
        else:
            await self.session.change(**fields)
            if "model" in fields:
                self.session.info = None
        self.show_status()
        self.show_notice(said)

    async def _set(self, said: str, **values: Any) -> None:
        await self._change(said, settings={**self._setup["settings"], **values})

    async def _constrain(self, said: str, kind: str = "", source: str = "") -> None:
        """Constrain the answers; without a kind, remove the constraint."""
        await self._set(said, constraint={"kind": kind, "source": source} if kind else None)

    async def _set_thinking(self, argument: str) -> None:
        said = {
            "on": "Thinking is on, for a model that can think.",
            "off": "Thinking is off.",
            "auto": "The model decides whether to think.",
        }[argument]
        info = self.session.info if self.session is not None else None
        if argument != "auto" and info is not None and "thinking" not in info.capabilities:
            said = f"{info.name} cannot be told to think or not: this has no effect on it."
        await self._set(said, thinking={"on": True, "off": False}.get(argument))

    async def _ask_guide(self, question: str) -> None:
        """Ask the guide about Hearth, in a chat of its own."""
        before = self.session
        if before is None or before.model != _GUIDE:
            await self.open((await self.sessions.create(model=_GUIDE)).thread.id)
            back = " alt+up and alt+down lead to the others." if before is not None else ""
            self.show_notice(f"guide answers in a chat of its own.{back}")
        await self._send(self.current, question or "What can Hearth do?")
        await self.refresh_list()

    async def _choose_model(self, name: str) -> None:
        from hearth.app.tui.screens.dialogs import PickOne

        index = self.services.index
        if not name:
            models = await index.models()
            dialog = PickOne("Model", [model.name for model in models])
            picked = await self.app.push_screen_wait(dialog)
            name = picked or ""
        if name:
            resolved = await index.resolve(name)
            chosen = str(resolved.path) if resolved.origin == "path" else resolved.name
            await self._change(f"{resolved.name} answers from now on.", model=chosen)

    async def _set_system(self, text: str) -> None:
        answer = text or await self._ask_text("System prompt", self._setup["system"])
        if answer is not None:
            said = f"System prompt: {answer}" if answer else "There is no system prompt now."
            await self._change(said, system=answer)

    async def _set_value(self, argument: str) -> None:
        name, value = changed_setting(argument)
        values = {**self._setup["settings"].get("set", {}), name: value}
        text = argument.partition(" ")[2].strip()
        await self._set(f"{name} is {text} in this chat.", set=values)

    async def _edit_settings(self) -> None:
        from hearth.app.tui.screens.sampling import SamplingScreen

        now = dict(self._setup["settings"])
        dialog = SamplingScreen(now, self.services.settings, self.model, check=self._check_idle)
        answer = await self.app.push_screen_wait(dialog)
        if answer is not None:
            await self._change("The settings of this chat are changed.", settings=answer)

    async def _use_preset(self, name: str) -> None:
        from hearth.app.tui.screens.presets import PresetsScreen

        presets = self.hearth.presets
        screen = PresetsScreen(presets, self._as_preset("this chat"))
        chosen = presets.get(name) if name else await self.app.push_screen_wait(screen)
        if chosen is not None:
            settings = {**chosen.settings, "preset": chosen.name}
            said = f"This chat uses the preset {chosen.name}."
            await self._change(said, model=chosen.model, system=chosen.system, settings=settings)

    async def _save_preset(self, name: str) -> None:
        from hearth.app.tui.screens.presets import may_save

        presets = self.hearth.presets
        name = name or await self._ask_line("Name of the preset")
        if name and await may_save(self.app, name, presets.all()):
            kept = await asyncio.to_thread(presets.save, self._as_preset(name))
            self.show_notice(f"Saved as the preset {kept.name}.")

    def _as_preset(self, name: str) -> Preset:
        from hearth.app.presets import Preset

        return Preset(name, **self._setup)

    async def _search(self, query: str) -> None:
        from hearth.app.tui.screens.search import SearchScreen

        hit = await self.app.push_screen_wait(SearchScreen(self.services.chats, query))
        if hit is None:
            return
        await self.open(hit.thread_id)
        if hit.message_id:
            if all(one.id != hit.message_id for one in self.current.messages):
                await self.current.select(hit.message_id)
                await self.open(hit.thread_id)
            await self.transcript.jump_to(hit.message_id)

    async def _compare(self, model: str) -> None:
        from hearth.app.tui.screens.compare import CompareScreen

        names = [installed.name for installed in await self.services.index.models()]
        dialog = CompareScreen(self.services, names, self.model, model)
        await self.app.push_screen_wait(dialog)

    async def _show_prompt(self) -> None:
        from hearth.app.tui.screens.prompt_view import PromptView

        session = self.current
        request, info, backend, _ = await session.request_for(session.messages[session.left_out :])
        await self.app.push_screen_wait(PromptView(backend, request, info.context))

    async def _import(self, path: str) -> None:
        _, data = await self._read_json(path)
        thread = await asyncio.to_thread(import_json, self.services.chats, data)
        await self.open(thread.id)
        await self.refresh_list()

    async def _read_json(self, path: str) -> tuple[str, Any]:
        """The text of a JSON file, and its parsed value."""

        def read() -> tuple[str, Any]:
            try:
                text = typed_path(path, self.folder).read_text(encoding="utf-8")
                return text, json.loads(text)
            except (OSError, ValueError, RecursionError) as error:  # Includes invalid UTF-8.
                raise InvalidParameter(
                    "path", f"{path} cannot be read as JSON: {error}.", "Correct the file."
                ) from error

        return await asyncio.to_thread(read)

    # ---- messages and chats

    def _last(self, role: str = "") -> str:
        """The id of the last message, or of the last with this role."""
        for message in reversed(self.current.messages):
            if role in ("", message.role):
                return message.id
        raise _no_message()

    def _last_answer(self) -> str:
        """The id of the last answer that has text."""
        for message in reversed(self.current.messages):
            if message.role == "assistant" and message.content.strip():
                return message.id
        raise InvalidParameter("chat", "This chat has no answer yet.", "Ask something first.")

    async def _do_with_message(self, message: str, action: str) -> None:
        """Do `action` (see `MessageView.Action`, or /retry) with a message."""
        session = self.current
        chat_message = next((one for one in session.messages if one.id == message), None)
        if chat_message is None:
            return
        match action:
            case "edit":
                text = await self._ask_text(f"Edit ({chat_message.role})", chat_message.content)
                if text is not None and text != chat_message.content:
                    await session.edit(message, text)
            case "regenerate" | "retry":
                await session.regenerate(message)
            case "continue":
                await session.resume(message)
            case "copy":
                self.app.copy_to_clipboard(chat_message.content)
                self.show_notice("Copied.")
            case "previous" | "next":
                await session.step(message, 1 if action == "next" else -1)
            case "clone":
                await self.open((await session.clone(message)).id)
                await self.refresh_list()
            case "delete_branch":
                question = "Delete this message and everything after it?"
                if await self._delete_confirmed(question, "Other branches stay."):
                    await session.delete_branch(message)

    async def _do_with_thread(self, thread: str, action: str, argument: str = "") -> None:
        """Do `action` (see `ThreadList.Asked`) with a chat."""
        session = await self.sessions.open(thread)
        match action:
            case "open":
                await self.open(thread)
                self.prompt.focus()
            case "rename":
                title = argument or await self._ask_line("Title", session.thread.title)
                if title:
                    await session.change(title=title)
            case "pin":
                await session.change(pinned=not session.thread.pinned)
                self.show_notice("Pinned." if session.thread.pinned else "Not pinned any more.")
            case "archive":
                await session.change(archived=not session.thread.archived)
                self.show_notice("Archived." if session.thread.archived else "Restored.")
            case "clone":
                await self.open((await session.clone()).id)
            case "export":
                await self._export(thread, argument)
            case "delete":
                title = session.thread.title or "this chat"
                if await self._delete_confirmed(f"Delete “{title}”?", "It cannot be recovered."):
                    if session is self.session:
                        await self.leave()
                    try:
                        await self.sessions.delete(thread)
                    except FolderUnusable:  # The chat is deleted, its keys and values are not.
                        await self.refresh_list()
                        raise
        await self.refresh_list()

    async def _export(self, thread: str, argument: str) -> None:
        kind, _, rest = argument.partition(" ")
        if kind not in ("markdown", "json"):
            kind, rest = "", argument
        suffix = ".json" if kind == "json" else ".md"
        rest = rest.strip() or await self._ask_line("File", f"chat{suffix}")
        if not rest:
            return
        is_json = kind == "json" or (not kind and rest.endswith(".json"))
        path = typed_path(rest, self.folder)
        chats = self.services.chats

        def write() -> int:
            if is_json:
                text = json.dumps(to_json(chats, thread), ensure_ascii=False, indent=1)
            else:
                text = to_markdown(chats, thread)
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(text)
                return path.stat().st_size
            except OSError as error:
                raise InvalidParameter(
                    "path", f"{path}: {error.strerror}.", "Choose another file."
                ) from error

        written_bytes = await asyncio.to_thread(write)
        self.show_notice(f"Written to {path} ({size(written_bytes)}).")

    async def _count(self, text: str) -> tuple[int, str]:
        """Number of tokens of a draft, and a text with it; estimated until the model is loaded."""
        if not text.strip() or is_command(text):
            return 0, ""
        session = self.session
        try:
            expanded = await asyncio.to_thread(attachments.expand, text, self.folder)
            if session is not None and session.info is not None:
                backend = await self._backend(session)
                tokens = len(await backend.tokenize(expanded.text))
                about = ""
            else:
                tokens, about = -(-len(expanded.text.encode()) // _BYTES_PER_TOKEN), "about "
        except HearthError as error:
            return 0, error.message
        files = attachments.in_words(expanded.files)
        counted = f"{about}{tokens:,} token" + ("" if tokens == 1 else "s")
        return tokens, counted + (f", {files}" if files else "")

    # Dialogs are imported when they are first shown, which is after the first paint.

    async def _delete_confirmed(self, question: str, detail: str) -> bool:
        from hearth.app.tui.screens.dialogs import Confirm

        dialog = Confirm(question, detail, yes="Delete", destructive=True)
        return await self.app.push_screen_wait(dialog)

    async def _ask_line(self, title: str, value: str = "") -> str:
        from hearth.app.tui.screens.dialogs import AskLine

        return await self.app.push_screen_wait(AskLine(title, value)) or ""

    async def _ask_text(self, title: str, text: str) -> str | None:
        from hearth.app.tui.screens.dialogs import EditText

        return await self.app.push_screen_wait(EditText(title, text, check=self._check_idle))

    def _check_idle(self) -> None:
        """Raise `Busy` if an answer in the chat shown prevents changes."""
        if self.session is not None:
            self.session.check_idle()


def in_words(moved: Moved) -> str:
    """The state in words."""
    if moved.state == "prefill" and moved.total:
        left = "" if moved.left_s is None else f" · about {max(1, round(moved.left_s))} s"
        return f"reading the prompt {moved.done:,}/{moved.total:,}{left}"
    return _STATES.get(moved.state, "")


def _no_message() -> InvalidParameter:
    return InvalidParameter("chat", "This chat has no messages yet.", "Write one first.")
