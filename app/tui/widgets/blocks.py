"""Splits Markdown that is still streaming into closed pieces and the open one.

Later text cannot change a closed piece: a block, an item of a list, a row of a table, a line of a
code fence. Only the open piece is parsed again, so a list of a thousand lines costs as little at
its end as at its start. markdown-it decides what a block is (CommonMark and tables); HTML is text.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


MAX_OPEN_CHARS: Final = 6000
"""An open piece longer than this is cut at a line or a word, so that parsing it stays cheap."""

_MARKERS = re.compile(r"^\s*(?:[-=*_+#>`~|: ]+|`{3,}[^`]*|~{3,}.*|\d{1,9}[.)]?)$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_BLANK = " \t>\n"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a Markdown text; the pieces are in the order of the text.

    Attributes:
        kind: "prose": blocks to parse; "code": lines of a fence; "table": one row.
        text: source of the piece; of code, without the marks of the fence.
        gap: whether a blank line precedes it.
        indent: columns of indentation, as a part of a list.
        first: of code and tables: whether the piece begins one; a table's first piece has no row.
        last: of code: whether the fence ends with the piece.
        info: of code: the text after the fence's opening mark; of tables: their first two lines.
    """

    kind: Literal["prose", "code", "table"]
    text: str
    gap: bool = False
    indent: int = 0
    first: bool = False
    last: bool = False
    info: str = ""


@functools.cache
def markdown_parser() -> MarkdownIt:
    """The parser of GitHub's Markdown; it leaves HTML and link definitions as text.

    All messages share it, because making one takes longer than parsing a short message. It is not
    thread-safe.
    """
    # This import takes 50 ms, and the first paint does not need it.
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False}).disable("reference")


def _leading(line: str) -> int:
    """Columns of white space before a line's text; a tab counts as four."""
    return sum(4 if mark == "\t" else 1 for mark in line[: len(line) - len(line.lstrip(" \t"))])


def _dedented(lines: list[str], columns: int) -> str:
    """The lines, each without up to `columns` of white space."""
    if not columns:
        return "".join(lines)
    return "".join(" " * max(_leading(line) - columns, 0) + line.lstrip(" \t") for line in lines)


