"""Presets: a system prompt, a model and settings under one name, for starting chats."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from hearth.app.nearest import did_you_mean
from hearth.app.paths import private_folder
from hearth.app.settings import layer_of
from hearth.app.settings_keys import SAMPLING
from hearth.backends.contract.requests import Constraint, ConstraintKind
from hearth.backends.errors import HearthError, InvalidParameter, SettingsError
from hearth.backends.machine.atomic_files import write_json
from hearth.backends.text.output.rules import content_rule

_VERSION: Final = 1
_LONGEST_NAME: Final = 80


class PresetsUnusable(SettingsError):
    """The preset file cannot be read or written, or contains something invalid."""

    code = "presets_unusable"


class PresetNotFound(SettingsError):
    """No preset has this name."""

    code = "preset_not_found"


class PresetExists(SettingsError):
    """Another preset has this name."""

    code = "preset_exists"


@dataclass(frozen=True, slots=True)
class Preset:
    """The initial values of a chat.

    Attributes:
        system: the system prompt; empty: that of the settings.
        model: name or path; empty: the default model.
        settings: of the form of a chat's, see `check_chat_settings`.
    """

    name: str
    system: str = ""
    model: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


class Presets:
    """The presets in one file, by case-insensitive name. Every call reads the file again, so
    several apps may share it.

    All methods raise `PresetsUnusable` if the file cannot be read or written.

    Args:
        file: neither the file nor its folder need exist.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def all(self) -> list[Preset]:
        """All presets, by name."""
        return [preset for _, preset in sorted(self._load().items())]

    def get(self, name: str) -> Preset:
        """The preset called `name`. Raises `PresetNotFound`, which names the nearest."""
        presets = self._load()
        if name.strip().lower() in presets:
            return presets[name.strip().lower()]
        near = did_you_mean(name, [preset.name for preset in presets.values()])
        raise PresetNotFound(
            f"There is no preset called {name}.{near}", "Choose one of the list of presets."
        )

    def save(self, preset: Preset) -> Preset:
        """Store `preset`, replacing one with the same name; returns it as it was stored.

        Raises:
            PresetsUnusable: its name or its settings are invalid.
        """
        preset = self._checked(asdict(replace(preset, name=preset.name.strip())), "This preset")
        self._store({**self._load(), preset.name.lower(): preset})
        return preset

    def rename(self, name: str, to: str) -> Preset:
        """Rename a preset.

        Raises:
            PresetNotFound: no preset is called `name`.
            PresetExists: another preset is called `to`.
        """
        preset = self.get(name)
        renamed = self._checked({**asdict(preset), "name": to.strip()}, "This preset")
        others = self._without(preset)
        if renamed.name.lower() in others:
            raise PresetExists(
                f"There is a preset called {renamed.name}.", "Choose another name, or delete it."
            )
        self._store({**others, renamed.name.lower(): renamed})
        return renamed

    def delete(self, name: str) -> None:
        """Delete a preset. Raises `PresetNotFound`."""
        self._store(self._without(self.get(name)))

    def _without(self, preset: Preset) -> dict[str, Preset]:
        key = preset.name.lower()
        return {name: other for name, other in self._load().items() if name != key}

    def _load(self) -> dict[str, Preset]:
        """The presets by lower-case name."""
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise self._unusable(f"cannot be read: {error}") from error
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            raise self._unusable(f"is not a file of presets of version {_VERSION}")
        if not isinstance(document.get("presets"), list):
            raise self._unusable("has no list of presets")
        presets: dict[str, Preset] = {}
        for number, entry in enumerate(document["presets"], 1):
            preset = self._checked(entry, f"{self._file}: preset {number}")
            if preset.name.lower() in presets:
                raise self._unusable(f"has two presets called {preset.name}")
            presets[preset.name.lower()] = preset
        return presets

    def _store(self, presets: dict[str, Preset]) -> None:
        entries = [asdict(preset) for preset in presets.values()]
        try:
            private_folder(self._file.parent)
            write_json(self._file, {"version": _VERSION, "presets": entries})
        except OSError as error:
            raise self._unusable(f"cannot be written: {error.strerror or error}") from error

    def _unusable(self, why: str) -> PresetsUnusable:
        return PresetsUnusable(
            f"{self._file} {why}.", "Correct the file, or move it away to start with an empty one."
        )

    def _checked(self, entry: object, where: str) -> Preset:
        if not isinstance(entry, dict) or set(entry) != {"name", "system", "model", "settings"}:
            raise PresetsUnusable(
                f"{where} must have a name, a system prompt, a model and settings, nothing else.",
                f"Correct {self._file}.",
            )
        for key in ("name", "system", "model"):
            if not isinstance(entry[key], str):
                raise PresetsUnusable(f"{where}: {key} is no text.", f"Correct {self._file}.")
        name = entry["name"]
        if not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise PresetsUnusable(
                f"{where}: a name has 1 to {_LONGEST_NAME} characters in one line.",
                "Choose another name.",
            )
        try:
            settings = check_chat_settings(entry["settings"])
        except HearthError as error:
            raise PresetsUnusable(f"{where} ({name}): {error.message}", error.hint) from error
        return Preset(name, entry["system"], entry["model"], settings)


def check_chat_settings(settings: object) -> dict[str, Any]:
    """Check `settings` as those of a chat. They are JSON values: "set" (sampling settings by name),
    "thinking" (true, false or null: the model's default), "constraint" (null, or "kind" and
    "source") and "preset" (the name of the preset they came from). All are optional.

    Raises:
        InvalidParameter: a value is unknown, of a wrong type or out of range.
    """
    if not isinstance(settings, dict):
        raise InvalidParameter("settings", "The settings are no table.", "Correct them.")
    for name in settings:
        if name not in ("set", "thinking", "constraint", "preset"):
            raise InvalidParameter("settings", f"There is no setting {name!r}.", "Remove it.")
    if not isinstance(settings.get("thinking"), bool | None):
        raise InvalidParameter("thinking", "thinking is not true, false or null.", "Correct it.")
    if not isinstance(settings.get("preset", ""), str):
        raise InvalidParameter("preset", "preset is no text.", "Correct it.")
    if settings.get("constraint") is not None:
        check_constraint(settings["constraint"])
    if not isinstance(settings.get("set", {}), dict):
        raise InvalidParameter("set", "The values that are set are no table.", "Correct them.")
    try:
        layer_of(settings.get("set", {}), "set", SAMPLING)
    except SettingsError as error:
        raise InvalidParameter("set", error.message, "Correct or remove it.") from error
    return settings


def check_constraint(constraint: object) -> None:
    """Raise `InvalidParameter` unless `constraint` is {"kind", "source"} and can be enforced."""
    if not isinstance(constraint, dict) or constraint.get("kind") not in get_args(ConstraintKind):
        kinds = ", ".join(get_args(ConstraintKind))
        raise InvalidParameter(
            "constraint", "The constraint is of no known kind.", f"Use one of {kinds}."
        )
    source = constraint.get("source", "")
    if not isinstance(source, str) or set(constraint) - {"kind", "source"}:
        raise InvalidParameter("constraint", "The constraint has no source.", "Correct it.")
    content_rule(Constraint(constraint["kind"], source), "constraint")
