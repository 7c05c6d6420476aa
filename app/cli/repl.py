"""The line-by-line chat, which uses the same sessions and history as the terminal app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Final, NoReturn, TypeVar

from hearth.app.chats.store import ChatStore
from hearth.app.chats.tree import Thread
from hearth.app.cli.asking import announce, ending, require_template, statistics
from hearth.app.cli.options import shown_setting
from hearth.app.cli.state import State
from hearth.app.cli.typed import LineReader, on_interrupt
from hearth.app.exit_codes import ExitCode
from hearth.app.host_link import HostLink, wait_for_item
from hearth.app.session.events import Ended, Noticed, Piece, SessionEvent
from hearth.app.session.sessions import ChatServices, ChatSession, Loaded, Sessions
from hearth.app.session.turn import StreamingAnswer
from hearth.app.settings import Settings, layer_of
from hearth.app.slash_commands import (
    CHAT_SETTINGS,
    SlashCommand,
    changed_setting,
    is_command,
    parse,
)
from hearth.backends.errors import HearthError, InvalidParameter

T = TypeVar("T")

_LISTED = 10
"""Number of chats that `/chats` lists."""


class Leave(Exception):
    """The user leaves the chat."""


class Repl:
    """One chat at a time, with one model at a time.

    Args:
        state: library, paths and output.
        settings: include the flags of the command line.
        link: the connection to the host.
        chats: the history.
        reader: reads the messages.
        model: name or path; empty for the default model.
        stats: print numbers after each answer.
        resume: open the chat that changed last.

    Raises:
        HearthError: the first model cannot be found or loaded, or cannot chat.
    """

    def __init__(
        self,
        state: State,
        settings: Settings,
        link: HostLink,
        chats: ChatStore,
        reader: LineReader,
        model: str,
        *,
        stats: bool,
        resume: bool,
    ) -> None:
        self._state = state
        self._output = state.output
        self._link = link
        self._reader = reader
        self._stats = stats
        self._services = ChatServices(state.paths, settings, state.library, chats, link.connection)
        self._sessions = Sessions(self._services)
        self._session: ChatSession | None = None
        self._next: dict[str, Any] = {"model": "", "system": "", "settings": {}}
        """Values for the next new chat."""
        if resume:
            self._resume(chats.newest())
        if model or self._session is None:
            self._change_model(model)
        else:
            self._load(self._session.thread.model)

    def run(self) -> int:
        """Read messages and answer them until the user leaves.

        Returns the exit code: that of the last failure if the questions were piped in.
        """
        if self._reader.interactive:
            self._output.note("/help shows the commands. Ctrl+C stops an answer, Ctrl+D leaves.")
        code: int = ExitCode.OK
        try:
            while True:
                try:
                    text = self._reader.read()
                    if text is None:
                        break
                    if text.startswith("/") and is_command(text):
                        self._run_command(text)
                    elif text.strip():
                        self._turn(text)
                except Leave:
                    break
                except KeyboardInterrupt:
                    self._output.note("\nCtrl+D or /quit leaves.")
                except HearthError as error:
                    self._output.error(error)
                    code = error.exit_code
        finally:
            self._do(self._sessions.close())
        if self._reader.interactive:
            self._output.note("")
            return ExitCode.OK
        return code

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._link.run(work)

    # ---- the chat

    @property
    def _values(self) -> dict[str, Any]:
        """Model, system prompt and settings of this chat, or of the next one."""
        if self._session is None:
            return self._next
        thread = self._session.thread
        return {"model": thread.model, "system": thread.system, "settings": thread.settings}

    def _change(self, **fields: Any) -> None:
        if self._session is not None:
            self._do(self._session.change(**fields))
        else:
            self._next |= fields

    def _load(self, model: str) -> Loaded:
        """Load the model and print which one answers. Raises HearthError, with nothing changed."""
        changes = self._values["settings"].get("set", {})
        name = model or self._services.settings.text("model")
        with self._output.note_if_slow(f"loading {name} …"):
            loaded = self._do(self._services.load(model, changes))
        require_template(loaded.info)
        info = loaded.info
        self._services.shown_notices.update((info.path, notice) for notice in info.notices)
        announce(self._state, info, stats=self._stats)
        self._loaded = loaded
        return loaded

    def _change_model(self, model: str) -> None:
        resolved = self._state.find(model)  # Offers to download it.
        name = str(resolved.path) if resolved.origin == "path" else resolved.name
        self._load(name)
        self._change(model=name if model else "")

    def _resume(self, thread: Thread | None) -> None:
        if thread is None:
            self._output.note("There is no chat yet to continue; this is a new one.")
            return
        self._session = self._do(self._sessions.open(thread.id))
        title = thread.title or "(no title)"
        self._output.note(f'Continuing "{title}" ({len(self._session.messages)} messages).')

    def _turn(self, text: str) -> None:
        """Send `text` and print the answer. Raises HearthError if the answer is incomplete."""
        events: SimpleQueue[SessionEvent] = SimpleQueue()

        async def send() -> tuple[ChatSession, StreamingAnswer, Callable[[], None]]:
            if self._session is None:
                self._session = await self._sessions.create(**self._next)
            session = self._session
            unsubscribe = session.subscribe(events.put)
            try:
                await session.send(text)
            except BaseException:
                unsubscribe()
                raise
            assert session.live is not None
            return session, session.live, unsubscribe

        session, answer, unsubscribe = self._do(send())
        with on_interrupt(lambda: self._link.soon(session.stop)):
            ended = self._print(events)
        unsubscribe()
        self._do(session.wait())
        if answer.info is not None and answer.request is not None and ended.error is None:
            if note := ending(answer, answer.info, answer.request.max_tokens):
                self._output.note(note)
            if self._stats:
                self._output.note(statistics(answer, answer.request.sampling.seed))
        if ended.error is not None:
            raise ended.error

    def _print(self, events: SimpleQueue[SessionEvent]) -> Ended:
        """Print the events until the answer ends. Notices amid the text are printed after it."""
        writer, thoughts = self._output.stream(), self._output.thoughts()
        notices: list[str] = []
        has_text = False
        while not isinstance(event := wait_for_item(events), Ended):
            if isinstance(event, Piece):
                has_text = True
                if event.channel == "reasoning":
                    thoughts.write(event.text)
                else:
                    thoughts.end()
                    writer.write(event.text)
            elif isinstance(event, Noticed):
                if has_text:
                    notices.append(event.text)
                else:
                    self._output.note(event.text)
        thoughts.end()
        writer.end()
        for notice in notices:
            self._output.note(notice)
        return event

    # ---- commands

    def _run_command(self, text: str) -> None:
        """Run the slash command `text`. Raises Leave or HearthError."""
        command = parse(text, {name: one for name, (one, _) in _COMMANDS.items()})
        _COMMANDS[command.name][1](self, command.argument)

    def _help(self, _: str) -> None:
        for command, _run in _COMMANDS.values():
            self._output.note(f"  {command.usage:18} {command.help}")
        self._output.note("  Ctrl+C stops an answer and keeps its text. Ctrl+D leaves.")
        self._output.note(
            '  A trailing backslash, or """ before and after, makes a message of several lines.'
        )

    def _new(self, _: str) -> None:
        self._next = dict(self._values)
        self._session = None
        self._output.note("A new chat.")

    def _chats(self, number: str) -> None:
        threads = self._services.chats.threads(limit=_LISTED)
        if not number:
            for place, thread in enumerate(threads, 1):
                self._output.note(f"  {place:2}  {thread.title or '(no title)'}")
            self._output.note("/chats N opens one." if threads else "There are no chats yet.")
        elif number.isdecimal() and 1 <= int(number) <= len(threads):
            self._resume(threads[int(number) - 1])
            self._load(self._values["model"])
        else:
            raise InvalidParameter("chat", f'There is no chat "{number}".', "/chats lists them.")

    def _system(self, text: str) -> None:
        if text:
            self._change(system=text)
            self._output.note("The system prompt is used from the next answer on.")
        else:
            system = self._values["system"] or self._loaded.chosen.use.system
            self._output.note(system or "There is no system prompt. /system TEXT sets one.")

    def _model(self, model: str) -> None:
        if model:
            self._change_model(model)
        else:
            names = ", ".join(model.name for model in self._state.library.found())
            self._output.note(f"The model is {self._loaded.info.name}. Installed: {names}.")

    def _switch_stats(self, _: str) -> None:
        self._stats = not self._stats
        self._output.note("Stats on." if self._stats else "Stats off.")

    def _set(self, argument: str) -> None:
        changes = self._values["settings"].get("set", {})
        if not argument:
            settings = self._services.settings.with_flags(layer_of(changes, "this chat"))
            values = settings.all(self._loaded.chosen.found.name)
            for key in CHAT_SETTINGS.values():
                shown = shown_setting(key.name, values[key.name].value)
                self._output.note(f"  {key.name:22} {shown:10} {key.help}")
            return
        name, value = changed_setting(argument)
        self._change(settings={**self._values["settings"], "set": {**changes, name: value}})
        self._output.note(f"{name} is {shown_setting(name, value)} from the next answer on.")

    def _quit(self, _: str) -> NoReturn:
        raise Leave


_COMMANDS: Final[dict[str, tuple[SlashCommand, Callable[[Repl, str], None]]]] = {
    command.name: (command, run)
    for command, run in (
        (SlashCommand("help", "", "show this", aliases=("h", "?")), Repl._help),
        (SlashCommand("new", "", "start a new chat", aliases=("clear",)), Repl._new),
        (SlashCommand("chats", "[N]", "list the latest chats, or open one"), Repl._chats),
        (SlashCommand("system", "[TEXT]", "show or set the system prompt"), Repl._system),
        (SlashCommand("model", "[NAME]", "show or change the model"), Repl._model),
        (SlashCommand("set", "[KEY VALUE]", "show or set the sampling settings"), Repl._set),
        (
            SlashCommand("stats", "", "switch numbers after each answer on or off"),
            Repl._switch_stats,
        ),
        (SlashCommand("quit", "", "leave", aliases=("exit", "bye", "q")), Repl._quit),
    )
}
