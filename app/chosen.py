"""A model that somebody chose, with the settings that hold for it."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.app.library.local import FoundModel
from hearth.app.settings import ModelUse, Settings
from hearth.backends.contract import ModelSpec


@dataclass(frozen=True, slots=True)
class Chosen:
    """A model that a front end works with. Two with equal `spec` share one worker."""

    found: FoundModel
    use: ModelUse
    spec: ModelSpec


def with_settings(found: FoundModel, settings: Settings) -> Chosen:
    """`found` as `settings` say. Raises `SettingsError` for its template file."""
    use = settings.for_model(found.name)
    return Chosen(found, use, ModelSpec(str(found.path), found.name, use.backend, use.load))
