"""The chat: the list of chats, the transcript, and the prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from hearth.app.chats.export import to_json, to_markdown
from hearth.app.chats.imports import import_json
from hearth.app.chats.tree import Thread
from hearth.app.sizes import format_size
from hearth.app.tui import attachments
from hearth.app.tui.commands import Command
from hearth.app.tui.happenings import Calls, Changed, Ended, Happening, Moved, Noticed, Piece
from hearth.app.tui.links import host_of
from hearth.app.tui.screens.base import HearthScreen
from hearth.app.tui.session import ChatSession
from hearth.app.tui.typed_path import typed_path
from hearth.app.tui.widgets.context_meter import ContextMeter
from hearth.app.tui.widgets.prompt_box import ChatCommands, PromptBox
from hearth.app.tui.widgets.thread_list import ThreadList
from hearth.app.tui.widgets.transcript import Transcript
from hearth.backends.errors import HearthError, InvalidParameter

if TYPE_CHECKING:
    from hearth.app.presets import Preset
    from hearth.app.tui.widgets.answer import AnswerView
    from hearth.app.tui.widgets.message import MessageView, Shown
    from hearth.app.tui.widgets.slab import LinkAsked


class ChatScreen(HearthScreen):
    """Shows one chat at a time; the answers of others continue.

    Attributes:
        session: the chat that is shown; None: a new one, which its first message creates.
        folder: where relative paths begin.
    """

    NAME = "chat"
    AUTO_FOCUS = "PromptArea"
    COMMANDS = HearthScreen.COMMANDS | {ChatCommands}
    DEFAULT_CSS = """
    ChatScreen #chat { height: 1fr; }
    ChatScreen #chat > Vertical { width: 1fr; }
    ChatScreen.-narrow ThreadList { display: none; }
    ChatScreen ThreadList.-hidden { display: none; }
    ChatScreen.-narrow ThreadList.-wanted { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", id="chat.stop"),
        Binding("escape", "write", "write", id="chat.write", show=False),
        Binding("ctrl+n", "new", "new chat", id="chat.new"),
        Binding("ctrl+f", "search", "search", id="chat.search"),
        Binding("ctrl+b", "toggle_list", "chats", id="chat.list"),
        Binding("ctrl+g", "sampling", "settings of the chat", id="chat.settings", show=False),
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
        """What the next new chat begins with."""
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
                yield PromptBox(self.services.paths.state / "prompt-history", id="prompt")

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
            made = await self.sessions.create(**self._first)
            await self.open(made.thread.id)
        assert self.session is not None
        return self.session

    @property
    def current(self) -> ChatSession:
        """The chat that is shown. Raises `InvalidParameter` where it is a new one."""
        if self.session is None:
            raise _no_message()
        return self.session

    @property
    def model(self) -> str:
        """The name of the model that answers next."""
        if self.session is not None:
            return self.session.model
        return str(self._first["model"]) or self.services.settings.text("model")

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
        """Read the list of chats again."""
        try:
            self._threads = await asyncio.to_thread(self.services.chats.threads)
        except HearthError as error:
            self.tell_error(error)
        self.show_list()

    @work(group="list")
    async def reload_list(self) -> None:
        """Read the list of chats again, in the background."""
        await self.refresh_list()

    def show_list(self) -> None:
        """Show the list of chats, with what they do now."""
        current = self.session.thread.id if self.session is not None else ""

        def state_of(thread: str) -> tuple[str, bool]:
            session = self.sessions.open_ones.get(thread)
            return ("idle", False) if session is None else (session.state, session.unread)

        model = self.services.settings.text("model")
        self.query_one(ThreadList).show(self._threads, current, state_of, model)

    # ---- what happens in it

    def _hear(self, happening: Happening) -> None:
        if isinstance(happening, Piece):
            self._show_live()
        elif isinstance(happening, Calls):
            answer = self._answer()
            if answer is not None:
                answer.status(f"calling {happening.calls[-1].name}")
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
            place = self.transcript.selected_place
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
            if place not in (None, self.transcript.selected_place):
                self.transcript.select_place(place)
        self._show_live()
        self._show_state(session.progress)

    def show_meter(self) -> None:
        """Show model, state and context of the chat."""
        session = self.session
        context = session.info.context if session is not None and session.info else 0
        used = session.context_tokens if session is not None else 0
        self.query_one(ContextMeter).show(
            self.model,
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
            expanded = await asyncio.to_thread(attachments.expand, text, self.folder)
            session = await self.need_session()
            await session.send(expanded.text)
            if expanded.unmatched:
                self.tell(attachments.not_found(expanded.unmatched), severity="warning")

        if not await self.told(do()):
            self.prompt.restore(text)
        await self.refresh_list()

    @work(group="draft", exclusive=True)
    async def on_prompt_box_drafted(self, event: PromptBox.Drafted) -> None:
        """Count what is being written, once the writer pauses."""
        await asyncio.sleep(0.3)
        self._draft_tokens, hint = await self._count(event.text)
        self.prompt.set_hint(hint)
        self.show_meter()

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.command(event.command)

    @work(group="command")
    async def command(self, command: Command) -> None:
        """Run a slash command."""
        await self.told(self._run(command))

    def on_message_view_action(self, event: MessageView.Action) -> None:
        self.act(event.id, event.action)

    @work(group="act")
    async def act(self, message: str, action: str) -> None:
        """Do something with a message."""
        await self.told(self._do_with_message(message, action))

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
        await self.told(self._do_with_thread(thread, action))

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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only an answer in progress can be stopped."""
        return action != "stop" or (self.session is not None and self.session.is_busy)

    def action_stop(self) -> None:
        """Stop the answer in progress; its text so far is kept."""
        if self.session is not None:
            self.session.stop()

    def action_write(self) -> None:
        """Go back to the prompt."""
        self.prompt.focus()

    def action_select(self) -> None:
        """Go to the last message, and from there to those before."""
        self.transcript.action_select(-1)

    # ---- commands

    async def _run(self, command: Command) -> None:
        argument = command.argument
        match command.name:
            case "help":
                self.hearth.action_help()
            case "new":
                await self.leave()
            case "model":
                await self._choose_model(argument)
            case "system":
                await self._set_system(argument)
            case "think":
                await self._set(thinking={"on": True, "off": False}.get(argument))
            case "set":
                await self._set_value(argument)
            case "settings":
                await self._edit_settings()
            case "preset":
                await self._use_preset(argument)
            case "save-preset":
                await self._save_preset(argument)
            case "json":
                await self._constrain("" if argument == "off" else "json")
            case "schema":
                source, _ = await self._read_json(argument)
                await self._constrain("json_schema", source)
            case "regex":
                await self._constrain("regex", argument)
            case "choice":
                texts = [text.strip() for text in argument.split("|") if text.strip()]
                source = json.dumps(texts, ensure_ascii=False)
                await self._constrain("choice" if texts else "", source)
            case "retry":
                await self._do_with_message(self._last(), "regenerate")
            case "continue" | "copy" as action:
                await self._do_with_message(self._last(), action)
            case "edit":
                await self._do_with_message(self._last("user"), "edit")
            case "stop":
                self.current.stop()
            case "search":
                await self._search(argument)
            case "compare":
                await self._compare(argument)
            case "prompt":
                await self._show_prompt()
            case "rename" | "pin" | "archive" | "clone" | "delete" | "export" as action:
                await self._do_with_thread(self.current.thread.id, action, argument)
            case "import":
                _, data = await self._read_json(argument)
                thread = await asyncio.to_thread(import_json, self.services.chats, data)
                await self.open(thread.id)
                await self.refresh_list()
            case "stats":
                self.toggle_class("-no-numbers")
            case "quit":
                await self.hearth.action_leave()
            case screen:
                self.hearth.action_go(screen)

    async def _change(self, **fields: Any) -> None:
        """Change the chat that is shown, or the one to come."""
        if self.session is not None:
            await self.session.change(**fields)
        else:
            self._first |= fields
        self.show_meter()

    async def _set(self, **values: Any) -> None:
        await self._change(settings={**self._as_preset().settings, **values})

    async def _constrain(self, kind: str, source: str = "") -> None:
        """Let answers follow a constraint; without a kind they are free."""
        await self._set(constraint={"kind": kind, "source": source} if kind else None)

    async def _choose_model(self, name: str) -> None:
        from hearth.app.tui.screens.dialogs import PickOne

        index = self.services.index
        if not name:
            found = await index.models()
            name = await self._ask(PickOne("Model", [model.name for model in found])) or ""
        if name:
            resolved = await index.resolve(name)
            chosen = str(resolved.path) if resolved.origin == "path" else resolved.name
            await self._change(model=chosen)

    async def _set_system(self, text: str) -> None:
        answer = text or await self._ask_text("System prompt", self._as_preset().system)
        if answer is not None:
            await self._change(system=answer)

    async def _set_value(self, argument: str) -> None:
        from hearth.app.settings_keys import ALL
        from hearth.app.tui.services import layer_of

        name, _, text = argument.partition(" ")
        key = ALL.get(name)
        try:
            value = text if key is None else key.parse(text)
        except ValueError as error:
            raise InvalidParameter(name, f"{name}: {error}.", "Give another value.") from error
        layer_of({name: value})
        kept = list(value) if isinstance(value, tuple) else value
        await self._set(set={**self._as_preset().settings.get("set", {}), name: kept})

    async def _edit_settings(self) -> None:
        from hearth.app.tui.screens.sampling import SamplingScreen

        now = self._as_preset().settings
        answer = await self._ask(SamplingScreen(now, self.services.settings, self.model))
        if answer is not None:
            await self._change(settings=answer)

    async def _use_preset(self, name: str) -> None:
        from hearth.app.tui.screens.presets import PresetsScreen

        presets = self.hearth.presets
        screen = PresetsScreen(presets, self._as_preset("this chat"))
        chosen = presets.get(name) if name else await self._ask(screen)
        if chosen is not None:
            settings = {**chosen.settings, "preset": chosen.name}
            await self._change(model=chosen.model, system=chosen.system, settings=settings)

    async def _save_preset(self, name: str) -> None:
        name = name or await self._ask_line("Name of the preset")
        if name:
            save = self.hearth.presets.save
            kept = await asyncio.to_thread(save, self._as_preset(name))
            self.tell(f"Kept as {kept.name}.")

    def _as_preset(self, name: str = "") -> Preset:
        """Model, system prompt and settings of the chat that is shown, or of the one to come."""
        from hearth.app.presets import Preset

        if self.session is not None:
            thread = self.session.thread
            return Preset(name, thread.system, thread.model, dict(thread.settings))
        first = self._first
        return Preset(name, first["system"], first["model"], dict(first["settings"]))

    async def _search(self, query: str) -> None:
        from hearth.app.tui.screens.search import SearchScreen

        hit = await self._ask(SearchScreen(self.services.chats, query))
        if hit is None:
            return
        await self.open(hit.thread_id)
        if hit.message_id and all(one.id != hit.message_id for one in self.current.messages):
            await self.current.select(hit.message_id)
            await self.open(hit.thread_id)
        if hit.message_id:
            await self.transcript.jump_to(hit.message_id)

    async def _compare(self, model: str) -> None:
        from hearth.app.tui.screens.compare import CompareScreen

        names = [found.name for found in await self.services.index.models()]
        await self._ask(CompareScreen(self.services, names, self.model, model))

    async def _show_prompt(self) -> None:
        from hearth.app.tui.screens.prompt_view import PromptView

        session = self.current
        asking = await session.asking(session.messages[session.left_out :])
        await self._ask(PromptView(asking.backend, asking.request, asking.info.context))

    async def _read_json(self, path: str) -> tuple[str, Any]:
        """A JSON file, as it is written and as Python has it."""

        def read() -> tuple[str, Any]:
            try:
                text = typed_path(path, self.folder).read_text(encoding="utf-8")
                return text, json.loads(text)
            except (OSError, ValueError) as error:  # Also of bytes that are not UTF-8.
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

    async def _do_with_message(self, message: str, action: str) -> None:
        """Do `action` (see `MessageView.Action`) with a message."""
        session = self.current
        found = next((one for one in session.messages if one.id == message), None)
        if found is None:
            return
        match action:
            case "edit":
                text = await self._ask_text(f"Edit ({found.role})", found.content)
                if text is not None and text != found.content:
                    await session.edit(message, text)
            case "regenerate":
                await session.regenerate(message)
            case "continue":
                await session.resume(message)
            case "copy":
                self.app.copy_to_clipboard(found.content)
                self.tell("Copied.")
            case "previous" | "next":
                await session.step(message, 1 if action == "next" else -1)
            case "clone":
                await self.open((await session.clone(message)).id)
                await self.refresh_list()
            case "delete_branch":
                question = "Delete this message and everything after it?"
                if await self._confirmed(question, "Other branches stay."):
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
            case "archive":
                await session.change(archived=not session.thread.archived)
            case "clone":
                await self.open((await session.clone()).id)
            case "export":
                await self._export(thread, argument)
            case "delete":
                title = session.thread.title or "this chat"
                if await self._confirmed(f"Delete “{title}”?", "It cannot be recovered."):
                    if session is self.session:
                        await self.leave()
                    await self.sessions.delete(thread)
        await self.refresh_list()

    async def _export(self, thread: str, argument: str) -> None:
        kind, _, rest = argument.partition(" ")
        if kind not in ("markdown", "json"):
            kind, rest = "json" if argument.endswith(".json") else "markdown", argument
        suffix = ".json" if kind == "json" else ".md"
        rest = rest.strip() or await self._ask_line("File", f"chat{suffix}")
        if not rest:
            return
        path = typed_path(rest, self.folder)
        chats = self.services.chats

        def write() -> int:
            if kind == "json":
                text = json.dumps(to_json(chats, thread), ensure_ascii=False, indent=1)
            else:
                text = to_markdown(chats, thread)
            try:
                with path.open("x", encoding="utf-8") as file:
                    return file.write(text)
            except OSError as error:
                raise InvalidParameter(
                    "path", f"{path}: {error.strerror}.", "Choose another file."
                ) from error

        size = await asyncio.to_thread(write)
        self.tell(f"Written to {path} ({format_size(size)}).")

    async def _count(self, text: str) -> tuple[int, str]:
        """Tokens of a draft, and these in words; 0 while no model is loaded for it."""
        session = self.session
        if session is None or session.info is None or not text.strip():
            return 0, ""
        try:
            expanded = await asyncio.to_thread(attachments.expand, text, self.folder)
            chosen = await self.services.choose(session.thread.model, {})
            backend = await self.services.host.backend(chosen.spec)
            tokens = await attachments.count(backend, expanded.text)
        except HearthError as error:
            return 0, error.message
        files = attachments.in_words(expanded.files)
        counted = f"{tokens:,} token" + ("" if tokens == 1 else "s")
        return tokens, counted + (f", {files}" if files else "")

    # Dialogs are imported when one is shown, which is not before the first paint.

    async def _ask(self, screen: Any) -> Any:
        return await self.app.push_screen_wait(screen)

    async def _confirmed(self, question: str, detail: str) -> bool:
        from hearth.app.tui.screens.dialogs import Confirm

        return bool(await self._ask(Confirm(question, detail)))

    async def _ask_line(self, title: str, value: str = "") -> str:
        from hearth.app.tui.screens.dialogs import AskLine

        return await self._ask(AskLine(title, value)) or ""

    async def _ask_text(self, title: str, text: str) -> str | None:
        from hearth.app.tui.screens.dialogs import EditText

        return cast("str | None", await self._ask(EditText(title, text)))


def in_words(moved: Moved) -> str:
    """What goes on."""
    if moved.state == "prefill" and moved.total:
        left = "" if moved.left_s is None else f" · about {max(1, round(moved.left_s))} s"
        return f"reading the prompt {moved.done:,}/{moved.total:,}{left}"
    words = {"loading": "loading the model", "prefill": "reading the prompt"}
    words |= {"generating": "answering", "stopping": "stopping"}
    return words.get(moved.state, "")


def _no_message() -> InvalidParameter:
    return InvalidParameter("chat", "This chat has no messages yet.", "Write one first.")
