"""The terminal app with another screen shown first."""

from __future__ import annotations

import inspect
from pathlib import Path

from hearth.app.tui.app import HearthApp
from hearth.app.tui.services import Services


def app_on(screen: str, services: Services) -> HearthApp:
    """The app, with the screen of this name shown first."""
    # Textual looks for the style sheet next to the class, but this class is elsewhere.
    looks = Path(inspect.getfile(HearthApp)).with_name("hearth.tcss")
    kind = type("AppOnScreen", (HearthApp,), {"DEFAULT_MODE": screen, "CSS_PATH": looks})
    app: HearthApp = kind(services)
    return app
