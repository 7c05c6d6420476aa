"""Cells of tables: foreign text made safe, numbers to the right."""

from __future__ import annotations

from rich.text import Text

from hearth.app.terminal import safe_text


def cell(text: str, style: str = "") -> Text:
    """One line of foreign text; Textual would read a bare `str` as markup."""
    return Text(" ".join(safe_text(text).split()), style=style, no_wrap=True, overflow="ellipsis")


def number(text: str, style: str = "") -> Text:
    """A number, to the right."""
    return Text(text, style=style, justify="right", no_wrap=True)


def bar(share: float, width: int = 16) -> Text:
    """How much of something is done."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return Text.assemble(("━" * filled, "green"), ("─" * (width - filled), "dim"))
