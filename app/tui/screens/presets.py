"""The presets: use one, save this chat as one, rename and delete them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from textual import on, work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.presets import Preset, PresetExists, Presets
from hearth.app.terminal import safe_text
from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.screens.dialogs import AskLine, Confirm
from hearth.backends.errors import HearthError


class PresetsScreen(Dialog[Preset | None]):
    """Lists the presets and shows the marked one; returns the preset to use.

    Args:
        presets: the stored presets.
        current: the chat as a preset, whose name is suggested.
    """

    DEFAULT_CSS = """
    PresetsScreen > .dialog { width: 100%; max-width: 110; height: 80%; padding: 0 1; }
    PresetsScreen Horizontal { height: 1fr; }
    PresetsScreen OptionList, PresetsScreen OptionList:focus {
        width: 36%; height: 1fr; border: none;
    }
    PresetsScreen VerticalScroll { width: 1fr; padding-left: 2; }
    PresetsScreen.-narrow Horizontal { layout: vertical; }
    PresetsScreen.-narrow OptionList, PresetsScreen.-narrow OptionList:focus { width: 100%; }
    PresetsScreen.-narrow VerticalScroll { height: 1fr; padding-left: 1; }
    """
    TITLE = "Presets"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "use", "use", id="presets.use", priority=True),
        Binding("s", "save", "save this chat", id="presets.save"),
        Binding("r", "rename", "rename", id="presets.rename"),
        Binding("d", "delete", "delete", id="presets.delete"),
        Binding("escape", "dismiss(None)", "close", id="presets.close"),
    ]

    def __init__(self, presets: Presets, current: Preset) -> None:
        super().__init__()
        self._presets = presets
        self._current = current
        self._shown: list[Preset] = []

    def body(self) -> ComposeResult:
        yield Static("", classes="wrong", markup=False)
        with Horizontal():
            yield OptionList(markup=False)
            with VerticalScroll(can_focus=False):
                yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        self._list()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that are not possible now."""
        if action in ("use", "rename", "delete"):
            return True if self._shown else None
        return True

    def _list(self, marked: str = "") -> None:
        option_list = self.query_one(OptionList)
        option_list.clear_options()
        try:
            self._shown = self._presets.all()
        except HearthError as error:
            self._shown = []
            self.show_wrong(str(error))
        option_list.add_options(Option(Content(safe_text(preset.name))) for preset in self._shown)
        names = [preset.name for preset in self._shown]
        if names:
            option_list.highlighted = names.index(marked) if marked in names else 0
        self._about()
        self.refresh_bindings()

    @property
    def _marked(self) -> Preset | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    @on(OptionList.OptionHighlighted)
    def _about(self) -> None:
        marked = self._marked
        nothing = "No presets yet. A preset is a system prompt, a model and settings; s saves one."
        text = nothing if marked is None else in_words(marked)
        self.query_one("#about", Static).update(safe_text(text))

    @on(OptionList.OptionSelected)
    def action_use(self) -> None:
        """Use the marked preset."""
        if self._marked is not None:
            self.dismiss(self._marked)

    @work(group="presets", exclusive=True)
    async def action_save(self) -> None:
        """Save this chat as a preset."""
        name = await self.app.push_screen_wait(
            AskLine("Name of the preset", self._current.name, check=_named)
        )
        if name is not None and await may_save(self.app, name, self._shown):
            await self._do(lambda: self._presets.save(replace(self._current, name=name)))

    @work(group="presets", exclusive=True)
    async def action_rename(self) -> None:
        """Give the marked preset another name."""
        marked = self._marked
        if marked is None:
            return
        others = {preset.name.lower() for preset in self._shown} - {marked.name.lower()}

        def check(name: str) -> None:
            _named(name)
            if name.lower() in others:
                raise PresetExists(f"There is a preset called {name}.", "Choose another name.")

        name = await self.app.push_screen_wait(AskLine("New name", marked.name, check=check))
        if name is not None:
            await self._do(lambda: self._presets.rename(marked.name, name))

    @work(group="presets", exclusive=True)
    async def action_delete(self) -> None:
        """Delete the marked preset, after asking."""
        marked = self._marked
        if marked is None:
            return
        question = Confirm(
            f"Delete {marked.name}?",
            "Chats that use it keep their settings.",
            yes="Delete",
            destructive=True,
        )
        if await self.app.push_screen_wait(question):
            await self._do(lambda: self._presets.delete(marked.name))

    async def _do(self, change: Callable[[], Preset | None]) -> None:
        """Run `change`, and show the list again with the returned preset marked."""
        self.show_wrong("")
        try:
            marked = await asyncio.to_thread(change)
        except HearthError as error:
            self._list()
            self.show_wrong(str(error))
        else:
            self._list("" if marked is None else marked.name)


async def may_save(app: App[Any], name: str, presets: Sequence[Preset]) -> bool:
    """Whether to save a preset called `name`; the user is asked if that replaces one of `presets`.

    Call it in a worker.
    """
    same = [preset.name for preset in presets if preset.name.lower() == name.lower()]
    if not same:
        return True
    question = f"Replace {same[0]}?"
    dialog = Confirm(question, "Its contents are lost.", yes="Replace", destructive=True)
    return await app.push_screen_wait(dialog)


def in_words(preset: Preset) -> str:
    """A preset as lines of text, not yet made safe to show."""
    settings = preset.settings
    said = {"model": preset.model or "default"}
    if settings.get("thinking") is not None:
        said["thinking"] = "on" if settings["thinking"] else "off"
    if settings.get("constraint"):
        said["answers"] = settings["constraint"]["kind"].replace("_", " ")
    said |= {name: _short(value) for name, value in settings.get("set", {}).items()}
    lines = [f"{name:22}{value}" for name, value in said.items()]
    return "\n".join([*lines, "", preset.system or "No system prompt."])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _named(name: str) -> None:
    if not name:
        raise ValueError("A preset needs a name.")
