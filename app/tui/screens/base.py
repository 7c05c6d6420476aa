"""What screens share: styles that are read once; full screens also the bar on top, the keys below,
and a line for errors.
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
    """A screen whose widgets read their styles when they are mounted, and not twice more while it
    is shown for the first time.
    """

    _was_shown = False

    async def _compose(self) -> None:
        # Textual gives this class when everything has got its styles, and then once more.
        classes = self._get_breakpoint_classes(
            self.app.size.width, self.HORIZONTAL_BREAKPOINTS or []
        )
        self.add_class(*classes, update=False)
        await super()._compose()

    def _on_screen_resume(self, event: ScreenResume) -> None:
        # Textual reads all styles whenever a screen is shown; the first time, they have just been.
        if not self._was_shown:
            event.refresh_styles = False
        self._was_shown = True


class Dialog(ModalScreen[Result], StyledOnce[Result]):
    """A screen over another one, that ends with an answer.

    Subclasses implement `body`, which is drawn in a frame, below `title` if there is one; those
    without a frame, `compose`.
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
    """The keys are shown on the last line."""

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
        """As Textual, but only while this dialog is on top: Textual 8.2 removes whatever is, also
        for a second key, which the dialog handles after the first one has closed it.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()

    def show_wrong(self, text: str) -> None:
        """Show what is wrong, foreign text made safe, in the widget of the class `wrong`."""
        self.query_one(".wrong", Static).update(safe_text(text))


class ErrorLine(Static):
    """What went wrong on this screen, until the next key is pressed (`HearthApp.on_event`)."""

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
        # Textual 8.2 takes every new screen for one that missed a change of theme, and reads all
        # styles twice more for it.
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
        # Keys may have been changed, and jobs may have ended meanwhile. Textual calls the handlers
        # of all base classes, and this one for the first time after `on_mount`.
        for timer in self._timers_while_shown:
            timer.resume()
        self.hearth.show_activity()

    def _on_screen_suspend(self) -> None:
        for timer in self._timers_while_shown:
            timer.pause()

    def _compositor_refresh(self) -> None:
        # Textual 8.2 draws while the app starts, or mounts in a batch, and throws that away.
        if not self.app._batch_count:
            super()._compositor_refresh()

    def body(self) -> ComposeResult:
        """The widgets between the bar and the keys."""
        raise NotImplementedError

    @contextmanager
    def errors_shown(self) -> Iterator[None]:
        """Show the error that ends what is done in this context."""
        try:
            yield
        except HearthError as error:
            self.tell_error(error)

    async def told(self, work: Awaitable[object]) -> bool:
        """Do `work`, and show its error. True if it went well."""
        try:
            await work
        except HearthError as error:
            self.tell_error(error)
            return False
        return True

    def tell_error(self, error: HearthError) -> None:
        """Show what went wrong and what to do next."""
        self.tell(str(error), severity="error")

    def tell(self, text: str, *, severity: str = "information") -> None:
        """Show a notice; an error stays on this screen until the next key. Foreign text is made
        safe.
        """
        if severity == "error":
            line = self.query_one(ErrorLine)
            line.update(safe_text(text))
            line.display = True
            self.hearth.error_lines.add(line)
            if self.app.screen_stack[0] is self:
                return
        self.app.notify(safe_text(text), severity=severity, markup=False)  # type: ignore[arg-type]
