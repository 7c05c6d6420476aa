"""The active keys: of the focused widget, the screen and the app."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, cast

from textual import on
from textual.app import App, ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import Screen
from textual.widgets import Input, Static

from hearth.app.tui.screens.base import Dialog
from hearth.app.tui.widgets.column_list import Column, ColumnList, Row
from hearth.app.tui.widgets.fields import SafeInput

_COLUMNS = (Column("keys", 20), Column("action"), Column("id", 24, least=64))


class HelpScreen(Dialog[None]):
    """Lists all keys of the screen below, also those not in its footer; typing filters them."""

    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Vertical {
        width: 90%; max-width: 96; height: 90%; max-height: 40; padding: 1 2;
        background: $surface;
    }
    HelpScreen #help-title { height: 1; text-style: bold; }
    HelpScreen Input { margin: 0 0 1 0; padding: 0; border: none; height: 1; }
    HelpScreen ColumnList { padding: 0; height: 1fr; }
    HelpScreen .option-list--option-highlighted { background: transparent; color: $text; }
    HelpScreen #help-foot { height: 1; margin: 1 0 0 0; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "close", id="help.close"),
        Binding("down", "scroll(1)", "down", id="help.down", show=False),
        Binding("up", "scroll(-1)", "up", id="help.up", show=False),
        Binding("pagedown", "scroll(10)", "page down", id="help.page-down", show=False),
        Binding("pageup", "scroll(-10)", "page up", id="help.page-up", show=False),
    ]

    def compose(self) -> ComposeResult:
        below = self.app.screen_stack[-2]
        name = getattr(below, "NAME", "") or _in_words(below)
        self._groups = tuple(_groups(below))
        with Vertical():
            yield Static(f"Keys · {name}", id="help-title", markup=False)
            yield SafeInput(placeholder="Type to filter", id="help-search", compact=True)
            yield ColumnList(*_COLUMNS, empty="No matching keys.", header=False, id="help-keys")
            yield Static("Change keys in the settings, by their ids.", id="help-foot", markup=False)

    def on_mount(self) -> None:
        self.query_one(ColumnList).list.can_focus = False
        self._show()

    @on(Input.Changed)
    def _show(self) -> None:
        """Show the keys that match the filter."""
        rows: list[Row] = []
        words = self.query_one(Input).value.lower().split()
        for title, lines in self._groups:
            matching = [
                line for line in lines if all(word in " ".join(line).lower() for word in words)
            ]
            if matching:
                rows.append(Row("", (title,)))
                rows += (
                    Row(f"{title}/{line[2]}/{line[0]}", _cells(line, self.app)) for line in matching
                )
        self.query_one(ColumnList).show(rows)

    def action_scroll(self, lines: int) -> None:
        """Scroll while the filter has the focus."""
        self.query_one(ColumnList).list.scroll_relative(y=lines, animate=False)


Line = tuple[str, str, str]
"""Keys, what they do, and the binding's id."""


def _cells(line: Line, app: App[object]) -> tuple[Content, str, Content]:
    keys, what, ident = line
    return Content.styled(keys, "$text-accent"), what, Content.styled(ident, "dim")


def _groups(screen: Screen[object]) -> Iterator[tuple[str, list[Line]]]:
    """(title, lines) of each node with active keys: the screen, the focused widget, the app."""
    by_node: dict[DOMNode, dict[tuple[str, str], list[ActiveBinding]]] = {}
    for active in screen.active_bindings.values():
        binding = active.binding
        if binding.description and not binding.system:
            actions = by_node.setdefault(active.node, {})
            actions.setdefault((binding.action, binding.description), []).append(active)
    for node, actions in sorted(by_node.items(), key=lambda item: item[0] is not screen):
        yield _title(node), [_line(screen, same) for same in actions.values()]


def _line(screen: Screen[object], same: list[ActiveBinding]) -> Line:
    app = cast("App[object]", screen.app)
    first = same[0].binding
    keys = " ".join(dict.fromkeys(app.get_key_display(active.binding) for active in same))
    off = "" if same[0].enabled else " (not now)"
    what = first.tooltip or first.description
    return keys, (what if first.id else what.lower()) + off, first.id or ""  # Textual: "Page Up".


def _title(node: DOMNode) -> str:
    if isinstance(node, App):
        return "everywhere"
    if isinstance(node, Screen):
        return "on this screen"
    return f"in the {node.BINDING_GROUP_TITLE or _in_words(node)}"


def _in_words(node: DOMNode) -> str:
    """The class name of `node` in words, such as "thread list"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
