"""Makes foreign text safe to show: whole, in pieces, or in one line; also draws bars."""

from __future__ import annotations

from pathlib import PurePath

from textual.content import Content

from hearth.app.terminal import SafeStream, safe_text


def cell(text: str, style: str = "") -> Content:
    """Foreign text, safe and in one line."""
    return Content.styled(" ".join(safe_text(text).split()), style)


def model_name(model: str) -> str:
    """A model as shown: its name, or the name of the file if it is an absolute path."""
    path = PurePath(model)
    return path.name.removesuffix(".gguf") if path.is_absolute() else model


def bar(share: float, width: int) -> Content:
    """A progress bar of `width` cells."""
    filled = round(max(0.0, min(1.0, share)) * width)
    done = Content.styled("━" * filled, "$text-success")
    return done + Content.styled("─" * (width - filled), "$text-muted")


def shown_text(text: str) -> str:
    """`safe_text`, with CRLF line ends as LF."""
    return safe_text(text.replace("\r\n", "\n"))


class Incoming:
    """`shown_text` for text that comes in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._safe = SafeStream()
        self._held = ""

    @property
    def raw(self) -> str:
        """The text as received."""
        return "".join(self._pieces)

    def feed(self, text: str) -> str:
        """Add `text`; return what can be shown by now."""
        self._pieces.append(text)
        text = self._held + text
        self._held = "\r" if text.endswith("\r") else ""
        return self._safe.feed(text.removesuffix("\r").replace("\r\n", "\n"))

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return self._safe.feed(held) + self._safe.flush()
