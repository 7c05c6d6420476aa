"""The box in which the user writes prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Self, cast

from textual import events, on, work
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import OptionList, Static, TextArea

from hearth.app import slash_commands as commands
from hearth.app.terminal import safe_text
from hearth.app.tui.editor import edited
from hearth.app.tui.history import PromptHistory
from hearth.app.tui.widgets.completions import (
    Completion,
    Completions,
    of_commands,
    of_paths,
    path_at,
)
from hearth.app.tui.widgets.fields import SafeTextArea
from hearth.backends.errors import HearthError

_BUSY: Final = "An answer is in progress: esc stops it."
_LONGEST_NAME: Final = 1_024
"""Characters before the cursor that are searched for a name to complete."""


class PromptArea(SafeTextArea):
    """The text of a `PromptBox`, and its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", id="prompt.send", show=False),
        Binding(
            "ctrl+j,shift+enter,alt+enter",
            "newline",
            "new line",
            id="prompt.newline",
            show=False,
        ),
        Binding("tab", "complete", "complete", id="prompt.complete", show=False),
        Binding("ctrl+up", "older", "older prompt", id="prompt.older", show=False),
        Binding("ctrl+down", "newer", "newer prompt", id="prompt.newer", show=False),
        Binding("ctrl+e", "open_editor", "editor", id="prompt.editor", show=False),
        Binding("ctrl+x", "cut", "cut", id="prompt.cut", show=False),
        Binding("escape", "close_list", "close the list", id="prompt.stop", show=False),
    ]

    @property
    def box(self) -> PromptBox:
        """The box that contains the text area."""
        return cast("PromptBox", self.parent)

    def load(self, text: str) -> None:
        """Show `text`, with the cursor at its end."""
        self.load_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        # Handle bound keys here, in the order in which they were typed. Textual checks bindings
        # with priority before a key enters this queue, and others after the key has passed the
        # queues of all parents; in a busy app, either could reorder them relative to letters.
        self.box.note("")
        active = None if event.is_printable else self.screen.active_bindings.get(event.key)
        if (
            active is not None
            and active.node is self
            and await self.app.run_action(active.binding.action, default_namespace=self)
        ):
            event.stop()
            event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        # Convert line ends to those of this text area, whatever the terminal or the source used.
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        self.box.note("")
        event.stop()
        event.prevent_default()
        await super()._on_paste(events.Paste(text))

    def action_send(self) -> None:
        """Send the text, or take the entry chosen in the list."""
        if not (self.box.completions.is_chosen and self.box.complete()):
            self.box.send()

    def action_newline(self) -> None:
        self.insert("\n", maintain_selection_offset=False)
        self.scroll_cursor_visible()

    def action_complete(self) -> None:
        """Take the marked entry of the list; without one, go to the next widget."""
        if not self.box.complete():
            raise SkipAction

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up in the list or in the text, or go to an older prompt."""
        if not select and self.box.completions.is_open:
            self.box.completions.move(-1)
        elif not select and self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_older()
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down in the list or in the text, or go to a newer prompt."""
        if not select and self.box.completions.is_open:
            self.box.completions.move(1)
        elif not select and self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_newer()
        else:
            super().action_cursor_down(select)

    def action_older(self) -> None:
        """Show the previous prompt of the history."""
        self.box.recall(self.box.history.older(self.text), at_end=False)

    def action_newer(self) -> None:
        """Show the next prompt of the history."""
        self.box.recall(self.box.history.newer(), at_end=True)

    def action_cut(self) -> None:
        """Cut the selection; without one, do nothing, since ctrl+x ctrl+e opens the editor."""
        if not self.selection.is_empty:
            super().action_cut()

    def action_open_editor(self) -> None:
        self.box.open_editor()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let escape close the list; without a list, leave the key to the screen."""
        return action != "close_list" or self.box.completions.is_open

    def action_close_list(self) -> None:
        self.box.close_list()


class PromptBox(Vertical):
    """A text box with history and completion, which grows with its text up to ten lines.

    Args:
        history_file: where prompts are kept.
    """

    DEFAULT_CSS = """
    PromptBox { height: auto; }
    PromptBox > PromptArea {
        height: auto;
        max-height: 10;
        border: none;
        border-left: outer $border-blurred;
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    PromptBox > PromptArea:focus { border: none; border-left: outer $primary; }
    PromptBox.-busy > PromptArea:focus { border-left: outer $warning; }
    PromptBox > .hint {
        height: 1;
        padding: 0 2;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    PromptBox > .hint:ansi { text-style: dim; }
    PromptBox > .hint.-note { height: auto; max-height: 4; color: $text; text-wrap: wrap; }
    PromptBox > .hint.-note.-wrong { color: $text-error; }
    """

    @dataclass
    class Submitted(Message):
        """The user sent `text`."""

        text: str

    @dataclass
    class Command(Message):
        """The user wants to run `command`, written as `text`; empty if it was chosen in a list."""

        command: commands.Command
        text: str = ""

    @dataclass
    class Drafted(Message):
        """The text that is being written has changed."""

        text: str

    def __init__(
        self,
        history_file: Path,
        *,
        id: str | None = None,  # noqa: A002 - as all widgets call it
    ) -> None:
        super().__init__(id=id)
        self.history = PromptHistory(history_file)
        self._folder = Path.cwd()
        self._hint = self._note = ""
        self._is_busy = False
        self._closed_for: str | None = None
        """The text for which the list stays closed."""

    def compose(self) -> ComposeResult:
        yield Completions()
        yield PromptArea(
            placeholder="Message, or / command, ? question about Hearth, @file",
            highlight_cursor_line=False,
        )
        yield Static("", classes="hint", markup=False)

    # ---- used by other widgets

    @property
    def area(self) -> PromptArea:
        return self.query_one(PromptArea)

    @property
    def completions(self) -> Completions:
        return self.query_one(Completions)

    @property
    def text(self) -> str:
        """The text in the box."""
        return self.area.text

    def focus(self, scroll_visible: bool = True) -> Self:
        """Focus the text area."""
        self.area.focus(scroll_visible)
        return self

    def set_busy(self, busy: bool) -> None:
        """Set whether an answer is in progress; escape stops it, and messages have to wait."""
        self._is_busy = busy
        self.refresh_bindings()
        self.set_class(busy, "-busy")
        if self._note == _BUSY:
            self.note("")

    def set_hint(self, hint: str) -> None:
        """Show one line below the text, unless there is a note."""
        self._hint = hint
        if not self._note:
            self._show_below(hint)

    def note(self, text: str, *, is_wrong: bool = False) -> None:
        """Show `text` in place of the hint, until the next key."""
        if text or self._note:
            self._note = text
            self._show_below(text or self._hint)
            self.query_one(".hint").set_class(bool(text), "-note").set_class(is_wrong, "-wrong")

    def restore(self, text: str) -> None:
        """Put back text that could not be sent, before what was written meanwhile."""
        self.load(with_draft(text, self.text))

    def load(self, text: str) -> None:
        """Replace the text in the box with `text`."""
        self._closed_for = text
        self.completions.show([])
        self.area.load(text)

    def begin(self, command: commands.SlashCommand) -> None:
        """Run `command`, or let the user write the argument that it needs."""
        if not command.needs_argument:
            self.post_message(self.Command(command.command()))
            return
        self.load(f"/{command.name} ")
        self.focus()

    # ---- used by its keys

    def send(self) -> None:
        """Send the text, or run it if it is a slash command."""
        text = self.text
        if not text.strip():
            return
        if commands.is_command(text):
            try:
                message: Message = self.Command(commands.parse(text), text)
            except HearthError as error:
                self.note(str(error), is_wrong=True)
                return
        elif self._is_busy:
            self.note(_BUSY, is_wrong=True)
            return
        else:
            message = self.Submitted(text)
        if self.history.add(text):
            self._keep(text)
        self.load("")
        self.set_hint("")
        self.post_message(message)

    def recall(self, text: str | None, *, at_end: bool) -> None:
        """Show a prompt of the history, with the cursor at its end or in its first line."""
        if text is None:
            return
        self.load(text)
        if not at_end:
            self.area.move_cursor((0, len(self.area.document.get_line(0))))

    def complete(self) -> bool:
        """Put the marked entry of the list into the text; False if there is none."""
        marked = self.completions.marked
        if marked is None or not marked.fits(self._line):
            return False
        row, column = self.area.cursor_location
        self.completions.show([])
        self.area.replace(
            marked.text, (row, marked.begin), (row, column), maintain_selection_offset=False
        )
        self.area.move_cursor((row, marked.begin + len(marked.text)))
        return True

    def close_list(self) -> None:
        """Close the list until the text changes."""
        self._closed_for = self.text
        self.completions.show([])

    @work(exclusive=True, group="editor")
    async def open_editor(self) -> None:
        """Edit the text in the user's own editor."""
        try:
            text = await edited(self.app, self.text)
        except HearthError as error:
            self.note(str(error), is_wrong=True)
            return
        self.load(text)

    # ---- internal

    @on(TextArea.Changed)
    def _changed(self, event: TextArea.Changed) -> None:
        event.stop()
        text = self.text
        self.post_message(self.Drafted(text))
        if text == self._closed_for:
            return
        self._closed_for = None
        row, line = self.area.cursor_location[0], self._line
        self._offer(of_commands(line) if row == 0 else [])
        if path_at(line[-_LONGEST_NAME:]) is not None:
            self._offer_paths(line)

    @work(exclusive=True, group="completions")
    async def _offer_paths(self, line: str) -> None:
        """Offer files, unless the text has changed while the folder was read."""
        completions = await asyncio.to_thread(of_paths, line, self._folder)
        if self._line == line and self.text != self._closed_for:
            self._offer(completions)

    def _offer(self, found: list[Completion]) -> None:
        written = self._line
        self.completions.show([one for one in found if one.text != written[one.begin :]])

    @property
    def _line(self) -> str:
        """The text before the cursor in its line."""
        row, column = self.area.cursor_location
        return self.area.document.get_line(row)[:column]

    @on(OptionList.OptionSelected)
    def _picked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.complete()
        self.focus()

    @work(group="history")
    async def _keep(self, text: str) -> None:
        try:
            await asyncio.to_thread(self.history.keep, text)
        except OSError as error:
            self.note(f"The prompt is not kept: {error.strerror or error}.", is_wrong=True)

    def _show_below(self, text: str) -> None:
        self.query_one(".hint", Static).update(safe_text(text).replace("\n", " "))


def with_draft(text: str, draft: str) -> str:
    """`text`, which could not be sent, before `draft`, which was written meanwhile."""
    return f"{text}\n{draft}" if draft.strip() and draft != text else text


class ChatCommands(Provider):
    """Offers every slash command in the command palette of a screen with a prompt."""

    async def discover(self) -> Hits:
        for command in commands.COMMANDS.values():
            yield DiscoveryHit(_title(command), self._begin(command), help=_sentence(command))

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command in commands.COMMANDS.values():
            title = _title(command)
            score = matcher.match(f"{title} {command.help}")
            if score > 0:
                shown = matcher.highlight(title)
                begin = self._begin(command)
                yield Hit(score, shown, begin, text=title, help=_sentence(command))

    def _begin(self, command: commands.SlashCommand) -> Callable[[], None]:
        return partial(self.screen.query_one(PromptBox).begin, command)


def _title(command: commands.SlashCommand) -> str:
    return f"Chat: /{command.name}"


def _sentence(command: commands.SlashCommand) -> str:
    return command.help[0].upper() + command.help[1:]
