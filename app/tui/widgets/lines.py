"""The content of a `Slab`: lines of text and rows of tables, which are wrapped to a width.

A `Line` is wrapped and drawn once for each width and style, so a slab whose last line grows draws
only that line. The text is never markup, and has passed `safe_text` before. The rows of a table
arrive one by one; they share the widths of their columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.css.styles import RulesMap
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions, Visual

EMPTY: Final = Content("")
MEASURE: Final = 100
"""Cells of the longest rows of text that are easy to read; code and tables use the whole width."""
BETWEEN: Final = " │ "
MIN_COLUMN: Final = 4
"""Least cells of a column; with less, the rows of a table are shown as lists of their cells."""
_WORD = re.compile(r"\s*\S+|\s+$")


INKS: Final = {
    ".em": "italic",
    ".strong": "bold",
    ".struck": "strike",
    ".code": "$text-warning",
    ".link": "underline $text-accent",
    ".title": "bold $text-primary",
    ".heading": "bold",
    ".mark": "$text-primary",
    ".muted": "$foreground 60%",
    ".error": "$text-error",
    ".comment": "italic $foreground 60%",
    ".keyword": "$text-accent",
    ".string": "$text-success",
    ".number": "$text-warning",
    ".name": "$text-primary",
    ".inserted": "$text-success",
    ".deleted": "$text-error",
}
"""The styles of lines, in the theme's colours.

Component classes of a widget would be resolved again for each widget, which costs more than
everything else in mounting it.
"""
ANSI_INKS: Final = INKS | {
    ".muted": "dim",
    ".comment": "dim italic",
    ".code": "bold $text-warning",
}
"""The styles of lines if the terminal's own colours are used."""


def row_starts(text: str, width: int, *, fold: bool = False) -> list[int]:
    """The indices at which the rows of `text` begin when it is wrapped to `width` cells.

    Args:
        text: one line, without tabs.
        width: cells, at least 1.
        fold: break anywhere, as in code; otherwise between words if possible.
    """
    if len(text) * 2 <= width or cell_len(text) <= width:
        return [0]
    starts = [0]
    room = width
    for word in _WORD.finditer(text):
        size = cell_len(word[0])
        if not fold and size <= room:
            room -= size
            continue
        begin = word.start()
        bare = word[0].lstrip()
        if not fold and cell_len(bare) <= width:
            # The white space before a word at the start of a row is not shown.
            begin = word.end() - len(bare)
            if begin > starts[-1]:
                starts.append(begin)
            room = width - cell_len(bare)
            continue
        if begin > starts[-1] and room < width and not fold:
            begin = word.end() - len(bare)
            starts.append(begin)
        rest = text[starts[-1] :] if fold else text[starts[-1] : word.end()]
        chopped = chop_cells(rest, width)
        at = starts[-1]
        for part in chopped[:-1]:
            at += len(part)
            if part:  # a wide character in one cell leaves an empty part before it
                starts.append(at)
        room = width - cell_len(chopped[-1])
        if fold:
            break
    return starts


def ground(style: Style) -> RichStyle:
    """The style of a row where it has no text."""
    rich_style: RichStyle = Style(background=style.background).rich_style
    return rich_style


def segments_of(
    content: Content, style: Style, options: RenderOptions, x: int, y: int
) -> list[Segment]:
    """The segments of one row, marked with their position in the slab for text selection."""
    segments = []
    for text, part_style in content.render(style, end="", parse_style=options.get_style):
        if text:
            segments.append(Segment(text, (style + part_style).rich_style_with_offset(x, y)))
            x += len(text)
    return segments


