"""A code fence: its language, its number, its lines, and a key that copies it."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.worker import Worker

from hearth.app.tui.widgets.highlight import coloured_line, coloured_lines, lexer_of
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.prose import TAB
from hearth.app.tui.widgets.slab import FULL, Frame, Slab


class CodeBlock(Frame, can_focus=True):
    """Code that may still be coming in.

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
        self._lexer = lexer_of(info)
        self.styles.padding = (0, 1, 0, 1 + indent)
        label = " ".join([*info.split()[:1], f"· {number}"])
        self._slabs = [Slab([Line(Content.styled(label, ".muted"))])]
        self._last = False

    def compose(self) -> ComposeResult:
        yield from self._slabs

    def on_mount(self) -> None:
        if self._last:
            self._colour()

    def add(self, code: str, *, last: bool) -> None:
        """Take whole lines. `last`: no more will come."""
        self.code += code
        for row in code.removesuffix("\n").split("\n") if code else ():
            if self._slabs[-1].is_full:
                self._slabs.append(Slab())
                if self.is_attached:
                    self.mount(self._slabs[-1])
            self._slabs[-1].add([self._line(coloured_line(self._lexer, row.expandtabs(TAB)))])
        if last and not self._last:
            self._last = True
            self._slabs[-1].show_open([])
            if self.is_attached:
                self._colour()

    def show_open(self, line: str) -> None:
        """Show the line that is being written."""
        self._slabs[-1].show_open([self._line(Content(line.expandtabs(TAB)))] if line else [])

    def action_copy_code(self) -> None:
        """Copy the code, as it was written."""
        text = self.code.removesuffix("\n")
        self.app.copy_to_clipboard(text)
        self.app.notify("Code copied.", markup=False)

    def _line(self, content: Content) -> Line:
        return Line(content, fold=True)

    def _colour(self) -> Worker[None] | None:
        """Colour all of it again, now that strings over several lines are known."""
        if self._lexer is None or "\n" not in self.code.removesuffix("\n"):
            return None
        return self.run_worker(self._coloured(), exclusive=True, group="colour")

    async def _coloured(self) -> None:
        if self._lexer is None:
            return
        code = self.code.removesuffix("\n").expandtabs(TAB)
        contents = await coloured_lines(self._lexer, code)
        if contents is None:
            return
        label = self._slabs[0].lines[0]
        lines = [label, *(self._line(content) for content in contents)]
        for number, slab in enumerate(self._slabs):
            slab.replace(lines[number * FULL : (number + 1) * FULL])
            await asyncio.sleep(0)
