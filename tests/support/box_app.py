"""A prompt box in an app of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, chdir
from pathlib import Path

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widgets import Input, Static

from hearth.app.tui.widgets.prompt_box import PromptBox


class BoxApp(App[None]):
    """A prompt box below another widget, and the messages that it posted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.said: list[Message] = []

    def compose(self) -> ComposeResult:
        yield Input(id="other")
        yield PromptBox(self.folder / "state" / "prompt-history", id="prompt")

    def on_mount(self) -> None:
        self.box.focus()

    @property
    def box(self) -> PromptBox:
        return self.query_one(PromptBox)

    @property
    def hint(self) -> str:
        return str(self.box.query_one(".hint", Static).content)

    @property
    def offered(self) -> list[str]:
        return [one.text for one in self.box.completions.found]

    def on_prompt_box_submitted(self, event: PromptBox.Submitted) -> None:
        self.said.append(event)

    def on_prompt_box_command(self, event: PromptBox.Command) -> None:
        self.said.append(event)


@asynccontextmanager
async def opened(folder: Path, width: int = 80) -> AsyncIterator[tuple[BoxApp, Pilot[None]]]:
    """The app at this width and in this folder, settled."""
    app = BoxApp(folder)
    with chdir(folder):
        async with app.run_test(size=(width, 24)) as pilot:
            await pilot.pause()
            yield app, pilot


def texts(app: BoxApp) -> list[str]:
    return [one.text for one in app.said if isinstance(one, PromptBox.Submitted)]


def commands(app: BoxApp) -> list[tuple[str, str]]:
    said = [one.command for one in app.said if isinstance(one, PromptBox.Command)]
    return [(command.name, command.argument) for command in said]
