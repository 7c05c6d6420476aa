"""The bars of every screen: on top the screens with their keys, and what is running; on the last
line the keys of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Static

from hearth.app.terminal import safe_text

SCREENS = ("chat", "library", "quantize", "engine", "endpoint", "settings", "doctor")
_HELP = "help"
_QUIT = "leave"
_BRAND = " hearth "
_MOST_CELLS = 32
"""That activities may have while the tabs are spaced."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A download or another long job.

    Attributes:
        name: what is downloaded or made, such as "Qwen3-4B:Q4_K_M".
        share: of it that is done, from 0 to 1; None: not known.
        mark: the character in front.
    """

    name: str
    share: float | None = None
    mark: str = "▸"

    def within(self, cells: int) -> str:
        """It in at most `cells` cells, of which the percentage needs five."""
        done = "" if self.share is None else f"{min(self.share, 1):.0%}"
        name = safe_text(self.name)
        room = cells - len(f"{self.mark} {done} ")
        if len(name) > room:
            name = f"{name[: room - 1]}…" if room > 4 else ""
        return " ".join(filter(None, (self.mark, name, done)))[: max(cells, 0)]


def tabs(keys: Sequence[str], current: str, width: int, wanted: int) -> tuple[str, list[str]]:
    """(the program's name or nothing, a label for each screen): the widest form that leaves
    `wanted` of `width` cells, else the shortest, which names only the current screen.
    """
    pairs = list(zip(keys, SCREENS, strict=True))
    spaced = [f" {key} {name} " for key, name in pairs]
    close = [f"{key} {name} " for key, name in pairs]
    short = [f"{key} {name} " if name == current else f"{key} " for key, name in pairs]
    for brand, labels in ((_BRAND, spaced), ("", spaced), ("", close)):
        if len(brand) + sum(map(len, labels)) + wanted <= width:
            return brand, labels
    fits = sum(map(len, close)) + min(wanted, 5) <= width
    return "", close if fits else short


class TopBar(Horizontal):
    """The screens, the current one marked; a click goes there. What is running at the right."""

    DEFAULT_CSS = """
    TopBar {
        height: 1;
        background: $panel;
        color: $text-muted;
    }
    TopBar > Static { width: auto; }
    TopBar > .brand { color: $primary; text-style: bold; }
    TopBar > .current { color: $text; text-style: bold reverse; }
    TopBar > .activity { width: 1fr; text-align: right; color: $text-accent; text-wrap: nowrap; }
    """

    @dataclass
    class Wanted(Message):
        """The user wants the screen called `name`."""

        name: str

    def __init__(self, current: str, keys: Sequence[str]) -> None:
        super().__init__()
        self._current = current
        self._keys = keys
        self._activities: Sequence[Activity] = ()
        self._shown: tuple[str, ...] = ()

    def compose(self) -> ComposeResult:
        # With the texts of this width, so that the first layout is the last one.
        self._shown = self._texts(self.app.size.width)
        brand, *labels, activity = self._shown
        yield Static(brand, classes="brand", markup=False)
        for name, label in zip(SCREENS, labels, strict=True):
            mark = "current" if name == self._current else ""
            yield Static(label, id=f"to-{name}", classes=mark, markup=False)
        yield Static(activity, classes="activity", markup=False)

    def show(self, keys: Sequence[str], activities: Sequence[Activity]) -> None:
        """Show the keys of the screens, and what is running."""
        self._keys, self._activities = keys, activities
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        texts, widgets = self._texts(self.app.size.width), list(self.query(Static))
        if len(widgets) < len(texts):
            return  # They are being mounted; their size then is new.
        for widget, old, new in zip(widgets, self._shown, texts, strict=True):
            if old != new:
                widget.update(new)
        self._shown = texts

    def _texts(self, width: int) -> tuple[str, ...]:
        """The program's name, the label of each screen, and what is running."""
        whole = "  ".join(one.within(_MOST_CELLS) for one in self._activities)
        wanted = min(len(whole), _MOST_CELLS)
        brand, labels = tabs(self._keys, self._current, width, wanted)
        room = width - len(brand) - sum(map(len, labels))
        if len(whole) > room and self._activities:
            count = len(self._activities)
            more = f" +{count - 1}" if count > 1 and room > 12 else ""
            whole = self._activities[0].within(room - len(more)) + more
        return brand, *labels, whole

    def on_click(self, event: object) -> None:
        widget = getattr(event, "widget", None)
        name = (getattr(widget, "id", None) or "").removeprefix("to-")
        if name in SCREENS and name != self._current:
            self.post_message(self.Wanted(name))


class KeyBar(Footer):
    """The keys of the focused widget, then those of the screen and the app. Where not all fit,
    the one to quit is left out first, then the others from the last one on, but never help.
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self._keys: list[tuple[Binding, bool, str]] = []
        """What was last to be shown: each binding, whether it is enabled, and its tooltip."""

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show the keys if they changed; Textual calls this whenever the focus moves."""
        keys = [
            (binding, enabled, tooltip)
            for _, binding, enabled, tooltip in screen.active_bindings.values()
            if binding.show
        ]
        if keys == self._keys:
            return
        if screen.app.app_focus:  # Without it, nothing is shown again.
            self._keys = keys
        super().bindings_changed(screen)

    async def recompose(self) -> None:
        """Show the keys that mean something now."""
        await super().recompose()
        self._leave_out()

    def on_resize(self) -> None:
        """There is room for more keys now, or for fewer."""
        self._leave_out()

    def _leave_out(self) -> None:
        keys = list(self.children)
        first = [key for key in keys if _action(key) == _QUIT]
        others = [key for key in keys if _action(key) not in (_QUIT, _HELP)]
        left_out: set[Widget] = set()
        for key in (*first, *reversed(others)):
            if sum(_cells(shown) for shown in keys if shown not in left_out) <= self.size.width + 1:
                break
            left_out.add(key)
        for key in keys:
            key.display = key not in left_out


def _action(key: Widget) -> str:
    """What the key does, by the name of the app's or the screen's action."""
    return str(getattr(key, "action", ""))


def _cells(key: Widget) -> int:
    """The width of a key with the space after it."""
    return len(str(key.render())) + 1
