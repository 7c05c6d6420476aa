"""Tables whose rows come one by one: they share their columns' widths."""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

from textual.content import Content
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions

from hearth.app.tui.widgets.lines import EMPTY, Line, ground, row_starts, segments_of

BETWEEN: Final = " │ "
MIN_COLUMN: Final = 4
"""Cells; where a table has less for each column, its rows are shown as lists of their cells."""


class Table:
    """What the rows of a table have in common.

    Attributes:
        names: the cells of its head.
        sides: where the text of each column stands: "left", "center" or "right".
        widest: the width of each column's widest cell, in cells.
    """

    def __init__(self) -> None:
        self.names: list[Content] = []
        self.sides: list[str] = []
        self.widest: list[int] = []
        self._found: tuple[int, tuple[int, ...], list[int]] = (-1, (), [])

    def add(self, cells: list[Content]) -> None:
        """Take a row's widths into account."""
        widths = [cell.cell_length for cell in cells]
        self.widest = [max(pair) for pair in zip_longest(self.widest, widths, fillvalue=0)]

    def columns(self, width: int) -> list[int]:
        """The width of each column where the table has `width` cells; empty: too narrow."""
        known = tuple(self.widest)
        if self._found[:2] != (width, known):
            self._found = (width, known, self._columns(width))
        return self._found[2]

    def _columns(self, width: int) -> list[int]:
        room = width - len(BETWEEN) * (len(self.widest) - 1)
        if room < MIN_COLUMN * len(self.widest):
            return []
        if sum(self.widest) <= room:
            return list(self.widest)
        # The narrow columns keep their width, the wide ones share what is left.
        columns = [0] * len(self.widest)
        left = room
        order = sorted(range(len(columns)), key=self.widest.__getitem__)
        for place, column in enumerate(order):
            share = left // (len(order) - place)
            columns[column] = min(self.widest[column], share)
            left -= columns[column]
        return columns


def _aligned(cell: Content, width: int, side: str) -> Content:
    room = max(width - cell.cell_length, 0)
    left = {"right": room, "center": room // 2}.get(side, 0)
    return cell.pad(left, room - left)


class TableRow(Line):
    """One row; its cells are broken into several rows where their columns are narrow."""

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
        columns = self._table.columns(room)
        rows = self._side_by_side(columns) if columns else self._listed(room)
        space = Content(" " * self._indent)
        return [space + row for row in rows] if self._indent else rows

    def _side_by_side(self, columns: list[int]) -> list[Content]:
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

    def draw(self, width: int, style: Style, options: RenderOptions, y: int) -> list[Strip]:
        chosen = options.selection.get_span(y) if options.selection else None
        key = (width, style, y, chosen, tuple(self._table.widest))
        if self._key != key:
            self._drawn = []
            for row in self._laid(width):
                if chosen is not None and options.selection_style is not None:
                    row = row.stylize(options.selection_style)
                strip = Strip(segments_of(row, style, options, 0, y))
                self._drawn.append(strip.adjust_cell_length(width, ground(style)))
            self._key = key
        return self._drawn
