"""Theme and keys of the terminal app, as set in the settings, and keys that clash."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from textual.binding import Binding
from textual.dom import DOMNode
from textual.keys import Keys, key_to_character

from hearth.app.nearest import did_you_mean
from hearth.app.settings import Settings
from hearth.backends.errors import SettingsError

if TYPE_CHECKING:
    from textual.app import App

_MODIFIERS: Final = frozenset(("ctrl", "shift", "alt", "super", "hyper", "meta"))


def apply_looks(app: App[Any], settings: Settings) -> None:
    """Apply the theme and the keys of `settings` to `app`.

    Call it when the app is made, and whenever the settings have changed. Invalid settings change
    nothing.

    Raises:
        SettingsError: a theme, binding or key does not exist; the message names the nearest one.
    """
    theme = settings.all()["theme"]
    name = str(theme.value)
    known = app.available_themes
    if name not in known:
        raise SettingsError(
            f"{theme.origin}: there is no theme {name!r}.{did_you_mean(name, known)}",
            f"There are {', '.join(sorted(known))}.",
        )
    keymap = checked_keymap(settings.keymap)
    app.set_keymap(keymap)
    if app.theme != name:
        app.theme = name


def checked_keymap(keymap: Mapping[str, str]) -> dict[str, str]:
    """`keymap` in Textual's spelling. Raises `SettingsError` if a binding or key does not exist."""
    if not keymap:
        return {}
    known = bindings()
    checked = {}
    for ident, keys in keymap.items():
        if ident not in known:
            raise SettingsError(
                f"[keys]: there is no binding {ident!r}.{did_you_mean(ident, known)}",
                "F1 shows the ids of a screen, and the settings screen has all of them.",
            )
        checked[ident] = check_keys(ident, keys)
    return checked


def check_keys(ident: str, keys: str) -> str:
    """`keys`, such as "f1,ctrl+h", in Textual's spelling. Raises `SettingsError`."""
    split = [key.strip() for key in keys.split(",")] if keys != "," else [","]
    for key in split:
        if not _is_key(key):
            guess = did_you_mean(key.rpartition("+")[2], _names())
            raise SettingsError(
                f"[keys]: {ident}: there is no key {key!r}.{guess}",
                'Write keys as "f1,ctrl+h": names with commas between, modifiers before a +.',
            )
    return ",".join("comma" if key == "," else key for key in split)


def bindings() -> dict[str, Binding]:
    """Every binding of the terminal app that has an id; imports all of its screens."""
    by_ident: dict[str, Binding] = {}
    for kind in classes():
        for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", ())):
            if binding.id:
                same = by_ident.get(binding.id)
                keys = [*(same.key.split(",") if same else ()), *binding.key.split(",")]
                by_ident[binding.id] = binding.with_key(",".join(dict.fromkeys(keys)))
    return dict(sorted(by_ident.items()))


def classes() -> Iterator[type[DOMNode]]:
    """Every screen and widget class of the terminal app, and the app's own; imports all of them."""
    import pkgutil

    import hearth.app.tui

    for _, name, _ in pkgutil.walk_packages(hearth.app.tui.__path__, "hearth.app.tui."):
        for thing in vars(importlib.import_module(name)).values():
            if isinstance(thing, type) and issubclass(thing, DOMNode) and thing.__module__ == name:
                yield thing


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    if not set(modifiers) <= _MODIFIERS:
        return False
    return len(last) == 1 or last in _names() or key_to_character(last) is not None


def _names() -> set[str]:
    """Textual's names of keys that are not characters, without modifiers."""
    return {key.value for key in Keys if not {"<", "+"} & set(key.value)}


@dataclass(frozen=True, slots=True)
class KeyClash:
    """A key, and the ids of the bindings that use it, sorted."""

    key: str
    bindings: tuple[str, ...]

    @property
    def text(self) -> str:
        """The clash in one sentence."""
        return (
            f"[keys]: {self.key} is the key of {' and of '.join(self.bindings)}: "
            "only one of them gets it."
        )

    @property
    def cure(self) -> str:
        """How to resolve the clash."""
        return f"Give {' or '.join(self.bindings)} another key."


def key_clashes(keymap: Mapping[str, str]) -> list[KeyClash]:
    """Every key that two bindings of the same screen or widget share because of `keymap`.

    `keymap` must have passed `checked_keymap`. Imports all screens unless it is empty.
    """
    if not keymap:
        return []
    clashes: set[KeyClash] = set()
    for kind in classes():
        usual = _bindings_of(kind)
        now = {ident: _keys(keymap[ident]) if ident in keymap else usual[ident] for ident in usual}
        for key in set().union(*now.values()):
            wanting = tuple(sorted(ident for ident in now if key in now[ident]))
            if len(wanting) > 1 and any(key not in usual[ident] for ident in wanting):
                clashes.add(KeyClash(key, wanting))
    return sorted(clashes, key=lambda clash: (clash.bindings, clash.key))


def _bindings_of(kind: type[DOMNode]) -> dict[str, set[str]]:
    """Keys of each binding of `kind` that has an id, by id; includes inherited bindings."""
    by_ident: dict[str, set[str]] = {}
    for base in kind.__mro__:
        for binding in Binding.make_bindings(base.__dict__.get("BINDINGS", ())):
            if binding.id:
                by_ident.setdefault(binding.id, set()).add(binding.key)
    return by_ident


def _keys(keys: str) -> set[str]:
    """The single keys of a list such as "f1,ctrl+h", by Textual's names."""
    return {binding.key for binding in Binding.make_bindings([(keys, "", "")])}
