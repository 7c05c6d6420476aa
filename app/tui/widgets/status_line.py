"""The line above the prompt: the model, its settings, and how full its context is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from textual.content import Content
from textual.widget import Widget

from hearth.app.tui.widgets.cells import cell

_BAR_CELLS: Final = 10
_LONGEST: Final = 24
"""Most characters of a system prompt, or of another value."""
_SHORTEST: Final = 14
"""Cells that a part keeps when it is cut before others."""
_SEPARATOR: Final = Content(" · ")
_NEARLY_FULL: Final = 0.8
_CONSTRAINTS: Final = {"json": "JSON", "json_schema": "JSON schema", "grammar": "grammar"}


class StatusLine(Widget):
    """One line, which always shows the context, and as much of the rest as fits."""

    DEFAULT_CSS = """
    StatusLine {
        height: 1;
        padding: 0 1;
        color: $text-muted;
        &:ansi { text-style: dim; }
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._parts: list[Content] = []
        self._fill = Content()

    def show(
        self,
        model: str,
        state: str = "",
        settings: Sequence[str] = (),
        warning: str = "",
        *,
        used: int = 0,
        draft: int = 0,
        context: int = 0,
    ) -> None:
        """Show the state of a chat.

        Args:
            state: what the model is doing; empty between answers.
            settings: what the chat sets.
            warning: what does not fit into the context.
            used: tokens of the last prompt and its answer.
            draft: tokens of the text being written.
            context: context length in tokens; 0 while unknown.
        """
        parts = [cell(model, "$text"), cell(state, "$accent"), cell(warning, "$text-warning")]
        parts += map(cell, settings)
        self._parts = [part for part in parts if part]
        self._fill = _fill(used, draft, context)
        self.refresh()

    def render(self) -> Content:
        """The settings at the left, the context at the right. The longest parts are cut first."""
        width = self.content_size.width
        room = max(0, width - self._fill.cell_length - 1)
        parts = list(self._parts)
        for _ in self._parts:
            over = _SEPARATOR.join(parts).cell_length - room
            at = max(range(len(parts)), key=lambda at: parts[at].cell_length)
            if over > 0:
                cells = max(_SHORTEST, parts[at].cell_length - over)
                parts[at] = parts[at].truncate(cells, ellipsis=True)
        left = _SEPARATOR.join(parts).truncate(room, ellipsis=True)
        gap = max(0, width - self._fill.cell_length - left.cell_length)
        return left.pad_right(gap) + self._fill


def settings_in_words(system: str, settings: Mapping[str, Any]) -> list[str]:
    """The system prompt and settings that a chat sets, in words, the most important first."""
    parts = []
    if system:
        parts.append(f"system: {_short(system)}")
    if constraint := settings.get("constraint"):
        kind = constraint["kind"]
        parts.append(_CONSTRAINTS.get(kind) or f"{kind}: {_short(constraint.get('source', ''))}")
    if settings.get("thinking") is not None:
        parts.append(f"thinking {'on' if settings['thinking'] else 'off'}")
    parts += [f"{name} {_short(str(value))}" for name, value in settings.get("set", {}).items()]
    if settings.get("preset"):
        parts.append(f"preset {_short(settings['preset'])}")
    return parts


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _fill(used: int, draft: int, context: int) -> Content:
    if not context:
        return Content(f"{used:,} tokens" if used else "")
    share = (used + draft) / context
    style = "$error" if share > 1 else "$warning" if share > _NEARLY_FULL else "$success"
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    more = f" + {draft:,}" if draft else ""
    return Content.assemble(
        ("━" * filled, style),
        ("━" * (_BAR_CELLS - filled), "$surface-lighten-2"),
        f" {used:,}{more} of {context:,} ({share:.0%})",
    )
