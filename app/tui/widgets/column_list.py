"""Lines in columns under their names, one of which can be chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

Cell = str | Content
_GAP: Final = "  "
_LEAST: Final = 8
"""Cells that the column which takes what is left has at least."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: in the header.
        width: in cells; 0: it takes what the others leave.
        right: its values stand at the right.
        least: it is shown from so many cells of the whole list on.
    """

    name: str
    width: int = 0
    right: bool = False
    least: int = 0

    def set(self, cell: Cell, width: int) -> Content:
        """`cell` in `width` cells."""
        content = cell if isinstance(cell, Content) else Content(cell)
        content = content.truncate(width, ellipsis=True)
        missing = width - content.cell_length
        return content.pad_left(missing) if self.right else content.pad_right(missing)


@dataclass(frozen=True, slots=True)
class Row:
    """One line; a heading if it has no `key`: its first cell then, and nobody can choose it. No two
    lines of a list have the same key.
    """

    key: str
    cells: tuple[Cell, ...]


class ColumnList(Vertical):
    """A title, a header, and lines that come anew as often as `show` is called: the chosen one
    stays chosen, and what is as before is not drawn again.

    Args:
        title: above the header; empty: none.
        empty: what is said where there are no lines.
        header: whether the columns' names are shown.
    """

    DEFAULT_CSS = """
    ColumnList { height: auto; padding: 0 1; }
    ColumnList > .column-list--title { height: 1; color: $text; text-style: bold; }
    ColumnList > .column-list--header { height: 1; color: $text-muted; }
    ColumnList > .column-list--empty { height: auto; color: $text-muted; display: none; }
    ColumnList > OptionList {
        width: 1fr;
        height: auto; max-height: 100%; padding: 0; border: none; background: transparent;
        scrollbar-size-vertical: 1;
    }
    ColumnList > OptionList:focus { border: none; background-tint: transparent; }
    ColumnList > OptionList > .option-list--option { padding: 0; text-wrap: nowrap; }
    ColumnList > OptionList > .option-list--option-disabled {
        color: $text-muted; text-style: bold;
    }
    ColumnList.-empty > .column-list--header, ColumnList.-empty > OptionList { display: none; }
    ColumnList.-empty > .column-list--empty { display: block; }
    """

    def __init__(
        self,
        *columns: Column,
        title: str = "",
        empty: str = "",
        header: bool = True,
        id: str | None = None,  # noqa: A002 - Textual's name
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self._columns = columns
        self._title = title
        self._empty = empty
        self._has_header = header
        self._rows: tuple[Row, ...] = ()
        self._width = 0

    def compose(self) -> ComposeResult:
        if self._title:
            yield Static(self._title, classes="column-list--title", markup=False)
        if self._has_header:
            yield Static("", classes="column-list--header", markup=False)
        yield OptionList(markup=False)
        yield Static(self._empty, classes="column-list--empty", markup=False)

    def on_mount(self) -> None:
        self.set_class(not self._rows, "-empty")

    @property
    def list(self) -> OptionList:
        """The lines."""
        return self.query_one(OptionList)

    @property
    def selected(self) -> str | None:
        """The key of the chosen line."""
        at = self.list.highlighted
        return None if at is None else self.list.get_option_at_index(at).id

    def select(self, key: str) -> None:
        """Choose the line with this key, if there is one."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self.list.highlighted = index

    def title(self, text: str) -> None:
        """Put another title above."""
        self.query_one(".column-list--title", Static).update(text)

    def show(self, rows: Sequence[Row], *, empty: str = "") -> None:
        """Show these lines; their text has come through `safe_text`.

        Args:
            empty: what is shown from now on where there are no lines; "": as before.

        Raises:
            ValueError: two of them have the same key; what is shown stays as it is.
        """
        times = Counter(row.key for row in rows if row.key)
        if twice := [key for key, count in times.items() if count > 1]:
            raise ValueError(f"two lines of a list have the key {twice[0]!r}")
        before, self._rows = self._rows, tuple(rows)
        if not self.is_mounted:
            return
        self.set_class(not rows, "-empty")
        if empty and empty != self._empty:
            self._empty = empty
            self.query_one(".column-list--empty", Static).update(empty)
        if [row.key for row in before] == [row.key for row in rows]:
            for index, (old, new) in enumerate(zip(before, rows, strict=True)):
                if old != new:
                    self.list.replace_option_prompt_at_index(index, self._line(new))
            return
        self._fill()

    def on_resize(self, event: events.Resize) -> None:
        """Lay the columns out anew."""
        width = self.content_size.width - 1  # For the scroll bar.
        if width != self._width:
            self._width = width
            self._fill()

    def _fill(self) -> None:
        options, key = self.list, self.selected
        at = options.highlighted
        options.set_options(
            Option(self._line(row), row.key or None, disabled=not row.key) for row in self._rows
        )
        if self._has_header:
            names = Row("", tuple(column.name for column in self._columns))
            header = self.query_one(".column-list--header", Static)
            header.update(self._columned(names))
        keys = [row.key for row in self._rows]
        if key is not None and key in keys:
            options.highlighted = keys.index(key)
        else:
            usable = [index for index, row in enumerate(self._rows) if row.key]
            options.highlighted = min(usable, key=lambda i: abs(i - (at or 0)), default=None)

    def _line(self, row: Row) -> Content:
        if row.key:
            return self._columned(row)
        first = row.cells[0]
        return first if isinstance(first, Content) else Content(first)

    def _columned(self, row: Row) -> Content:
        shown = [column for column in self._columns if column.least <= self._width]
        fixed = sum(column.width for column in shown) + len(_GAP) * (len(shown) - 1)
        rest = max(_LEAST, self._width - fixed)
        cells = [
            column.set(cell, column.width or rest)
            for column, cell in zip(self._columns, row.cells, strict=True)
            if column in shown
        ]
        return Content(_GAP).join(cells)
