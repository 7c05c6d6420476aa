"""A code fence: its language, its number, its coloured lines, and a key that copies it.

Pygments' tokens become styles of a slab, in slices that keep the screen responsive.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, ClassVar, Final

from pygments.token import Token  # type: ignore[import-untyped]
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content, Span

from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.prose import TAB
from hearth.app.tui.widgets.slab import FULL, Frame, Slab, Slabs

if TYPE_CHECKING:
    from pygments.lexer import Lexer  # type: ignore[import-untyped]
    from pygments.token import _TokenType

MAX_CHARS: Final = 200_000
MAX_LINE: Final = 1_000
"""Code over `MAX_CHARS` or with a line over this stays plain: some lexers are slow on it."""
SLICE_S: Final = 0.004

_STYLES: Final = {
    Token.Comment: ".comment",
    Token.Keyword: ".keyword",
    Token.Operator.Word: ".keyword",
    Token.Literal.String: ".string",
    Token.Literal.Number: ".number",
    Token.Name.Builtin: ".name",
    Token.Name.Class: ".name",
    Token.Name.Decorator: ".name",
    Token.Name.Function: ".name",
    Token.Name.Tag: ".keyword",
    Token.Name.Attribute: ".name",
    Token.Generic.Deleted: ".deleted",
    Token.Generic.Inserted: ".inserted",
    Token.Generic.Heading: ".strong",
    Token.Generic.Strong: ".strong",
    Token.Generic.Emph: ".em",
}


class CodeBlock(Frame, can_focus=True):
    """Code that may still be streaming.

    Args:
        info: the text after the fence; its first word is the language.
        number: the number by which it is copied.
        indent: columns of indentation, as a part of a list.
    """

    DEFAULT_CSS = """
    CodeBlock {
        width: 1fr;
        height: auto;
        layout: stream;
        padding: 0 1;
        background: $boost;
        border-left: wide $boost;
        &.-gap { margin-top: 1; }
        &:focus { border-left: wide $primary; }
        &:ansi { background: transparent; border-left: wide ansi_bright_black; }
        &:ansi:focus { border-left: wide $primary; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "copy_code", "copy", id="code.copy"),
    ]

    def __init__(self, info: str, number: int, indent: int = 0) -> None:
        super().__init__()
        self.number = number
        self.code = ""
        self._lexer = _lexer_of(info)
        self.styles.padding = (0, 1, 0, 1 + indent)
        label = " ".join([*info.split()[:1], f"· {number}"])
        self._label = Line(Content.styled(label, ".muted"))
        self._slabs = Slabs(self)
        self._slabs.add([self._label])
        self._last = False

    def compose(self) -> ComposeResult:
        yield from self._slabs.parts

    def on_mount(self) -> None:
        if self._last:
            self._colour()

    def add(self, code: str, *, last: bool) -> None:
        """Add whole lines; `last` means that no more will follow."""
        self.code += code
        rows = code.removesuffix("\n").expandtabs(TAB).split("\n") if code else []
        self._slabs.add([_code_line(_coloured_line(self._lexer, row)) for row in rows])
        if last and not self._last:
            self._last = True
            self._slabs.drop_open()
            if self.is_attached:
                self._colour()

    def show_open(self, line: str) -> None:
        """Show the line that is being written."""
        self._slabs.show_open([_code_line(Content(line.expandtabs(TAB)))] if line else [])

    def action_copy_code(self) -> None:
        """Copy the code, as it was written."""
        text = self.code.removesuffix("\n")
        self.app.copy_to_clipboard(text)
        self.app.notify("Code copied.", markup=False)

    def _colour(self) -> None:
        """Colour all lines again, now that strings over several lines are known."""
        code = self.code.removesuffix("\n").expandtabs(TAB)
        if self._lexer is not None and "\n" in code:
            colouring = self._coloured(self._lexer, code)
            self.run_worker(colouring, exclusive=True, group="colour")

    async def _coloured(self, lexer: Lexer, code: str) -> None:
        contents = await _coloured_lines(lexer, code)
        if contents is not None:
            lines = [self._label, *map(_code_line, contents)]
            for number, slab in enumerate(self.query(Slab)):
                slab.replace(lines[number * FULL : (number + 1) * FULL])
                await asyncio.sleep(0)


def _code_line(content: Content) -> Line:
    return Line(content, fold=True)


def _lexer_of(info: str) -> Lexer | None:
    """The lexer for the text after a fence, if there is one."""
    from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    name = info.split()[0].strip("{}.,") if info.split() else ""
    if not name or len(name) > 40:
        return None
    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=True)
    except ClassNotFound:
        return None


def _style(kind: _TokenType | None) -> str:
    while kind is not None:
        if kind in _STYLES:
            return _STYLES[kind]
        kind = kind.parent
    return ""


def _coloured_line(lexer: Lexer | None, line: str) -> Content:
    """One line, coloured without regard to what began on earlier lines."""
    if lexer is None or len(line) > MAX_LINE:
        return Content(line)
    spans, at = [], 0
    for kind, text in lexer.get_tokens(line):
        if style := _style(kind):
            spans.append(Span(at, min(at + len(text), len(line)), style))
        at += len(text)
    return Content(line, spans)


async def _coloured_lines(lexer: Lexer, code: str) -> list[Content] | None:
    """All lines of `code`, coloured; None if it is too long for that."""
    rows = code.split("\n")
    if len(code) > MAX_CHARS or max(map(len, rows)) > MAX_LINE:
        return None
    spans: list[list[Span]] = [[] for _ in range(len(rows) + 2)]
    row = column = 0
    until = time.perf_counter() + SLICE_S
    for kind, text in lexer.get_tokens(code):
        style = _style(kind)
        for number, part in enumerate(text.split("\n")):
            if number:
                row, column = row + 1, 0
            if style and part and row < len(rows):
                spans[row].append(Span(column, column + len(part), style))
            column += len(part)
        if time.perf_counter() > until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_S
    return [Content(text, row_spans) for text, row_spans in zip(rows, spans, strict=False)]
