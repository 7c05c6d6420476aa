"""The keys of a screen, on its last line."""

from __future__ import annotations

from textual.binding import Binding
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

_HELP = "help"
_QUIT = "leave"


class KeyBar(Footer):
    """The keys of the focused widget, then those of the screen and the app. Where not all fit,
    the one to quit is left out first, then the others from the last one on, but never help.
    """

    def __init__(self) -> None:
        super().__init__(show_command_palette=False, compact=True)
        self._keys: list[tuple[Binding, bool, str]] = []
        """What was last to be shown: each binding, whether it is enabled, and its tooltip."""

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Show the keys if they changed; Textual calls this whenever the focus moves."""
        keys = [
            (binding, enabled, tooltip)
            for _, binding, enabled, tooltip in screen.active_bindings.values()
            if binding.show
        ]
        if keys == self._keys:
            return
        if screen.app.app_focus:  # Without it, nothing is shown again.
            self._keys = keys
        super().bindings_changed(screen)

    async def recompose(self) -> None:
        """Show the keys that mean something now."""
        await super().recompose()
        self._leave_out()

    def on_resize(self) -> None:
        """There is room for more keys now, or for fewer."""
        self._leave_out()

    def _leave_out(self) -> None:
        keys = list(self.children)
        first = [key for key in keys if _action(key) == _QUIT]
        others = [key for key in keys if _action(key) not in (_QUIT, _HELP)]
        left_out: set[Widget] = set()
        for key in (*first, *reversed(others)):
            if sum(_cells(shown) for shown in keys if shown not in left_out) <= self.size.width + 1:
                break
            left_out.add(key)
        for key in keys:
            key.display = key not in left_out


def _action(key: Widget) -> str:
    """What the key does, by the name of the app's or the screen's action."""
    return str(getattr(key, "action", ""))


def _cells(key: Widget) -> int:
    """The width of a key with the space after it."""
    return len(str(key.render())) + 1
