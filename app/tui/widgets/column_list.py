"""A list of lines in named columns, with a selection, a filter and sorting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from hearth.app.tui.widgets.fields import SafeInput

Cell = str | Content
_GAP: Final = "  "
_LEAST: Final = 8
"""Least cells of the column that takes the remaining width."""
_NO_MATCH: Final = "No line matches the filter; Escape clears it."


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        name: name in the header.
        width: in cells; 0 takes what the other columns leave.
        right: whether its values are right-aligned.
        least: cells that the whole list needs for the column to be shown.
    """

    name: str
    width: int = 0
    right: bool = False
    least: int = 0

    def set(self, cell: Cell, width: int) -> Content:
        """`cell`, truncated or padded to `width` cells."""
        content = cell if isinstance(cell, Content) else Content(cell)
        content = content.truncate(width, ellipsis=True)
        missing = width - content.cell_length
        return content.pad_left(missing) if self.right else content.pad_right(missing)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list.

    Without a `key` it is a heading, which shows its first cell and cannot be selected. No two lines
    of a list have the same key.

    Attributes:
        order: the values that the line is sorted by, by the name of each order: text from A to Z,
            numbers from the largest.
        below: the key of the line that this one belongs to, and under which every order shows it.
    """

    key: str
    cells: tuple[Cell, ...]
    order: Mapping[str, str | float] = field(default_factory=dict)
    below: str = ""

    @property
    def text(self) -> str:
        """All cells, in lower case."""
        return " ".join(str(cell) for cell in self.cells).lower()


class ColumnList(Vertical):
    """A title, a header, and lines.

    `show` replaces the lines: the selected one stays selected, and unchanged lines are not drawn
    again.

    Args:
        title: above the header; empty for none.
        empty: text shown if there are no lines.
        header: whether the columns' names are shown.
        filters: whether a key opens a field for words that the lines must contain.
    """

    DEFAULT_CSS = """
    ColumnList { height: auto; padding: 0 1; }
    ColumnList > .column-list--title { height: 1; color: $text; text-style: bold; }
    ColumnList > .column-list--header { height: 1; color: $text-muted; }
    ColumnList > .column-list--empty { height: auto; color: $text-muted; display: none; }
    ColumnList > Input, ColumnList > Input:focus { height: 1; border: none; padding: 0; }
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
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", id="list.filter"),
        Binding("s", "sort", "sort", id="list.sort"),
        Binding("escape", "clear_filter", "clear the filter", id="list.clear-filter", show=False),
        Binding("down", "enter_list", "list", id="list.enter", show=False),
    ]

    @dataclass
    class Sorted(Message):
        """The lines are sorted by `order`; empty for the order in which they were given."""

        order: str

    def __init__(
        self,
        *columns: Column,
        title: str = "",
        empty: str = "",
        header: bool = True,
        filters: bool = False,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(id=id)
        self._columns = columns
        self._title = title
        self._empty = empty
        self._has_header = header
        self._filters = filters
        self._wanted: list[str] = []
        self._order = ""
        self._all: tuple[Row, ...] = ()
        self._rows: tuple[Row, ...] = ()
        """The rows that are shown, in order."""
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave keys that would do nothing to the screen."""
        match action:
            case "filter":
                return self._filters
            case "sort":
                return bool(self._orders)
            case "clear_filter":
                return bool(self.query(Input))
        return True

    @property
    def list(self) -> OptionList:
        """The lines."""
        return self.query_one(OptionList)

    @property
    def selected(self) -> str | None:
        """The key of the selected line."""
        at = self.list.highlighted
        return None if at is None else self.list.get_option_at_index(at).id

    def select(self, key: str) -> None:
        """Select the line with this key, if it is shown."""
        for index, row in enumerate(self._rows):
            if row.key == key:
                self.list.highlighted = index

    def title(self, text: str) -> None:
        """Show another title above."""
        self.query_one(".column-list--title", Static).update(text)

    def show(self, rows: Sequence[Row], *, empty: str = "") -> None:
        """Show these lines, whose text must have passed `safe_text`.

        Args:
            empty: text shown from now on if there are no lines; "" keeps the previous one.

        Raises:
            ValueError: two rows have the same key; the list does not change.
        """
        times = Counter(row.key for row in rows if row.key)
        if twice := [key for key, count in times.items() if count > 1]:
            raise ValueError(f"two lines of a list have the key {twice[0]!r}")
        before, self._all = self._orders, tuple(rows)
        if self._orders != before:
            self.refresh_bindings()  # The key for sorting appears or disappears.
        self._empty = empty or self._empty
        self._arrange()

    @property
    def _orders(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for row in self._all for name in row.order))

    def action_sort(self) -> None:
        """Sort by the next order; after the last one, restore the given order."""
        orders = ("", *self._orders)
        at = orders.index(self._order) if self._order in orders else 0
        self._order = orders[(at + 1) % len(orders)]
        self._arrange()
        self._show_header()
        self.list.action_first()
        self.post_message(self.Sorted(self._order))

    async def action_filter(self) -> None:
        """Show a field for words that the lines must contain."""
        if not self.query(Input):
            placeholder = "Filter: words of a line"
            await self.mount(SafeInput(placeholder=placeholder, compact=True), before=0)
        self.query_one(Input).focus()

    async def action_clear_filter(self) -> None:
        """Show all lines."""
        self._wanted = []
        await self.query(Input).remove()
        self._arrange()
        self.list.focus()

    def action_enter_list(self) -> None:
        """Go from the filter to the lines."""
        self.list.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the lines that contain every word."""
        event.stop()
        self._wanted = event.value.lower().split()
        self._arrange()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, and go to the lines."""
        event.stop()
        self.list.focus()

    def _arrange(self) -> None:
        """Show the lines that match the filter, sorted."""
        before, self._rows = self._rows, tuple(self._arranged())
        if not self.is_mounted:
            return
        self.set_class(not self._rows, "-empty")
        if not self._rows:
            empty = _NO_MATCH if self._all else self._empty
            self.query_one(".column-list--empty", Static).update(empty)
        if [row.key for row in before] == [row.key for row in self._rows]:
            for index, (old, new) in enumerate(zip(before, self._rows, strict=True)):
                if old != new:
                    self.list.replace_option_prompt_at_index(index, self._line(new))
            return
        self._fill()

    def _arranged(self) -> Iterator[Row]:
        if not self._wanted and not self._order and not any(row.below for row in self._all):
            yield from self._all
            return
        rows = [
            row for row in self._all if row.key and all(word in row.text for word in self._wanted)
        ]
        if self._order:
            rows.sort(key=lambda row: _rank(row.order.get(self._order, 0)))
        keys = {row.key for row in rows}
        for row in rows:
            if row.below not in keys:
                yield row
                yield from (one for one in rows if one.below == row.key)

    def on_resize(self, event: events.Resize) -> None:
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
        self._show_header()
        keys = [row.key for row in self._rows]
        if key is not None and key in keys:
            options.highlighted = keys.index(key)
        else:
            usable = [index for index, row in enumerate(self._rows) if row.key]
            options.highlighted = min(usable, key=lambda i: abs(i - (at or 0)), default=None)

    def _show_header(self) -> None:
        if self._has_header:
            names = [column.name for column in self._columns]
            if self._order:
                names[0] += f" (by {self._order})"
            header = self.query_one(".column-list--header", Static)
            header.update(self._columned(Row("", tuple(names))))

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


def _rank(value: str | float) -> tuple[float, str]:
    """The sort key of a value: numbers from the largest, then text from A to Z."""
    return (0.0, value.lower()) if isinstance(value, str) else (-value, "")
