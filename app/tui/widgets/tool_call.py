"""A tool call that a model asked for: shown, never run."""

from __future__ import annotations

import json
from dataclasses import dataclass

from textual.content import Content

from hearth.app.terminal import safe_text
from hearth.app.tui.widgets.lines import Line
from hearth.app.tui.widgets.slab import FULL, Slab


@dataclass(frozen=True, slots=True)
class ShownCall:
    """A tool call as the transcript shows it.

    Attributes:
        name: the function.
        arguments: what the model wrote, JSON as a rule.
    """

    name: str
    arguments: str


def _readable(arguments: str) -> str:
    """JSON with a line for each value where that helps; anything else as it is."""
    try:
        value = json.loads(arguments)
        if isinstance(value, dict) and len(arguments) > 60:
            return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments
    return arguments


def call_slabs(call: ShownCall) -> list[Slab]:
    """The name and the arguments of a call, as slabs that a message mounts."""
    text = safe_text(_readable(call.arguments)).expandtabs(8)
    bar = Content.styled("│ ", ".muted")
    lines = [
        Line(
            Content.assemble(
                ("tool call ", ".muted"),
                (safe_text(call.name).replace("\n", " ").expandtabs(1), ".strong"),
                ("  not run", ".muted"),
            )
        ),
        *(Line(Content(row), bar, fold=True) for row in text.split("\n")),
    ]
    return [ToolCallView(lines[start : start + FULL]) for start in range(0, len(lines), FULL)]


class ToolCallView(Slab):
    """A tool call, or a part of a long one."""

    DEFAULT_CSS = """
    ToolCallView {
        &.-gap { margin-top: 1; }
    }
    """
