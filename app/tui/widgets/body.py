"""The text of a message as widgets: slabs of prose and tables, and code blocks between them."""

from __future__ import annotations

import asyncio
from typing import Final

from textual.content import Content
from textual.widget import Widget

from hearth.app.tui.widgets.blocks import BlockSplitter, Piece, markdown_parser
from hearth.app.tui.widgets.code_block import CodeBlock
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.prose import Prose, plain_lines, table_cells, table_sides
from hearth.app.tui.widgets.slab import FULL, Slab
from hearth.app.tui.widgets.table import Table, TableRow

SLICE: Final = 4000
"""Characters that are read before the screen gets its turn."""


class Body:
    """Markdown that may still be coming in, as children of a widget.

    `feed` takes text, which must be safe for a terminal; `advance` shows it. Before the widget is
    mounted, both only prepare what it will mount. It is not a widget itself, since every layer of
    widgets is drawn where another covers it.

    Args:
        host: gets the parts as its children.

    Attributes:
        codes: the code of every block that is closed, by its number less one.
        before: what the parts are mounted before, if not at the end.
    """

    def __init__(self, host: Widget) -> None:
        self._host = host
        self.before: Widget | None = None
        self.codes: list[str] = []
        self._splitter = BlockSplitter()
        self._parser = markdown_parser()
        self._prose = Prose(self._parser)
        self._parts: list[Slab | CodeBlock] = []
        self._code: CodeBlock | None = None
        self._table = Table()
        self._tabled: list[Slab] = []  # the slabs with rows of the table that is open

    @property
    def parts(self) -> list[Slab | CodeBlock]:
        """The widgets, from top to bottom."""
        return list(self._parts)

    def feed(self, text: str) -> None:
        """Take more text; cheap."""
        self._splitter.feed(text)

    def plain(self, text: str) -> None:
        """Show text as it is, without reading it as Markdown."""
        lines = plain_lines(text)
        while lines:
            self._slab().add(lines[:FULL])
            lines = lines[FULL:]

    @property
    def pending(self) -> bool:
        """There is text that `advance` has not shown."""
        return self._splitter.pending

    def advance(self, most: int | None = None) -> None:
        """Show what came since the last call, about `most` characters of it."""
        for piece in self._splitter.advance(most):
            self._add(piece)
        self._show_open(self._splitter.open)

    async def complete(self) -> None:
        """Show all that came, in slices that let the screen live; no more will come."""
        while self.pending:
            for piece in self._splitter.advance(SLICE):
                self._add(piece)
            await asyncio.sleep(0)
        self.complete_now()

    def complete_now(self) -> None:
        """`complete` in one go, for text that is short or not yet on the screen."""
        for piece in self._splitter.close():
            self._add(piece)
        self._drop_open()

    def _add(self, piece: Piece) -> None:
        if piece.kind == "code":
            self._add_code(piece)
        elif piece.kind == "table":
            self._add_row(piece)
        else:
            lines = self._prose.lines(piece.text, len(self.codes) + 1)
            self.codes += self._prose.codes
            self._add_lines([line.shifted(piece.indent) for line in lines], piece.gap)

    def _add_lines(self, lines: list[Line], gap: bool) -> None:
        if lines:
            gap = gap and bool(self._parts)
            self._slab().add([Line(), *lines] if gap else lines)

    def _add_code(self, piece: Piece) -> None:
        if self._code is None or piece.first:
            self._drop_open()
            self._code = CodeBlock(piece.info, len(self.codes) + 1, piece.indent)
            self._code.set_class(bool(self._parts), "-gap", update=False)
            self.codes.append("")
            self._mount(self._code)
        self._code.add(piece.text, last=piece.last)
        self.codes[self._code.number - 1] = self._code.code.removesuffix("\n")
        if piece.last:
            self._code = None

    def _add_row(self, piece: Piece) -> None:
        if piece.first:
            self._table, self._tabled = Table(), []
        tokens = self._parser.parse(piece.info + piece.text)
        rows = table_cells(tokens)
        if piece.first:
            self._table.sides = table_sides(tokens)
        before = list(self._table.widest)
        row = TableRow(self._table, rows[0 if piece.first else -1], is_head=piece.first)
        self._add_lines([row.shifted(piece.indent)], piece.gap)
        slab = self._parts[-1]
        if isinstance(slab, Slab) and slab not in self._tabled:
            self._tabled.append(slab)
        if before != self._table.widest:
            for other in self._tabled:
                other.remeasured()

    def _show_open(self, piece: Piece | None) -> None:
        if piece is None:
            self._drop_open()
        elif piece.kind == "code":
            if self._code is not None:
                self._code.show_open(piece.text)
        else:
            lines = [
                line.shifted(piece.indent)
                for line in self._prose.lines(piece.text, len(self.codes) + 1)
            ]
            gap = piece.gap and bool(self._parts)
            self._slab().show_open([Line(Content("")), *lines] if gap else lines)

    def _drop_open(self) -> None:
        if self._code is not None:
            self._code.show_open("")
        elif self._parts and isinstance(self._parts[-1], Slab):
            self._parts[-1].show_open([])

    def _slab(self) -> Slab:
        """The slab that takes the next lines."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, Slab) and not last.is_full:
            return last
        if isinstance(last, Slab):
            last.show_open([])
        slab = Slab()
        self._mount(slab)
        return slab

    def _mount(self, part: Slab | CodeBlock) -> None:
        self._parts.append(part)
        if self._host.is_attached:
            self._host.mount(part, before=self.before)
