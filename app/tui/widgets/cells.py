"""Cells of lists: foreign text made safe and put in one line, and bars."""

from __future__ import annotations

from pathlib import PurePath

from textual.content import Content

from hearth.app.terminal import safe_text


def cell(text: str, style: str = "") -> Content:
    """One line of foreign text."""
    return Content.styled(" ".join(safe_text(text).split()), style)


def model_name(model: str) -> str:
    """A model as it is shown: its name, or of a path the name of its file."""
    path = PurePath(model)
    return path.name.removesuffix(".gguf") if path.is_absolute() else model


def bar(share: float, width: int) -> Content:
    """How much of something is done, in `width` cells."""
    filled = round(max(0.0, min(1.0, share)) * width)
    done = Content.styled("━" * filled, "$text-success")
    return done + Content.styled("─" * (width - filled), "$text-muted")
