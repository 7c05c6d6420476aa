"""The list in columns: the selected line stays selected, and each line has its own key."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from async_tests import in_loop
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row


class Listing(App[None]):
    """A list alone."""

    def compose(self) -> ComposeResult:
        yield ColumnList(Column("name"))

    @property
    def lines(self) -> ColumnList:
        return self.query_one(ColumnList)


def rows(*keys: str) -> list[Row]:
    return [Row(key, (key or "Heading",)) for key in keys]


@in_loop
async def test_the_chosen_line_stays_chosen_as_others_come_and_go() -> None:
    app = Listing()
    async with app.run_test():
        app.lines.show(rows("a", "b", "c"))
        app.lines.select("b")
        app.lines.show(rows("new", "a", "b"))
        assert app.lines.selected == "b"
        app.lines.show(rows("new", "a"))
        assert app.lines.selected == "a"


@in_loop
async def test_two_lines_with_one_key_are_refused_and_the_list_stays() -> None:
    app = Listing()
    async with app.run_test():
        app.lines.show(rows("a", "b"))
        with pytest.raises(ValueError, match="the key 'x'"):
            app.lines.show(rows("x", "y", "x"))
        assert app.lines.list.option_count == 2
        app.lines.show(rows("", "a", "", "b"))  # Headings have none.
        assert app.lines.list.option_count == 4
