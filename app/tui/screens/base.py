"""Base classes of screens.

All screens read their styles once; full screens also have a top bar, a key bar and an error line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.events import ScreenResume
from textual.screen import ModalScreen, Screen
from textual.timer import Timer
from textual.widgets import Static

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.bars import KeyBar, TopBar
from hearth.backends.errors import HearthError

if TYPE_CHECKING:
    from hearth.app.session.sessions import Sessions
    from hearth.app.tui.app import HearthApp
    from hearth.app.tui.services import Services


Result = TypeVar("Result")


class StyledOnce(Screen[Result]):
    """A screen whose widgets read their styles only when they are mounted.

    Textual would read them twice more while the screen is first shown.
    """

    _was_shown = False

    async def _compose(self) -> None:
        # Textual adds these classes after all widgets have their styles, which are then read again.
        classes = self._get_breakpoint_classes(
            self.app.size.width, self.HORIZONTAL_BREAKPOINTS or []
        )
        self.add_class(*classes, update=False)
        await super()._compose()

    def _on_screen_resume(self, event: ScreenResume) -> None:
        # Textual reads all styles whenever a screen is shown; the first time, they were just read.
        if not self._was_shown:
            event.refresh_styles = False
        self._was_shown = True


class Dialog(ModalScreen[Result], StyledOnce[Result]):
    """A screen over another one, which ends with an answer.

    Subclasses implement `body`, which is drawn in a frame below `title`, if that is set. Subclasses
    without a frame implement `compose`.
    """

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > .dialog { background: $surface; border: round $primary; }
    Dialog .title { text-style: bold; }
    Dialog .wrong { color: $text-error; height: auto; }
    """
    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [  # type: ignore[misc]
        (0, "-narrow"),
        (80, "-wide"),
    ]
    HAS_KEYS: ClassVar[bool] = True
    """Whether the keys are shown on the last line."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            if self.title is not None:
                yield Static(safe_text(self.title), classes="title", markup=False)
            yield from self.body()
        if self.HAS_KEYS:
            yield KeyBar()

    def body(self) -> ComposeResult:
        """The widgets in the frame."""
        raise NotImplementedError

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close the dialog as Textual does, but only while it is on top.

        Textual 8.2 removes whichever screen is on top, even for a second key that the dialog
        handles after the first one has closed it.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def show_wrong(self, text: str) -> None:
        """Show an error, foreign text made safe, in the widget of class `wrong`."""
        self.query_one(".wrong", Static).update(safe_text(text))


class ErrorLine(Static):
    """The last error of this screen, shown until the next key press (`HearthApp.on_event`)."""

    DEFAULT_CSS = """
    ErrorLine {
        display: none; height: auto; max-height: 5; padding: 0 1;
        background: $error-muted; color: $text-error;
    }
    """


class HearthScreen(StyledOnce[None]):
    """A full screen of the app.

    Subclasses set `NAME`, their name in the bar, and implement `body`.
    """

    NAME: ClassVar[str] = ""
    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [  # type: ignore[misc]
        (0, "-narrow"),
        (80, "-medium"),
        (120, "-wide"),
        (200, "-very-wide"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._timers_while_shown: list[Timer] = []
        # Textual 8.2 assumes that every new screen missed a change of theme, and reads all of its
        # styles twice more.
        self._css_update_count = self.app._css_update_count

    @property
    def hearth(self) -> HearthApp:
        """The app."""
        return cast("HearthApp", self.app)

    @property
    def services(self) -> Services:
        return self.hearth.services

    @property
    def sessions(self) -> Sessions:
        return self.hearth.sessions

    def compose(self) -> ComposeResult:
        yield TopBar(self.NAME, self.hearth.tab_keys())
        yield from self.body()
        yield ErrorLine(markup=False)
        yield KeyBar()

    def while_shown(self, period_s: float, look: Callable[[], object]) -> Timer:
        """Call `look` every `period_s` seconds, but not while another screen is shown."""
        timer = self.set_interval(period_s, look)
        self._timers_while_shown.append(timer)
        return timer

    def _on_screen_resume(self, event: ScreenResume) -> None:
        # Keys may have changed and jobs may have ended meanwhile. Textual calls the handlers of all
        # base classes; this one is first called after `on_mount`.
        for timer in self._timers_while_shown:
            timer.resume()
        self.hearth.show_activity()

    def _on_screen_suspend(self) -> None:
        for timer in self._timers_while_shown:
            timer.pause()

    def _compositor_refresh(self) -> None:
        # Textual 8.2 draws while the app starts or mounts in a batch, and discards the result.
        if not self.app._batch_count:
            super()._compositor_refresh()

    def body(self) -> ComposeResult:
        """The widgets between the bar and the keys."""
        raise NotImplementedError

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """Catch and show a `HearthError` raised in this context."""
        try:
            yield
        except HearthError as error:
            self.show_error(error)

    async def succeeds(self, work: Awaitable[object]) -> bool:
        """Await `work`, and show its error; True if it succeeded."""
        try:
            await work
        except HearthError as error:
            self.show_error(error)
            return False
        return True

    def show_error(self, error: HearthError) -> None:
        """Show what went wrong and what to do next."""
        self.show_notice(str(error), severity="error")

    def show_notice(self, text: str, *, severity: str = "information") -> None:
        """Show a notice, with foreign text made safe; an error stays until the next key press."""
        if severity == "error":
            line = self.query_one(ErrorLine)
            line.update(safe_text(text))
            line.display = True
            self.hearth.error_lines.add(line)
            if self.app.screen_stack[0] is self:
                return
        self.app.notify(safe_text(text), severity=severity, markup=False)  # type: ignore[arg-type]
