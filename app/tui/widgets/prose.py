"""Converts Markdown blocks to lines: markdown-it's tokens in, `Line`s out.

Foreign text passes `safe_text` here once more, since entities and percent-encoded addresses become
characters only when they are parsed. Nothing becomes markup or an action: a link carries its
address in the style's `url`, which `Slab` reads at a click.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from textual.content import Content, Span
from textual.style import Style

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.blocks import markdown_parser
from hearth.app.tui.widgets.lines import EMPTY, Line, Table, TableRow

if TYPE_CHECKING:
    from markdown_it.token import Token

TAB: Final = 8
_SPACE = re.compile(r"[ \t]+")
_SPANS: Final = {"em": ".em", "strong": ".strong", "s": ".struck"}
_BLOCKS: Final = ("paragraph_open", "heading_open", "fence", "code_block", "hr", "table_open")


@dataclass(slots=True)
class _Around:
    """What precedes the lines of a list item or a quote."""

    first: Content
    rest: Content
    used: bool = False


def plain_lines(text: str, style: str = "") -> list[Line]:
    """Text unchanged, line by line; `style` is a key of `INKS`, or empty."""
    return [
        Line(Content.styled(line, style) if style else Content(line))
        for line in text.expandtabs(TAB).split("\n")
    ]


def inline_content(token: Token) -> Content:
    """The text of a paragraph, heading or cell with its styles."""
    parts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[int, str | Style]] = []
    at = 0

    def add(text: str, style: str | Style = "") -> None:
        nonlocal at
        text = safe_text(text).replace("\t", " ")
        if style:
            spans.append(Span(at, at + len(text), style))
        parts.append(text)
        at += len(text)

    for child in token.children or ():
        name, _, edge = child.type.rpartition("_")
        if child.type in ("softbreak", "hardbreak"):
            add("\n")
        elif child.type == "code_inline":
            add(child.content, ".code")
        elif child.type == "image":
            add(child.content or "image", ".em")
        elif edge == "open":
            url = {"url": safe_text(str(child.attrs.get("href", "")))}
            opened.append((at, Style.from_meta(url) if name == "link" else _SPANS.get(name, "")))
        elif edge == "close":
            start, style = opened.pop()
            if style:
                spans.append(Span(start, at, style))
            if isinstance(style, Style):
                spans.append(Span(start, at, ".link"))
        else:
            add(_SPACE.sub(" ", child.content))
    return Content("".join(parts), spans)


def prose_lines(source: str, next_code: int) -> tuple[list[Line], int]:
    """Blocks as lines, and the number of the next code block.

    Args:
        source: Markdown, safe for a terminal.
        next_code: the number of the first code block in `source`.
    """
    tokens = markdown_parser().parse(source)
    given = source.split("\n")
    lines: list[Line] = []
    around: list[_Around] = []
    for number, token in enumerate(tokens):
        begins = token.type.startswith(_BLOCKS) and token.map is not None and bool(lines)
        if begins and token.map and not given[token.map[0] - 1].strip(" \t>"):
            lines.append(Line(head=_join([item.rest for item in around])))
        if token.type == "list_item_open":
            around.append(_item(token))
        elif token.type == "blockquote_open":
            bar = Content.styled("▎ ", ".muted")
            around.append(_Around(bar, bar))
        elif token.type in ("list_item_close", "blockquote_close"):
            left = around.pop()
            if not left.used:
                lines.append(_placed(EMPTY, [*around, left]))
        elif token.type == "inline" and not _in_table(tokens, number):
            lines += _text(token, tokens[number - 1], around)
        elif token.type in ("fence", "code_block"):
            code = safe_text(token.content).removesuffix("\n")
            lines += _code(code, token, next_code, around)
            next_code += 1
        elif token.type == "hr":
            line = _placed(Content("─"), around)
            lines.append(Line(line.content, line.head, line.rest, rule=True))
        elif token.type == "table_open":
            lines += _table(tokens[number:], around)
    return lines, next_code


def _text(token: Token, opening: Token, around: list[_Around]) -> list[Line]:
    content = inline_content(token)
    if opening.type == "heading_open":
        top = ".title" if opening.tag in ("h1", "h2") else ".heading"
        content = content.stylize_before(top)
    return [_placed(part, around) for part in content.split("\n", allow_blank=True)]


def _code(text: str, token: Token, number: int, around: list[_Around]) -> list[Line]:
    language = safe_text(token.info).split()[:1]
    lines = [_placed(Content.styled(" ".join([*language, f"· {number}"]), ".muted"), around)]
    bar = Content.styled("│ ", ".muted")
    for row in text.expandtabs(TAB).split("\n"):
        line = _placed(Content(row), around)
        lines.append(Line(line.content, line.head + bar, line.rest + bar, fold=True))
    return lines


def _in_table(tokens: Sequence[Token], number: int) -> bool:
    return tokens[number - 1].type in ("th_open", "td_open")


def _item(token: Token) -> _Around:
    """The mark of a list item: the number that was written, or a bullet."""
    mark = f"{token.info}{token.markup} " if token.info else "• "
    return _Around(Content.styled(mark, ".mark"), Content(" " * len(mark)))


def _join(parts: Sequence[Content]) -> Content:
    return EMPTY.join(parts) if parts else EMPTY


def _placed(content: Content, around: list[_Around]) -> Line:
    """A line inside its lists and quotes; the first one of an item has its bullet."""
    head = _join([item.rest if item.used else item.first for item in around])
    for item in around:
        item.used = True
    return Line(content, head, _join([item.rest for item in around]))


def table_cells(tokens: Sequence[Token]) -> list[list[Content]]:
    """The rows of the first table in `tokens`, its head first; a cell is one line."""
    rows: list[list[Content]] = []
    for number, token in enumerate(tokens):
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and _in_table(tokens, number):
            rows[-1].append(inline_content(token))
    return rows


def table_sides(tokens: Sequence[Token]) -> list[str]:
    """The alignment of each column of the first table in `tokens`."""
    heads = [token for token in tokens if token.type == "th_open"]
    return [str(token.attrs.get("style", "")).removeprefix("text-align:") for token in heads]


def _table(tokens: Sequence[Token], around: list[_Around]) -> list[Line]:
    rows = table_cells(tokens)
    table = Table(table_sides(tokens))
    lines: list[Line] = [TableRow(table, rows[0], is_head=True)]
    lines += [TableRow(table, row) for row in rows[1:]]
    indent = sum(item.rest.cell_length for item in around)
    return [line.shifted(indent) for line in lines]
