"""Cells of lists: foreign text made safe and put in one line, and bars."""

from __future__ import annotations

from textual.content import Content

from hearth.app.terminal import safe_text


def cell(text: str, style: str = "") -> Content:
    """One line of foreign text."""
    return Content.styled(" ".join(safe_text(text).split()), style)


def bar(share: float, width: int) -> Content:
    """How much of something is done, in `width` cells."""
    filled = round(max(0.0, min(1.0, share)) * width)
    done = Content.styled("━" * filled, "$text-success")
    return done + Content.styled("─" * (width - filled), "$text-muted")
