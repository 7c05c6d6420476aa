"""One widget for many lines of text: cheap to mount, and only what changed is drawn again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.screen import Screen
from textual.selection import Selection
from textual.strip import Strip
from textual.visual import Visual
from textual.widget import Widget

from hearth.app.tui.widgets.lines import Line, Lines, ground, selected

FULL: Final = 40
"""Most lines of a slab; the next slab takes more, so that none is costly to draw."""


@dataclass
class LinkAsked(Message):
    """A link was clicked; nothing is opened before the user confirms it.

    Attributes:
        url: the address in the text.
    """

    url: str


def prompt_of(screen: Screen[Any]) -> Widget | None:
    """The field of a screen in which the user writes to the model."""
    return next(iter(screen.query("PromptArea, #question")), None)


class TextToPrompt(Widget):
    """A widget that, while focused, passes typed and pasted text to the prompt and focuses that.

    The text is passed before it enters a queue, so that keys that are typed fast keep their order.
    """

    def _forward_event(self, event: events.Event) -> None:
        is_text = isinstance(event, events.Paste) or (
            isinstance(event, events.Key)
            and event.is_printable
            and event.key not in self.screen.active_bindings
        )
        prompt = prompt_of(self.screen) if is_text else None
        if prompt is None:
            super()._forward_event(event)
        else:
            self.screen.set_focus(prompt)
            prompt._forward_event(event)


class Frame(TextToPrompt):
    """A container whose rows all look alike, with at most borders and padding at its sides.

    One row is drawn and repeated, since Textual would draw each row again whenever the height
    changes.

    A frame that can have the focus gets it by keyboard only. Keys that are bound do not go to the
    prompt.
    """

    FOCUS_ON_CLICK = False

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, 0, crop.width, 1)) * crop.height


class Slab(Widget):
    """Lines of text, of which the last ones may still change.

    It has no borders and no padding: its rows are those of its lines.

    Args:
        lines: the initial lines.
    """

    DEFAULT_CSS = """
    Slab { width: 1fr; height: auto; }
    """

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        super().__init__()
        self.auto_links = False
        self._fixed_lines = list(lines)
        self._open_lines: list[Line] = []
        self._visual_lines = Lines(self._fixed_lines)
        self._measured = (-1, 0)  # a width, and the height at that width
        self._rows: list[Strip] = []  # as they were last drawn

    @property
    def lines(self) -> list[Line]:
        """All lines, including the open ones."""
        return [*self._fixed_lines, *self._open_lines]

    @property
    def room(self) -> int:
        """Number of lines that may be added; zero or negative if it is full."""
        return FULL - len(self._fixed_lines)

    def add(self, lines: Iterable[Line]) -> None:
        """Add lines that will not change; they replace the open ones."""
        self._fixed_lines += lines
        self._changed([])

    def show_open(self, lines: list[Line]) -> None:
        """Show lines at the end that will change."""
        if lines or self._open_lines:
            self._changed(lines)

    def replace(self, lines: Iterable[Line]) -> None:
        """Replace all lines."""
        self._fixed_lines = list(lines)
        self._changed([])

    def remeasured(self) -> None:
        """Draw again because the look of the lines has changed, as by the columns of a table."""
        for line in self.lines:
            line.forget()
        self._changed(self._open_lines)

    def _changed(self, opened: list[Line]) -> None:
        self._open_lines = opened
        self._visual_lines = Lines(self.lines)
        width, before = self._measured
        if self.is_attached:
            # The whole screen is laid out again only if the height changed.
            layout = width < 0 or self._visual_lines.get_height({}, width) != before
            if layout:
                self._measured = (-1, 0)
                self.clear_cached_dimensions()
            self.refresh(layout=layout)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The rows of all lines at a width."""
        if self._measured[0] != width:
            self._measured = (width, self._visual_lines.get_height({}, width))
        return self._measured[1]

    def render(self) -> Lines:
        self._visual_lines.is_ansi = self.app.native_ansi_color
        return self._visual_lines

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows, each the same `Strip` as long as its line does not change.

        Textual caches what it computes for a strip; its own version would draw all rows again when
        one is added.
        """
        if self.opacity != 1.0 or self.styles.tint.a:
            return super().render_lines(crop)
        width = self.size.width
        style = self.visual_style
        if self.is_attached:  # A removed one may be drawn once more, without a screen.
            self._rows = Visual.to_strips(self, self.render(), width, None, style)
        rows = self._rows[crop.y : crop.bottom]
        background = self.background_colors[1]
        for line_filter in self.get_line_filters():
            rows = [row.apply_filter(line_filter, background) for row in rows]
        if len(rows) < crop.height:
            rows += [Strip.blank(width, ground(style))] * (crop.height - len(rows))
        if crop.column_span != (0, width):
            rows = [row.crop(*crop.column_span) for row in rows]
        return rows

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selected(self.lines, selection), "\n"

    def notify_style_update(self) -> None:
        for line in self.lines:
            line.forget()
        super().notify_style_update()

    def on_click(self, event: events.Click) -> None:
        url = event.style.meta.get("url")
        if isinstance(url, str) and url:
            event.stop()
            self.post_message(LinkAsked(url))


class Slabs:
    """Lines in slabs, which are children of a widget; when a slab is full, another one follows.

    It is not a widget itself, since every layer of widgets is drawn even where another covers it.

    Args:
        host: gets the parts as its children; before it is mounted, they are only prepared.

    Attributes:
        parts: the slabs, and the widgets between them, from top to bottom.
        before: the widget before which the parts are mounted; None for the end.
    """

    def __init__(self, host: Widget) -> None:
        self.parts: list[Widget] = []
        self.before: Widget | None = None
        self._host = host

    def mount(self, part: Widget) -> None:
        """Add a part at the end."""
        self.parts.append(part)
        if self._host.is_attached:
            self._host.mount(part, before=self.before)

    def add(self, lines: list[Line]) -> None:
        """Add lines that will not change; they replace the open ones."""
        while lines:
            slab = self._last()
            room = slab.room
            slab.add(lines[:room])
            lines = lines[room:]

    def show_open(self, lines: list[Line]) -> None:
        """Show lines at the end that will change."""
        self._last().show_open(lines)

    def drop_open(self) -> None:
        """Remove the open lines."""
        if self.parts and isinstance(self.parts[-1], Slab):
            self.parts[-1].show_open([])

    def _last(self) -> Slab:
        """The slab that takes the next lines."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, Slab) and last.room > 0:
            return last
        self.drop_open()
        slab = Slab()
        self.mount(slab)
        return slab
