"""The text of a message, while it streams and afterwards: thoughts, answer, state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from textual.app import ComposeResult
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from hearth.app.tui.widgets.blocks import BlockSplitter, Piece, markdown_parser
from hearth.app.tui.widgets.cells import Incoming, shown_text
from hearth.app.tui.widgets.code_block import CodeBlock
from hearth.app.tui.widgets.folded import Thinking
from hearth.app.tui.widgets.lines import Line, Table, TableRow
from hearth.app.tui.widgets.prose import plain_lines, prose_lines, table_cells, table_sides
from hearth.app.tui.widgets.slab import Slab, Slabs

SHORTEST_S: Final = 1 / 18
LONGEST_S: Final = 0.5
"""Longest time between two updates of the screen; `SHORTEST_S` is the shortest."""
SHARE: Final = 0.2
"""Largest share of time that is spent on drawing an answer."""
AT_ONCE: Final = 1500
"""Most characters that one update shows."""
SLICE: Final = 4000
"""Characters that are read before the event loop runs again."""
Form = Literal["markdown", "json", "plain"]


class Body(Slabs):
    """Markdown that may still be streaming: slabs of prose and tables, code blocks between them.

    `feed` takes text, which must be safe for a terminal; `advance` shows it.

    Args:
        host: gets the parts as its children.
        form: how the text is interpreted.
    """

    def __init__(self, host: Widget, form: Form) -> None:
        super().__init__(host)
        self._next_code = 1
        """The number of the next code block."""
        self._opening = "```json\n" if form == "json" else ""
        self._splitter = BlockSplitter()
        self._code: CodeBlock | None = None
        self._table = Table()
        self._tabled: list[Slab] = []  # the slabs with rows of the open table

    def feed(self, text: str) -> None:
        """Take more text; cheap."""
        if text:
            self._splitter.feed(self._opening + text)
            self._opening = ""

    @property
    def pending(self) -> bool:
        """Whether there is text that `advance` has not shown."""
        return self._splitter.pending

    def advance(self, most: int | None = None) -> None:
        """Show about `most` characters of the text since the last call; None for all of it."""
        self._add(self._splitter.advance(most))
        opened = self._splitter.open
        if opened is None:
            self.drop_open()
        elif opened.kind == "prose":
            self.show_open(self._prose(opened)[0])
        elif self._code is not None:
            self._code.show_open(opened.text)

    async def complete(self) -> None:
        """Show all of the text, in slices that keep the screen responsive; no more may follow."""
        while self.pending:
            self._add(self._splitter.advance(SLICE))
            await asyncio.sleep(0)
        self._add(self._splitter.close())
        self.drop_open()

    def drop_open(self) -> None:
        if self._code is not None:
            self._code.show_open("")
        else:
            super().drop_open()

    def _add(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if piece.kind == "code":
                self._add_code(piece)
            elif piece.kind == "table":
                self._add_row(piece)
            else:
                lines, self._next_code = self._prose(piece)
                self.add(lines)

    def _prose(self, piece: Piece) -> tuple[list[Line], int]:
        """The lines of a piece, and the number of the code block after it."""
        lines, next_code = prose_lines(piece.text, self._next_code)
        return self._spaced(piece, lines), next_code

    def _spaced(self, piece: Piece, lines: Sequence[Line]) -> list[Line]:
        """The lines of a piece with its indentation, and the blank line before it."""
        shifted = [line.shifted(piece.indent) for line in lines]
        return [Line(), *shifted] if piece.gap and shifted and self.parts else shifted

    def _add_code(self, piece: Piece) -> None:
        if self._code is None or piece.first:
            self.drop_open()
            self._code = CodeBlock(piece.info, self._next_code, piece.indent)
            self._code.set_class(bool(self.parts), "-gap", update=False)
            self._next_code += 1
            self.mount(self._code)
        self._code.add(piece.text, last=piece.last)
        if piece.last:
            self._code = None

    def _add_row(self, piece: Piece) -> None:
        tokens = markdown_parser().parse(piece.info + piece.text)
        rows = table_cells(tokens)
        if piece.first:
            self._table, self._tabled = Table(table_sides(tokens)), []
        before = self._table.widest
        row = TableRow(self._table, rows[0 if piece.first else -1], is_head=piece.first)
        self.add(self._spaced(piece, [row]))
        slab = self.parts[-1]
        if isinstance(slab, Slab) and slab not in self._tabled:
            self._tabled.append(slab)
        if before != self._table.widest:
            for other in self._tabled:
                other.remeasured()


class AnswerView(Widget):
    """Shows streamed text, updated a few times a second at whatever rate it arrives.

    Args:
        form: whether the content is Markdown, JSON shown as a code block, or plain text.

    Attributes:
        thinking: the thoughts.
        body: the answer.
    """

    BLANK = True  # nothing of its own to draw
    DEFAULT_CSS = """
    AnswerView { width: 1fr; height: auto; layout: stream; }
    """

    def __init__(self, form: Form = "markdown") -> None:
        super().__init__()
        self._form = form
        self._content = Incoming()
        self._reasoning = Incoming()
        self.thinking = Thinking()
        self.body = Body(self, form)
        self._status: Slab | None = None
        self._paused_updates = False
        self._update_timer: Timer | None = None
        self._interval_s = SHORTEST_S
        self._is_drawing = False
        self._heir: AnswerView | None = None

    def compose(self) -> ComposeResult:
        # Empty parts are not mounted; they would be most of a long chat's widgets.
        if self.thinking.has_text:
            yield self.thinking
        yield from self.body.parts
        if self._status is not None:
            yield self._status

    def on_mount(self) -> None:
        self._schedule()

    @property
    def content(self) -> str:
        """The answer so far, as received."""
        return self._content.raw

    @property
    def reasoning(self) -> str:
        """The thoughts so far, as received."""
        return self._reasoning.raw

    @property
    def is_behind(self) -> bool:
        """Whether there is text that is not shown yet."""
        return self.body.pending or self.thinking.pending

    def feed(self, text: str, channel: Literal["content", "reasoning"] = "content") -> None:
        """Take more text; cheap enough to call for every piece that arrives."""
        if self._heir is not None:
            self._heir.feed(text, channel)
        if channel == "reasoning":
            self.thinking.feed(self._reasoning.feed(text))
        else:
            self.body.feed(self._content.feed(text))
        self._schedule()

    def status(self, text: str) -> None:
        """Show the state of the answer, at the place of its next text."""
        if self._heir is not None:
            self._heir.status(text)
        text = " ".join(shown_text(text).split())
        lines = [Line(Content.styled(text, ".muted"))]
        if not text:
            if self._status is not None:
                self._status.remove()
            self._status = self.body.before = None
        elif self._status is None:
            self._status = Slab(lines)
            if self.is_attached:
                self.mount(self._status)
            self.body.before = self._status
        else:
            self._status.replace(lines)

    async def become(self, content: str, reasoning: str, form: Form | None = None) -> None:
        """Show a complete text; parts that are already shown stay."""
        self._stop_timer()
        if reasoning.strip() != self.reasoning.strip():
            self._reasoning = Incoming()
            other = Thinking(self.thinking.is_open)
            other.feed(self._reasoning.feed(reasoning))
            if self.thinking.is_attached:
                await self.thinking.remove()
            self.thinking = other
        form = form or self._form
        if form != self._form or content.strip() != self.content.strip():
            self._form = form
            self._content = Incoming()
            old, self.body = self.body, Body(self, form)
            self.body.before = old.before
            safe = self._content.feed(content)
            if self.is_attached:
                await self.remove_children(old.parts)
            if form == "plain":
                self.body.add(plain_lines(safe))
            else:
                self.body.feed(safe)
        self.thinking.feed(self._reasoning.flush())
        self._think(is_done=True)
        self.body.feed(self._content.flush())
        await self.body.complete()

    def catch_up(self) -> None:
        """Show all received text at once, before the view is mounted."""
        self._think(is_done=bool(self.content))
        self.body.advance()

    def _think(self, *, is_done: bool) -> None:
        self.thinking.advance(is_done=is_done)
        if self.thinking.has_text and self.is_attached and not self.thinking.is_attached:
            self.mount(self.thinking, before=0 if self._nodes else None)

    def paused(self, is_paused: bool) -> None:
        """Pause drawing while the end is not in view, which only buffers text; or resume it."""
        self._paused_updates = is_paused
        if is_paused:
            self._stop_timer()
        else:
            self._schedule()

    def hand_to(self, heir: AnswerView) -> None:
        """Let `heir` show the message from now on; it also gets the text that this view gets."""
        self._heir = heir

    def _schedule(self) -> None:
        idle = self._update_timer is None and not self._is_drawing
        if self.is_behind and idle and self.is_attached and not self._paused_updates:
            self._update_timer = self.set_timer(self._interval_s, self._tick)

    def _stop_timer(self) -> None:
        if self._update_timer is not None:
            self._update_timer.stop()
            self._update_timer = None

    def _tick(self) -> None:
        """Show the text that arrived; the time that this takes determines the next interval."""
        self._update_timer = None
        started = time.thread_time()
        self._is_drawing = True
        if self.thinking.pending:
            self._think(is_done=bool(self.content))
        self.body.advance(AT_ONCE)
        self.call_after_refresh(self._drawn, started)

    def _drawn(self, started: float) -> None:
        self._is_drawing = False
        cost_s = time.thread_time() - started
        self._interval_s = min(max(cost_s * (1 / SHARE - 1), SHORTEST_S), LONGEST_S)
        self._schedule()
