"""The bars of every screen: the top bar and the key bar.

The top bar shows the screens with their keys, and what is running. The key bar, on the last line,
shows the keys of the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from textual.binding import Binding
from textual.content import Content
from textual.events import Click, MouseDown, MouseMove
from textual.message import Message
from textual.screen import Screen
from textual.style import Style
from textual.widget import Widget

from hearth.app.terminal import safe_text

SCREENS = ("chat", "library", "quantize", "engine", "endpoint", "settings", "doctor")
_HELP = "help"
_QUIT = "leave"
_BRAND = " hearth "
_MOST_CELLS = 32
"""Most cells of the activities while the tabs are spaced."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A download or another long job.

    Attributes:
        name: what is downloaded or made, such as "Qwen3-4B:Q4_K_M".
        share: the part that is done, from 0 to 1; None if unknown.
        mark: the character in front.
    """

    name: str
    share: float | None = None
    mark: str = "▸"

    def within(self, cells: int) -> str:
        """The activity in at most `cells` cells, of which the percentage needs five."""
        done = "" if self.share is None else f"{min(self.share, 1):.0%}"
        name = safe_text(self.name)
        room = cells - len(f"{self.mark} {done} ")
        if len(name) > room:
            name = f"{name[: room - 1]}…" if room > 4 else ""
        return " ".join(filter(None, (self.mark, name, done)))[: max(cells, 0)]


def tabs(keys: Sequence[str], current: str, width: int, wanted: int) -> tuple[str, list[str]]:
    """The program's name, or an empty string, and a label for each screen.

    They have the widest form that leaves `wanted` of `width` cells. If there is none, all screens
    are named if that leaves five cells, or `wanted` if fewer; else only the current screen is
    named.
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


class TopBar(Widget):
    """Shows the screens, with the current one marked, and what is running at the right.

    A click on a screen goes there. All of it is one widget: one for each tab would cost the first
    paint 10 ms.
    """

    DEFAULT_CSS = """
    TopBar {
        width: 100%;
        height: 1;
        background: $panel;
        color: $text-muted;
        text-wrap: nowrap;
    }
    TopBar > .top-bar--brand { color: $primary; text-style: bold; }
    TopBar > .top-bar--current { color: $text; text-style: bold reverse; }
    TopBar > .top-bar--activity { color: $text-accent; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "top-bar--brand",
        "top-bar--current",
        "top-bar--activity",
    }

    @dataclass
    class Wanted(Message):
        """The user wants the screen called `name`."""

        name: str

    def __init__(self, current: str, keys: list[str]) -> None:
        super().__init__()
        self._current = current
        self._shown: tuple[list[str], list[Activity]] = (keys, [])

    def show(self, keys: list[str], activities: list[Activity]) -> None:
        """Show the keys of the screens, and what is running."""
        if self._shown != (keys, activities):
            self._shown = (keys, activities)
            self.refresh()

    def render(self) -> Content:
        """The program's name, the label of each screen, and what is running."""
        brand, labels, activity = self._texts()
        style = self.get_visual_style
        # Textual 8.2 leaves `reverse` out of visual styles.
        current = style("top-bar--current") + Style(reverse=True)
        tabs_shown = (
            (label, current) if name == self._current else label
            for name, label in zip(SCREENS, labels, strict=True)
        )
        left = Content.assemble((brand, style("top-bar--brand")), *tabs_shown)
        right = Content.styled(activity, style("top-bar--activity"))
        gap = self.size.width - left.cell_length - right.cell_length
        return left.pad_right(max(0, gap)) + right

    def _texts(self) -> tuple[str, list[str], str]:
        keys, activities = self._shown
        width = self.size.width
        whole = "  ".join(one.within(_MOST_CELLS) for one in activities)
        wanted = min(len(whole), _MOST_CELLS)
        brand, labels = tabs(keys, self._current, width, wanted)
        room = width - len(brand) - sum(map(len, labels))
        if len(whole) > room and activities:
            more = f" +{len(activities) - 1}" if len(activities) > 1 and room > 12 else ""
            whole = activities[0].within(room - len(more)) + more
        return brand, labels, whole

    def on_click(self, event: Click) -> None:
        brand, labels, _ = self._texts()
        end = len(brand)
        for name, label in zip(SCREENS, labels, strict=True):
            begin, end = end, end + len(label)
            if begin <= event.x < end and name != self._current:
                self.post_message(self.Wanted(name))


