"""Text that streams into a view: the final display does not depend on how the text was split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.selection import SELECT_ALL, Selection

from async_tests import in_loop
from hearth.app.tui.widgets.answer import AnswerView
from hearth.app.tui.widgets.code_block import CodeBlock
from hearth.app.tui.widgets.lines import row_starts
from hearth.app.tui.widgets.slab import LinkAsked, Slab
from polling import until

TEXT = """# A title

Some **bold** words and `code`, ~~gone~~ and *leaning*.

1. one
   - inner
2. two

```python
def f(x):
    return "x"
```

| name | value |
|:---|---:|
| a | 1 |
| bee | 22 |

> quoted

The end of [it](https://a.example/b%20c) and ![a *picture*](https://pixel.example/x.png).
"""


class Page(App[None]):
    """A page with one answer."""

    def __init__(self, view: AnswerView) -> None:
        super().__init__()
        self.view = view
        self.asked: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.view

    @property
    def text(self) -> str:
        """The text on the screen."""
        rows = self.screen._compositor.render_strips()
        return "\n".join("".join(part.text for part in row).rstrip() for row in rows).rstrip()

    def on_link_asked(self, message: LinkAsked) -> None:
        self.asked.append(message.url)


@in_loop
async def test_a_streamed_answer_looks_like_one_that_was_there() -> None:
    looks = []
    for size in (1, 5, 10_000):
        app = Page(AnswerView())
        async with app.run_test(size=(60, 40)) as pilot:
            app.view.thinking.set_open(True)
            app.view.feed("hm\nwell", "reasoning")
            for start in range(0, len(TEXT), size):
                app.view.feed(TEXT[start : start + size])
                if start % 60 == 0:
                    await pilot.pause(0)
            await app.view.become(TEXT, "hm\nwell")
            await until(pilot, lambda app=app: "The end of it" in app.text)
            looks.append(app.text)
    assert looks[0] == looks[1] == looks[2]
    assert looks[0].split("\n") == [
        "▾ thought · 2 words",
        "hm",
        "well",
        "",
        "A title",
        "",
        "Some bold words and code, gone and leaning.",
        "",
        "1. one",
        "   • inner",
        "2. two",
        "",
        "▎ python · 1",
        "▎ def f(x):",
        '▎     return "x"',
        "",
        "name │ value",
        "─────┼──────",
        "a    │     1",
        "bee  │    22",
        "",
        "▎ quoted",
        "",
        "The end of it and a *picture*.",
    ]


@in_loop
async def test_what_comes_fast_is_all_shown() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(60, 20)) as pilot:
        for number in range(2000):
            app.view.feed(f"word{number} ")
        app.view.feed("\n\n" + "end " * 3)
        await until(pilot, lambda: "end end" in written(app))


def written(app: Page) -> str:
    """The text of every slab."""
    return "\n".join(line.plain for slab in app.query(Slab) for line in slab.lines)


@in_loop
async def test_thoughts_are_folded_until_somebody_asks() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(60, 20)) as pilot:
        app.view.feed("first thought\nsecond", "reasoning")
        await until(pilot, lambda: "▸ thinking · 3 words" in app.text)
        assert "first thought" not in app.text
        app.view.thinking.focus()
        await pilot.press("enter")
        await until(pilot, lambda: "first thought\nsecond" in app.text)
        app.view.feed(" one", "reasoning")
        app.view.feed("Answer.")
        await until(pilot, lambda: "second one" in app.text and "Answer." in app.text)
        assert "▾ thought" in app.text
        await pilot.press("space")
        await until(pilot, lambda: "first thought" not in app.text)


@in_loop
async def test_the_status_stands_where_the_text_will_come() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(60, 20)) as pilot:
        app.view.status("reading the prompt 512/2,048 · about 3 s")
        await until(pilot, lambda: app.text == "reading the prompt 512/2,048 · about 3 s")
        app.view.feed("It begins")
        app.view.status("")
        await until(pilot, lambda: app.text == "It begins")


@in_loop
async def test_code_is_copied_by_key_and_coloured() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(60, 30)) as pilot:
        await app.view.become("```python\nx = '''a\n\tb'''\n```\n", "")
        await until(pilot, lambda: app.query(CodeBlock))
        app.query_one(CodeBlock).focus()
        await pilot.press("y")
        assert app.clipboard == "x = '''a\n\tb'''"


@in_loop
async def test_a_link_is_asked_for_and_not_opened() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(60, 30)) as pilot:
        await app.view.become(TEXT, "")
        await until(pilot, lambda: "The end of it" in app.text)
        row = next(y for y, line in enumerate(app.text.split("\n")) if "The end" in line)
        await pilot.click(offset=(11, row))
        await until(pilot, lambda: app.asked)
        assert app.asked == ["https://a.example/b%20c"]
        assert "pixel.example" not in app.text


@in_loop
async def test_selected_text_is_what_was_written() -> None:
    app = Page(AnswerView())
    async with app.run_test(size=(20, 30)) as pilot:
        await app.view.become("- a list item that is broken\n- two", "")
        await until(pilot, lambda: "two" in app.text)
        slab = app.query(Slab).first(Slab)
        assert slab.get_selection(SELECT_ALL) == ("• a list item that is broken\n• two", "\n")
        part = Selection(Offset(2, 0), Offset(2, 1))
        assert slab.get_selection(part) == ("list item that is broken\n• tw", "\n")


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet=st.sampled_from("ab cd   é字🙂\u0301")) | st.text(),
    st.integers(1, 30),
    st.booleans(),
)
def test_rows_fit_and_hold_everything(text: str, width: int, fold: bool) -> None:
    text = " ".join(text.split("\n"))
    starts = row_starts(text, width, fold=fold)
    assert starts[0] == 0 and starts == sorted(set(starts))
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        row = text[start:end]
        shown = row if fold else row.rstrip()
        assert cell_len(shown) <= width or len(shown.strip()) <= 1 or cell_len(shown[0]) > width


@pytest.mark.parametrize("width", [8, 20, 60])
@in_loop
async def test_tables_fit_any_width(width: int) -> None:
    table = "| name | a long column of words |\n|---|---|\n| x | " + "word " * 20 + "|\n"
    app = Page(AnswerView())
    async with app.run_test(size=(width, 60)) as pilot:
        await app.view.become(table, "")
        await until(pilot, lambda: app.text.count("word") >= 21)
