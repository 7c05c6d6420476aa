"""Colours for code, in slices that let the screen live: Pygments' tokens as styles of a slab."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from pygments.token import Token  # type: ignore[import-untyped]
from textual.content import Content, Span

if TYPE_CHECKING:
    from pygments.lexer import Lexer  # type: ignore[import-untyped]
    from pygments.token import _TokenType

MAX_CHARS: Final = 200_000
MAX_LINE: Final = 1_000
"""Longer code, and code with longer lines, stays plain: some lexers take long for it."""
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


def lexer_of(info: str) -> Lexer | None:
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


def coloured_line(lexer: Lexer | None, line: str) -> Content:
    """One line by itself: right but for what began on lines before it."""
    if lexer is None or len(line) > MAX_LINE:
        return Content(line)
    spans, at = [], 0
    for kind, text in lexer.get_tokens(line):
        if style := _style(kind):
            spans.append(Span(at, min(at + len(text), len(line)), style))
        at += len(text)
    return Content(line, spans)


async def coloured_lines(lexer: Lexer, code: str) -> list[Content] | None:
    """All lines of `code`, or None where it is too long to be coloured."""
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
    return [Content(text, found) for text, found in zip(rows, spans, strict=False)]
