"""The terminal app: wires services, screens and keys together."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from textual import events, work
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.theme import ThemeProvider
from textual.widget import MountError, Widget
from textual.worker import WorkerCancelled, WorkerFailed

from hearth.app.session.sessions import Sessions
from hearth.app.settings_file import write_setting
from hearth.app.settings_keys import ALL
from hearth.app.terminal import safe_text
from hearth.app.tui.looks import apply_looks, key_clashes
from hearth.app.tui.services import Services
from hearth.app.tui.widgets.bars import SCREENS, Activity, TopBar
from hearth.backends.errors import HearthError, SettingsError

if TYPE_CHECKING:
    from hearth.app.library.downloads import DownloadItem
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

_LOOK_S: Final = 1.0
"""Seconds between updates of the running jobs in the top bar."""
_F_KEY: Final = re.compile(r"f\d+")


def _late(module: str, name: str) -> Callable[..., Screen[Any]]:
    """Make a factory of the screen class `name`, whose module is imported on the first call."""

    def make(*args: Any, **options: Any) -> Screen[Any]:
        imported = importlib.import_module(f"hearth.app.tui.screens.{module}")
        screen: Screen[Any] = getattr(imported, name)(*args, **options)
        return screen

    return make


_help, _jump = _late("help", "HelpScreen"), _late("jump", "JumpScreen")
_question = _late("dialogs", "Question")


class HearthApp(App[int]):
    """Hearth in a terminal.

    Args:
        services: the services that the app uses.
        thread: id of the chat to open; empty for a new one.
        model: model of new chats; empty for the default of the settings.

    Attributes:
        sessions: the open chats, shown or not.
    """

    TITLE = "hearth"
    CSS_PATH = "hearth.tcss"
    PAUSE_GC_ON_SCROLL = True
    MODES: ClassVar = {name: _late(*place) for name, place in _CLASSES.items()}
    DEFAULT_MODE = "chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        # Priority is needed because text areas bind F6 and F7 themselves, and dialogs hide the
        # app's keys.
        Binding("f1", "help", "help", id="app.help", priority=True),
        *(
            Binding(f"f{at}", f"go('{name}')", name, id=f"app.{name}", show=False, priority=True)
            for at, name in enumerate(SCREENS, 2)
        ),
        Binding("ctrl+o", "jump", "jump", id="app.jump", show=False, priority=True),
        Binding("ctrl+q", "leave", "quit", id="app.quit", priority=True),
        Binding("ctrl+z", "suspend", "suspend", id="app.suspend", show=False, priority=True),
    ]

    def __init__(self, services: Services, thread: str = "", model: str = "") -> None:
        super().__init__()
        self.services = services
        self.sessions = Sessions(services)
        self.first_thread = thread
        self.first_model = model
        self.wanted_thread = ""
        """Id of the chat that another screen asked to show; empty if none."""
        self.wanted_source: Path | None = None
        """The model that another screen asked to quantize."""
        self.activities: dict[str, Activity] = {}
        """Long jobs other than downloads and quantizations, by name; the top bar shows them."""
        self._downloading_ids: set[str] = set()
        """Ids of the downloads that were running at the last update."""
        self.drawn = asyncio.Event()
        """Set after the first paint; work that the first paint does not need waits for it."""
        self.error_lines: set[Widget] = set()
        """The widgets, on all screens, that show an error."""
        self.failure: BaseException | None = None
        """The error that ended the app; None if the user left."""
        apply_looks(self, services.settings)

    @cached_property
    def presets(self) -> Presets:
        """The presets that a chat can start from."""
        from hearth.app.presets import Presets

        return Presets(self.services.paths.presets_file)

    @cached_property
    def quantizing(self) -> Quantizing:
        """The quantizations, shared by all screens."""
        from hearth.app.tui.quantizing import Quantizing

        return Quantizing(self, self.services)

    def on_mount(self) -> None:
        """Continue the downloads; report keys that clash."""
        self.services.downloads.on_complete = lambda item, path: self.quantizing.follow_up(
            item, path
        )
        self._downloading = self.run_worker(
            self._download(), group="downloads", exit_on_error=False
        )
        self.set_interval(_LOOK_S, self.show_activity)
        # Textual 8.2 does not redraw what a shell covered while the app was suspended.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self.notify_key_clashes()

    async def on_event(self, event: events.Event) -> None:
        """Handle events as Textual does; a key press first hides the current screen's errors."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            for line in [one for one in self.error_lines if one.screen is self.screen]:
                line.display = False
                self.error_lines.remove(line)
        await super().on_event(event)

    def tab_keys(self) -> list[str]:
        """The key of each screen, as displayed."""
        keymap = self.services.settings.keymap
        keys = [keymap.get(f"app.{name}", f"f{at}") for at, name in enumerate(SCREENS, 2)]
        first = [key.partition(",")[0] for key in keys]
        return [
            key.upper() if _F_KEY.fullmatch(key) else self.get_key_display(Binding(key, ""))
            for key in first
        ]

    def show_activity(self) -> None:
        """Show the running downloads and jobs in the top bar."""
        # The cached property `quantizing` exists only after a screen has used it.
        jobs = getattr(self.__dict__.get("quantizing"), "items", ())
        quantizing = (
            Activity(job.detail if job.state == "measuring" else job.target.name, job.share)
            for job in jobs
            if job.is_active
        )
        running = [*self._downloads(), *quantizing, *self.activities.values()]
        for screen in self.screen_stack:
            for bar in screen.query(TopBar):
                bar.show(self.tab_keys(), running)

    def _downloads(self) -> list[Activity]:
        with suppress(HearthError):  # The library shows why the queue cannot be read.
            items = self.services.downloads.items()
            running = [item for item in items if item.state == "running"]
            before, self._downloading_ids = self._downloading_ids, {item.id for item in running}
            for item in items:
                if item.id in before - self._downloading_ids:
                    self._report_end(item)
            return [
                Activity(
                    item.name.rpartition("/")[2],
                    item.done_bytes / item.total_bytes if item.total_bytes else None,
                    "↓",
                )
                for item in running
            ]
        return []

    def _report_end(self, item: DownloadItem) -> None:
        """Show a notice that a download ended or failed, unless the library screen is shown."""
        if getattr(self.screen_stack[0], "NAME", "") == "library":
            return
        if item.state == "done":
            self.notify(safe_text(f"{item.name} is downloaded."), markup=False)
        elif item.error is not None:
            text = f"{item.name}: {item.error.message} {item.error.hint}".strip()
            self.notify(safe_text(text), severity="error", markup=False)

    def on_ready(self) -> None:
        """Start the work deferred until the first paint: garbage collection, facts and lists."""
        self.drawn.set()
        self.call_after_refresh(self._collect)
        self.services.index.refresh()

    def _collect(self) -> None:
        """Collect garbage once, and exclude the remaining objects from later collections.

        Scanning the objects of the first paint again would delay typing.
        """
        gc.collect()
        gc.freeze()
        gc.enable()

    async def _download(self) -> None:
        def notify(error: HearthError) -> None:
            self.notify(safe_text(f"{error.message} {error.hint}"), severity="error", markup=False)

        try:
            await self.services.downloads.run(notify)
        except HearthError as error:
            notify(error)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The commands that the palette offers on all screens."""
        yield from super().get_system_commands(screen)
        for name in SCREENS:
            yield SystemCommand(
                f"Go to {name}", f"Show the screen {name}", partial(self.action_go, name)
            )
        yield SystemCommand("Jump", "Show a letter on each focusable widget", self.action_jump)

    def search_themes(self) -> None:
        """Choose a theme in the palette and save it."""
        self.push_screen(CommandPalette([KeptThemes], placeholder="Search for themes…"))

    def notify_key_clashes(self) -> None:
        """Report keys that the settings give to two bindings of one screen or widget."""
        for clash in key_clashes(self.services.settings.keymap):
            self.notify(safe_text(clash.text), severity="warning", markup=False)

    def action_go(self, name: str) -> None:
        """Show another screen; help, jump mode and the palette close, other dialogs stay open."""
        self._close_overlay()
        self.switch_mode(name)

    def on_top_bar_wanted(self, message: TopBar.Wanted) -> None:
        self.action_go(message.name)

    def _end_batch(self) -> None:
        super()._end_batch()
        # Textual 8.2 wakes only the app, so a screen shown during a batch would not be drawn.
        if not self._batch_count and self._screen_stack:
            self.screen.check_idle()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable suspending in a text field, where the same key undoes."""
        if action == "suspend":
            from textual.widgets import Input, TextArea

            return not isinstance(self.focused, Input | TextArea)
        return super().check_action(action, parameters)

    def action_suspend(self) -> None:
        """Stop the process, as ctrl+z does in a shell, until it is continued with `fg`."""
        self.action_suspend_process()

    def action_help(self) -> None:
        """Show the keys of this screen, or close the help."""
        if self._close_overlay() != "HelpScreen":
            self.push_screen(_help())

    def action_jump(self) -> None:
        """Show a letter on each focusable widget, or close jump mode."""
        if self._close_overlay() != "JumpScreen":
            self.push_screen(_jump())

    def _close_overlay(self) -> str:
        """Close help, jump mode or the palette; return the class name, empty if none is open."""
        name = type(self.screen).__name__
        if name not in ("HelpScreen", "JumpScreen", "CommandPalette"):
            return ""
        self.screen.dismiss()
        return name

    def _handle_exception(self, error: Exception) -> None:
        # Textual 8.2 removes a screen's widgets before the screen has handled its messages, or has
        # even been mounted. The lookups that then fail are not errors. Chats were saved before.
        missed = error.error if isinstance(error, WorkerFailed) else error
        is_leaving = self._exit or not self.is_running
        if not (is_leaving and isinstance(missed, NoMatches | MountError)):
            super()._handle_exception(error)

    def _fatal_error(self) -> None:
        # Textual's own version would print the traceback with the values of variables: pages that
        # quote chats, and foreign text unescaped. The caller of the app raises the error again.
        error = self._exception
        self.failure = error.error if isinstance(error, WorkerFailed) else error
        self._close_messages_no_wait()

    async def action_leave(self) -> None:
        """Quit the app; ask first while answers are running."""
        if self.sessions.busy:
            if not self.screen.has_class("-leaving"):
                self._ask_to_leave()
        else:
            await self.leave()

    @work(group="leave", exclusive=True)
    async def _ask_to_leave(self) -> None:
        count = len(self.sessions.busy)
        running = "An answer is" if count == 1 else f"{count} answers are"
        question = _question(
            f"{running} still running. Quit?",
            "Text that was generated so far is kept.",
            (("Cancel", "stay"), ("Wait, then quit", "wait"), ("Stop and quit", "stop")),
        )
        question.add_class("-leaving")
        self.activities.pop("leave", None)
        answer = await self.push_screen_wait(question)
        if answer == "wait":
            self.activities["leave"] = Activity("quits after the answers")
            self.show_activity()
            while self.sessions.busy:
                await self.sessions.busy[0].wait()
        if answer != "stay":
            await self.leave()

    async def leave(self) -> None:
        """Stop answers and downloads, keep what they have received, and exit."""
        await self.sessions.close()
        self._downloading.cancel()
        with suppress(WorkerCancelled, WorkerFailed):
            await self._downloading.wait()
        self.exit(0)

    def keep_theme(self, name: str) -> None:
        """Save the theme `name` in the settings file and apply it.

        A flag or environment variable that sets another theme still takes precedence, which is
        reported.
        """
        services = self.services
        try:
            write_setting(services.paths.settings_file, ALL["theme"], name)
            services.use_settings()
            apply_looks(self, services.settings)
        except SettingsError as error:
            self.notify(safe_text(f"{error.message} {error.hint}"), severity="error", markup=False)
            return
        holding = services.settings.all()["theme"]
        if holding.value != name:
            text = f"Saved, but {holding.origin} overrides it: {holding.value}."
            self.notify(safe_text(text), severity="warning", markup=False)


class KeptThemes(ThemeProvider):
    """Lists every theme; choosing one saves it in the settings file."""

    @property
    def commands(self) -> list[tuple[str, Callable[[], None]]]:
        """The names that the palette lists, and the action of each."""
        app = cast("HearthApp", self.app)
        return [(name, partial(app.keep_theme, name)) for name, _ in super().commands]