class Line:
    """One line of text, wrapped into rows at the width at which it is shown.

    Args:
        content: the text, without newlines and tabs.
        head: precedes its first row: bullets, bars, spaces.
        rest: precedes its other rows; as wide as `head`.
        fold: break anywhere, as in code.
        rule: repeat the content over the whole width.
    """

    __slots__ = ("_drawn", "_key", "_starts", "_width", "content", "fold", "head", "rest", "rule")

    def __init__(
        self,
        content: Content = EMPTY,
        head: Content = EMPTY,
        rest: Content | None = None,
        *,
        fold: bool = False,
        rule: bool = False,
    ) -> None:
        self.content = content
        self.head = head
        self.rest = head if rest is None else rest
        self.fold = fold
        self.rule = rule
        self._width = -1
        self._starts: list[int] = [0]
        self._key: tuple[object, ...] = ()
        self._drawn: list[Strip] = []

    @property
    def plain(self) -> str:
        """The text of the line with its head."""
        return self.head.plain + self.content.plain

    def shifted(self, columns: int) -> Line:
        """The line, `columns` further to the right."""
        if not columns:
            return self
        space = Content(" " * columns)
        return Line(
            self.content, space + self.head, space + self.rest, fold=self.fold, rule=self.rule
        )

    def height(self, width: int) -> int:
        """Number of rows at `width`."""
        return len(self._broken(self._measure(width)))

    def _measure(self, width: int) -> int:
        return width if self.fold else min(width, MEASURE)

    def _broken(self, width: int) -> list[int]:
        if self._width != width:
            room = max(width - self.head.cell_length, 1)
            self._starts = (
                [0] if self.rule else row_starts(self.content.plain, room, fold=self.fold)
            )
            self._width = width
        return self._starts

    def draw(self, width: int, style: Style, options: RenderOptions, y: int) -> list[Strip]:
        """The rows; `y` is the number of the line in its slab, for text selection."""
        chosen = options.selection.get_span(y) if options.selection else None
        key = (width, style, y, chosen)
        if self._key != key:
            self._drawn = self._draw(width, style, options, y, chosen)
            self._key = key
        return self._drawn

    def _draw(
        self,
        width: int,
        style: Style,
        options: RenderOptions,
        y: int,
        chosen: tuple[int, int] | None,
    ) -> list[Strip]:
        measure = self._measure(width)
        starts = self._broken(measure)
        content = self.content
        if self.rule:
            room = max(measure - self.head.cell_length, 0)
            content = Content.styled(content.plain * room, ".muted")
        if chosen is not None and options.selection_style is not None:
            start, end = chosen
            content = content.stylize(
                options.selection_style, start, len(content) if end == -1 else end
            )
        parts = content.divide(starts[1:]) if len(starts) > 1 else [content]
        strips = []
        for number, (x, part) in enumerate(zip(starts, parts, strict=True)):
            before = self.rest if number else self.head
            segments = [
                Segment(text, (style + part_style).rich_style)
                for text, part_style in before.render(style, end="", parse_style=options.get_style)
                if text
            ]
            # If a row was broken between words, the spaces there are not shown.
            shown = part if number == len(parts) - 1 else part.rstrip()
            strip = Strip(segments + segments_of(shown, style, options, x, y))
            strips.append(strip.adjust_cell_length(width, ground(style)))
        return strips

    def forget(self) -> None:
        """Draw again next time, because the theme or the columns of the table have changed."""
        self._key = ()


class Table:
    """Data that the rows of a table share.

    Args:
        sides: alignment of the text of each column: "left", "center" or "right".

    Attributes:
        names: the cells of the header row.
        widest: width of the widest cell of each column, in cells.
    """

    def __init__(self, sides: Sequence[str] = ()) -> None:
        self.names: list[Content] = []
        self.sides = sides
        self.widest: tuple[int, ...] = ()

    def add(self, cells: list[Content]) -> None:
        """Include the widths of a row in `widest`."""
        widths = [cell.cell_length for cell in cells]
        self.widest = tuple(map(max, zip_longest(self.widest, widths, fillvalue=0)))