class ShownKey(NamedTuple):
    """One key of the last line."""

    binding: Binding
    is_enabled: bool
    tooltip: str
    label: str

    @property
    def cells(self) -> int:
        """The width, including the spaces before and after the description."""
        return cell_len(self.label) + len(f" {self.binding.description} ")


class KeyBar(Widget):
    """Shows the keys of the focused widget, the screen and the app; a click presses one.

    If not all fit, quit is left out first, then the others from the last one backwards; help never
    is. Textual's `Footer` has a widget for each key and makes all of them again when one changes.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        width: 100%;
        height: 1;
        color: $footer-foreground;
        background: $footer-background;
        text-wrap: nowrap;
    }
    KeyBar > .key-bar--key {
        color: $footer-key-foreground;
        background: $footer-key-background;
        text-style: bold;
    }
    KeyBar > .key-bar--description {
        color: $footer-description-foreground;
        background: $footer-description-background;
    }
    KeyBar > .key-bar--hover { background: $block-hover-background; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "key-bar--key",
        "key-bar--description",
        "key-bar--hover",
    }

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[ShownKey] = []
        self._hovered: ShownKey | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._show)

    def _show(self, screen: Screen[object]) -> None:
        """Show the keys if they changed; Textual calls this whenever the focus moves."""
        keys: dict[str, ShownKey] = {}
        for _, binding, enabled, tooltip in screen.active_bindings.values():
            if binding.show:
                label = self.app.get_key_display(binding)
                keys.setdefault(binding.action, ShownKey(binding, enabled, tooltip, label))
        shown = list(keys.values())
        if shown != self._keys and self.app.app_focus:
            self._keys = shown
            self.refresh()

    def _fitting(self) -> list[ShownKey]:
        keys = list(self._keys)
        first = [key for key in keys if key.binding.action == _QUIT]
        others = [key for key in keys if key.binding.action not in (_QUIT, _HELP)]
        for key in (*first, *reversed(others)):
            if sum(shown.cells for shown in keys) <= self.size.width + 1:
                break
            keys.remove(key)
        return keys

    def render(self) -> Content:
        """The keys that fit."""
        style = self.get_visual_style
        parts: list[str | tuple[str, Style]] = []
        for key in self._fitting():
            classes = ("key-bar--hover",) if key == self._hovered else ()
            dim = Style(dim=not key.is_enabled)
            parts += [
                (key.label, style("key-bar--key", *classes) + dim),
                (f" {key.binding.description}", style("key-bar--description", *classes) + dim),
                " ",
            ]
        return Content.assemble(*parts)

    def _at(self, x: int) -> ShownKey | None:
        end = 0
        for key in self._fitting():
            begin, end = end, end + key.cells
            if begin <= x < end - 1:
                return key
        return None

    def on_mouse_move(self, event: MouseMove) -> None:
        self._hover(self._at(event.x))

    def on_leave(self) -> None:
        self._hover(None)

    def _hover(self, key: ShownKey | None) -> None:
        if key != self._hovered:
            self._hovered = key
            self.tooltip = key.tooltip if key is not None else None
            self.refresh()

    def on_mouse_down(self, event: MouseDown) -> None:
        if (key := self._at(event.x)) is None:
            return
        if key.is_enabled:
            self.app.simulate_key(key.binding.key)
        else:
            self.app.bell()