class BlockSplitter:
    """Takes Markdown as it arrives, and returns the pieces that are closed."""

    def __init__(self) -> None:
        self._parser = markdown_parser()
        self._coming: list[str] = []
        self._tail = ""  # the text that is not closed, from the start of a line
        self._indent = 0  # columns of indentation of the list that the tail is in
        self._gap = False  # whether a blank line precedes the tail
        self._fence = ""  # the mark of the fence that the tail is in
        self._fence_indent = 0
        self._info = ""
        self._fence_begun = False  # whether a piece of the fence was returned
        self._table = ""  # the first two lines of the table that the tail is in

    def feed(self, text: str) -> None:
        """Take more text; cheap, nothing is parsed."""
        self._coming.append(text)

    @property
    def pending(self) -> bool:
        """Whether there is text that `advance` has not processed."""
        return bool(self._coming)

    def advance(self, most: int | None = None) -> list[Piece]:
        """The pieces that the text since the last call closed.

        Args:
            most: process about that many characters of the text; None for all.
        """
        text = "".join(self._coming)
        self._coming.clear()
        closed: list[Piece] = []
        until = 0 if most is None else len(text) - most
        while text and len(text) > until:
            # In slices, of whole lines if possible, because parsing long texts takes long.
            end = text.rfind("\n", 0, MAX_OPEN_CHARS // 2) + 1 or MAX_OPEN_CHARS // 2
            self._tail += text[:end]
            text = text[end:]
            closed += self._cut()
        if text:
            self._coming.append(text)
        return closed

    def close(self) -> list[Piece]:
        """The remaining pieces, at the end of the text."""
        closed = self.advance()
        if self._tail and not self._tail.endswith("\n"):
            self._tail += "\n"
            closed += self._cut()
        if self._fence:
            closed.append(self._code("", last=True))
        elif self._tail.strip():
            closed.append(self._prose(self._tail, self._gap))
        self._tail = self._fence = self._table = ""
        self._indent, self._gap = 0, False
        return closed

    @property
    def open(self) -> Piece | None:
        """The unclosed text that can be shown: without half-typed marks, with emphasis closed."""
        if self._fence:
            typed = self._tail.strip()
            half = bool(typed) and self._fence.startswith(typed[: len(self._fence)])
            line = "" if half else _dedented([self._tail], self._fence_indent)
            return Piece("code", line, indent=self._indent) if line else None
        if self._table and self._tail.lstrip().startswith("|"):
            return None  # rows are shown only when they are complete
        lines = self._tail.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n") and _MARKERS.match(lines[-1]):
            lines.pop()
        text = _completed(_dedented(lines, self._indent).rstrip())
        return Piece("prose", text, self._gap, self._indent) if text.strip() else None

    def _cut(self) -> list[Piece]:
        """Take the closed pieces from the tail."""
        closed: list[Piece] = []
        while True:
            before = (len(self._tail), self._fence, self._table)
            if self._fence:
                closed += self._cut_fence()
            elif self._table:
                closed += self._cut_table()
            else:
                closed += self._cut_prose()
            if before == (len(self._tail), self._fence, self._table):
                return closed

    def _cut_fence(self) -> list[Piece]:
        lines, last = [], False
        while not last and (end := self._tail.find("\n") + 1):
            line, self._tail = self._tail[:end], self._tail[end:]
            last = _closes(line, self._fence)
            if not last:
                lines.append(_dedented([line], self._fence_indent))
        if not lines and not last:
            return []
        piece = self._code("".join(lines), last=last)
        if last:
            self._fence, self._gap = "", False
        return [piece]

    def _code(self, text: str, *, last: bool) -> Piece:
        first, self._fence_begun = not self._fence_begun, True
        return Piece("code", text, first and self._gap, self._indent, first, last, self._info)

    def _cut_table(self) -> list[Piece]:
        rows = []
        while end := self._tail.find("\n") + 1:
            line = self._tail[:end]
            if not self._is_row(line):
                self._table, self._gap = "", False
                break
            rows.append(Piece("table", line, indent=self._indent, info=self._table))
            self._tail = self._tail[end:]
        return rows

    def _is_row(self, line: str) -> bool:
        """Whether the line is another row of the open table."""
        if not line.strip():
            return False
        tokens = self._parser.parse(self._table + _dedented([line], self._indent))
        rows = sum(token.type == "tr_open" for token in tokens)
        return rows == 2 and tokens[-1].type == "table_close"

    def _cut_prose(self) -> list[Piece]:
        self._skip_blank()
        if self._indent and self._tail.strip():
            self._indent = min(self._indent, _leading(self._tail))
        lines = self._tail[: self._tail.rfind("\n") + 1].splitlines(keepends=True)
        until = self._outdented(lines)
        tokens = self._parser.parse(_dedented(lines[:until], self._indent)) if lines else []
        cuts, special = self._cuts(tokens, lines)
        if special is None and until < len(lines):
            cuts.append((until, True))
        if special is None and (not cuts or cuts[-1][0] == 0):
            return self._forced()
        closed = []
        for (begin, nested), (end, _) in pairwise([(0, False), *cuts]):
            if begin < end:
                gap = self._gap_before(lines, begin)
                closed.append(self._prose("".join(lines[begin:end]), gap, nested))
        start, nested = cuts[-1]
        self._gap = self._gap_before(lines, start)
        self._indent = _leading(lines[start]) if self._indent or nested else 0
        taken = start
        if special is not None and special.type == "fence":
            self._fence, self._info = special.markup, special.info.strip()
            self._fence_indent, self._fence_begun = _leading(lines[start]), False
            taken += 1
        elif special is not None:
            self._table = _dedented(lines[start : start + 2], 99)
            closed.append(Piece("table", "", self._gap, self._indent, first=True, info=self._table))
            taken += 2
        self._tail = self._tail[sum(map(len, lines[:taken])) :]
        return closed

    def _cuts(
        self, tokens: list[Token], lines: list[str]
    ) -> tuple[list[tuple[int, bool]], Token | None]:
        """Where the tail can be cut, up to the first fence or table, and the token of that.

        Each cut is a line, at which a block or an item of a list of any depth begins, and whether
        that is nested.
        """
        cuts: list[tuple[int, bool]] = []
        quoted = 0
        for token in tokens:
            if token.type in ("blockquote_open", "blockquote_close"):
                quoted += token.nesting
            if token.map is None or token.nesting < 0:
                continue
            start = token.map[0]
            top = token.level == 0
            special = not quoted and (
                (token.type == "fence" and lines[start].lstrip(" \t").startswith(token.markup))
                or (token.type == "table_open" and top)
            )
            if (top or special or (token.type == "list_item_open" and not quoted)) and (
                not cuts or start > cuts[-1][0]
            ):
                cuts.append((start, token.level > 1 or (special and not top)))
            if special:
                return cuts, token
        return cuts, None

    def _outdented(self, lines: list[str]) -> int:
        """The first line that is an item of an outer list; the number of lines if there is none."""
        outdented = (
            number
            for number, line in enumerate(lines[1:], 1)
            if _leading(line) < self._indent and _ITEM.match(line)
        )
        return next(outdented, len(lines))

    def _gap_before(self, lines: list[str], number: int) -> bool:
        return not lines[number - 1].strip(_BLANK) if number else self._gap

    def _prose(self, source: str, gap: bool, nested: bool = False) -> Piece:
        indent = _leading(source) if self._indent or nested else 0
        return Piece("prose", _dedented(source.splitlines(keepends=True), indent), gap, indent)

    def _forced(self) -> list[Piece]:
        """Cut an open piece that has become too long to be parsed again and again."""
        if len(self._tail) <= MAX_OPEN_CHARS:
            return []
        half = len(self._tail) // 2
        end = self._tail.rfind("\n", half) + 1 or self._tail.rfind(" ", half) + 1
        piece = self._prose(self._tail[: end or len(self._tail)], self._gap)
        self._tail, self._gap = self._tail[end or len(self._tail) :], False
        return [piece]

    def _skip_blank(self) -> None:
        while (end := self._tail.find("\n") + 1) and not self._tail[:end].strip():
            self._tail, self._gap = self._tail[end:], True


def _closes(line: str, mark: str) -> bool:
    """Whether a line ends the fence that `mark` began."""
    text = line.strip()
    return len(text) >= len(mark) and not text.strip(mark[0])


def _completed(text: str) -> str:
    """Text whose last paragraph is still streaming, with unclosed code or emphasis closed."""
    paragraph = text[text.rfind("\n\n") + 1 :]
    if "```" in paragraph:
        return text
    for mark in ("`", "**"):
        if paragraph.count(mark) % 2:
            return text[: -len(mark)] if text.endswith(mark) else text + mark
    return text