@functools.lru_cache(maxsize=64)
def _column_widths(widest: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The width of each column of a table in `width` cells; empty if that is too narrow.

    `widest` has the width of the widest cell of each column.
    """
    room = width - len(BETWEEN) * (len(widest) - 1)
    if room < MIN_COLUMN * len(widest):
        return ()
    if sum(widest) <= room:
        return widest
    # Narrow columns keep their width; wide ones share what is left.
    columns = [0] * len(widest)
    left = room
    order = sorted(range(len(columns)), key=widest.__getitem__)
    for place, column in enumerate(order):
        share = left // (len(order) - place)
        columns[column] = min(widest[column], share)
        left -= columns[column]
    return tuple(columns)


def _aligned(cell: Content, width: int, side: str) -> Content:
    room = max(width - cell.cell_length, 0)
    left = {"right": room, "center": room // 2}.get(side, 0)
    return cell.pad(left, room - left)


class TableRow(Line):
    """One row of a table; its cells are wrapped if their columns are narrow."""

    __slots__ = ("_cells", "_indent", "_is_head", "_table")

    def __init__(
        self, table: Table, cells: list[Content], *, is_head: bool = False, indent: int = 0
    ) -> None:
        if is_head:
            table.names = cells
            cells = [cell.stylize_before(".strong") for cell in cells]
        table.add(cells)
        super().__init__(Content(BETWEEN).join(cells))
        self._table = table
        self._cells = cells
        self._is_head = is_head
        self._indent = indent

    def shifted(self, columns: int) -> TableRow:
        moved = TableRow(self._table, self._cells, indent=self._indent + columns)
        moved._is_head = self._is_head
        return moved

    def height(self, width: int) -> int:
        return len(self._laid(width))

    def _laid(self, width: int) -> list[Content]:
        room = max(width - self._indent, 1)
        columns = _column_widths(self._table.widest, room)
        rows = self._side_by_side(columns) if columns else self._listed(room)
        space = Content(" " * self._indent)
        return [space + row for row in rows] if self._indent else rows

    def _side_by_side(self, columns: Sequence[int]) -> list[Content]:
        broken = []
        for cell, width in zip_longest(self._cells, columns, fillvalue=EMPTY):
            if isinstance(cell, Content) and isinstance(width, int):
                starts = row_starts(cell.plain, max(width, 1))
                parts = cell.divide(starts[1:]) if len(starts) > 1 else [cell]
                broken.append([part.rstrip() for part in parts])
        sides = [*self._table.sides, *["left"] * len(columns)]
        between = Content.styled(BETWEEN, ".muted")
        rows = []
        for parts_of_row in zip_longest(*broken, fillvalue=EMPTY):
            padded = [
                _aligned(part, width, side)
                for part, width, side in zip(parts_of_row, columns, sides, strict=False)
            ]
            rows.append(between.join(padded))
        if self._is_head:
            bar = BETWEEN.replace(" ", "─").replace("│", "┼")
            rows.append(Content.styled(bar.join("─" * width for width in columns), ".muted"))
        return rows

    def _listed(self, width: int) -> list[Content]:
        rows: list[Content] = []
        if self._is_head:
            return [Content.styled("─" * width, ".muted")]
        for name, cell in zip_longest(self._table.names, self._cells, fillvalue=EMPTY):
            text = Content.assemble(name, ": ", cell)
            starts = row_starts(text.plain, width)
            rows += text.divide(starts[1:]) if len(starts) > 1 else [text]
        return [*rows, EMPTY]

    def _draw(
        self,
        width: int,
        style: Style,
        options: RenderOptions,
        y: int,
        chosen: tuple[int, int] | None,
    ) -> list[Strip]:
        strips = []
        for row in self._laid(width):
            if chosen is not None and options.selection_style is not None:
                row = row.stylize(options.selection_style)
            strip = Strip(segments_of(row, style, options, 0, y))
            strips.append(strip.adjust_cell_length(width, ground(style)))
        return strips


class Lines(Visual):
    """The Textual visual of some lines.

    Attributes:
        is_ansi: whether the terminal's own colours are used.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.is_ansi = False

    def render_strips(
        self, width: int, height: int | None, style: Style, options: RenderOptions
    ) -> list[Strip]:
        strips: list[Strip] = []
        inks = ANSI_INKS if self.is_ansi else INKS

        plain = options.get_style

        def get_style(style: str | Style) -> Style:
            return plain(inks.get(style, style) if isinstance(style, str) else style)

        options = replace(options, get_style=get_style)
        if width > 0:
            for y, line in enumerate(self._lines):
                strips += line.draw(width, style, options, y)
        return strips if height is None else strips[:height]

    def get_optimal_width(self, rules: RulesMap, container_width: int) -> int:
        return container_width

    def get_height(self, rules: RulesMap, width: int) -> int:
        return sum(line.height(width) for line in self._lines)


def selected(lines: Sequence[Line], selection: Selection) -> str:
    """The selected text; lines that are selected from their start include their bullets."""
    texts = []
    for y, line in enumerate(lines):
        if (span := selection.get_span(y)) is not None:
            start, end = span
            text = line.content.plain[start : None if end == -1 else end]
            texts.append(text if start else line.head.plain + text)
    return "\n".join(texts)
