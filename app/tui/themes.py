"""The themes in the command palette: the one that is chosen there is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.theme import ThemeProvider

from hearth.app.settings_file import write_setting
from hearth.app.settings_keys import ALL
from hearth.app.terminal import safe_text
from hearth.app.tui.looks import apply_looks
from hearth.backends.errors import SettingsError

if TYPE_CHECKING:
    from hearth.app.tui.app import HearthApp


class KeptThemes(ThemeProvider):
    """Every theme; choosing one writes it into the settings file."""

    @property
    def commands(self) -> list[tuple[str, Callable[[], None]]]:
        """What the palette lists, and what each does."""
        app = cast("HearthApp", self.app)
        return [(name, partial(keep_theme, app, name)) for name, _ in super().commands]


def keep_theme(app: HearthApp, name: str) -> None:
    """Write the theme called `name` into the settings file and show it. One that a flag or a
    variable asks for still holds, which is told, as is what goes wrong.
    """
    services = app.services
    try:
        write_setting(services.paths.settings_file, ALL["theme"], name)
        services.settings = services.reload()
        apply_looks(app, services.settings)
    except SettingsError as error:
        app.notify(safe_text(f"{error.message} {error.hint}"), severity="error", markup=False)
        return
    holding = services.settings.all()["theme"]
    if holding.value != name:
        text = f"It is kept, but {holding.origin} holds: {holding.value}."
        app.notify(safe_text(text), severity="warning", markup=False)
