"""The terminal app: wires services, screens and keys together."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import MountError
from textual.worker import WorkerCancelled, WorkerFailed

from hearth.app.library.errors import QueueHeld
from hearth.app.terminal import safe_text
from hearth.app.tui.commands import ChatCommands
from hearth.app.tui.looks import apply_looks
from hearth.app.tui.services import Services
from hearth.app.tui.session import Sessions
from hearth.app.tui.widgets.top_bar import SCREENS, TopBar
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.app.presets import Presets
    from hearth.app.tui.quantizing import Quantizing

_CLASSES: Final = {
    "chat": ("chat", "ChatScreen"),
    "library": ("library", "LibraryScreen"),
    "quantize": ("quantize", "QuantizeScreen"),
    "engine": ("engine", "EngineScreen"),
    "endpoint": ("endpoint", "EndpointScreen"),
    "settings": ("settings", "SettingsScreen"),
    "doctor": ("doctor", "DoctorScreen"),
}
"""Module and class of each screen; a module is imported when its screen is first shown."""


def _made_late(module: str, name: str) -> Callable[[], Screen[None]]:
    def make() -> Screen[None]:
        found = importlib.import_module(f"hearth.app.tui.screens.{module}")
        screen: Screen[None] = getattr(found, name)()
        return screen

    return make


class HearthApp(App[int]):
    """Hearth in a terminal.

    Args:
        services: what it works with.
        thread: the chat to open; empty: a new one.
        model: what new chats are with; empty: the default of the settings.

    Attributes:
        sessions: the chats that are open, whether or not they are shown.
    """

    TITLE = "hearth"
    CSS_PATH = "hearth.tcss"
    PAUSE_GC_ON_SCROLL = True
    MODES: ClassVar = {name: _made_late(*place) for name, place in _CLASSES.items()}
    DEFAULT_MODE = "chat"
    COMMANDS = App.COMMANDS | {ChatCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "help", id="app.help"),
        *(
            Binding(f"f{2 + index}", f"go('{name}')", name, id=f"app.{name}", show=False)
            for index, name in enumerate(SCREENS)
        ),
        Binding("ctrl+o", "jump", "jump", id="app.jump", show=False),
        Binding("ctrl+q", "leave", "quit", id="app.quit", priority=True),
    ]

    def __init__(self, services: Services, thread: str = "", model: str = "") -> None:
        super().__init__()
        self.services = services
        self.sessions = Sessions(services)
        self.first_thread = thread
        self.first_model = model
        self.wanted_thread = ""
        """The chat that another screen wants to be shown."""
        self.wanted_source: Path | None = None
        """The model that another screen wants to be quantized."""
        self.failure: BaseException | None = None
        """What ended the app, if the user did not."""
        apply_looks(self, services.settings)

    @cached_property
    def presets(self) -> Presets:
        """What chats may begin with."""
        from hearth.app.presets import Presets

        return Presets(self.services.paths.presets_file)

    @cached_property
    def quantizing(self) -> Quantizing:
        """The quantizations of all screens."""
        from hearth.app.tui.quantizing import Quantizing

        return Quantizing(self, self.services)

    def on_mount(self) -> None:
        """Go on with the downloads that were left; say which keys clash."""
        self.services.downloads.on_complete = lambda item, path: self.quantizing.follow_up(
            item, path
        )
        self._downloading = self.run_worker(
            self._download(), group="downloads", exit_on_error=False
        )
        self.tell_key_clashes()

    def on_ready(self) -> None:
        """Look for garbage from the first paint on, not before."""
        self.call_after_refresh(self._collect)
        self.services.index.refresh()

    def _collect(self) -> None:
        """What is there by the first paint stays: no later collection need look through it, which
        would be felt while somebody types.
        """
        gc.collect()
        gc.freeze()
        gc.enable()

    async def _download(self) -> None:
        try:
            await self.services.downloads.run()
        except QueueHeld:
            pass  # Another Hearth looks after them, and says so where they are shown.
        except HearthError as error:
            self.notify(safe_text(f"{error.message} {error.hint}"), severity="error", markup=False)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """What the palette offers everywhere."""
        yield from super().get_system_commands(screen)
        for name in SCREENS:
            yield SystemCommand(
                f"Go to {name}", f"Show the screen {name}", partial(self.action_go, name)
            )
        yield SystemCommand(
            "Jump", "Put a letter on everything that can have the focus", self.action_jump
        )

    def search_themes(self) -> None:
        """Choose a theme in the palette; it is kept."""
        from hearth.app.tui.themes import KeptThemes

        self.push_screen(CommandPalette([KeptThemes], placeholder="Search for themes…"))

    def tell_key_clashes(self) -> None:
        """Say which keys of the settings are those of two bindings of one place."""
        if self.services.settings.keymap:
            from hearth.app.tui.key_clashes import key_clashes

            for clash in key_clashes(self.services.settings.keymap):
                self.notify(safe_text(clash.text), severity="warning", markup=False)

    def action_go(self, name: str) -> None:
        """Show another screen."""
        self.switch_mode(name)

    def on_top_bar_wanted(self, message: TopBar.Wanted) -> None:
        self.switch_mode(message.name)

    def action_help(self) -> None:
        """Show the keys of this screen."""
        from hearth.app.tui.screens.help import HelpScreen

        self.push_screen(HelpScreen())

    def action_jump(self) -> None:
        """Show a letter on everything that can have the focus."""
        from hearth.app.tui.screens.jump import JumpScreen

        self.push_screen(JumpScreen())

    def _handle_exception(self, error: Exception) -> None:
        # Textual 8.2 takes a screen's parts away before the screen has done with its messages, or
        # even was mounted; what it then misses is no failure. Chats were kept before.
        missed = error.error if isinstance(error, WorkerFailed) else error
        is_leaving = self._exit or not self.is_running
        if not (is_leaving and isinstance(missed, NoMatches | MountError)):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual's own would print the traceback with the values of variables: pages that quote
        # chats, and texts of others as they are. Whoever runs the app raises the error again.
        error = self._exception
        self.failure = error.error if isinstance(error, WorkerFailed) else error
        self._close_messages_no_wait()

    async def action_leave(self) -> None:
        """End the answers and downloads under way, keep what came, and leave."""
        await self.sessions.close()
        self._downloading.cancel()
        with suppress(WorkerCancelled, WorkerFailed):
            await self._downloading.wait()
        self.exit(0)
