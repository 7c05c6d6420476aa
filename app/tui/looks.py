"""Theme and keys of the terminal app, as the settings have them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
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
    """Give `app` the theme and the keys of `settings`; call it when the app is made, and whenever
    the settings have changed. Nothing is changed where something is wrong.

    Raises:
        SettingsError: there is no such theme, binding or key, with the nearest that there is.
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
    """`keymap`, if every binding and every key in it is one. Raises `SettingsError`."""
    if not keymap:
        return {}
    known = bindings()
    found = {}
    for ident, keys in keymap.items():
        if ident not in known:
            raise SettingsError(
                f"[keys]: there is no binding {ident!r}.{did_you_mean(ident, known)}",
                "F1 shows the ids of a screen, and the settings screen has all of them.",
            )
        found[ident] = check_keys(ident, keys)
    return found


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
    found: dict[str, Binding] = {}
    for kind in classes():
        for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", ())):
            if binding.id:
                same = found.get(binding.id)
                keys = binding.key if same is None else _joined(same.key, binding.key)
                found[binding.id] = binding.with_key(keys)
    return dict(sorted(found.items()))


def _joined(keys: str, more: str) -> str:
    return ",".join(dict.fromkeys([*keys.split(","), *more.split(",")]))


def classes() -> Iterator[type[DOMNode]]:
    """Every screen and widget of the terminal app, and itself; imports all of them."""
    import hearth.app.tui

    for name in _modules(hearth.app.tui.__path__, "hearth.app.tui."):
        module = importlib.import_module(name)
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, DOMNode) and thing.__module__ == name:
                yield thing


def _modules(path: Iterable[str], begin: str) -> Iterator[str]:
    for module in pkgutil.walk_packages(path, begin):
        if not module.ispkg:
            yield module.name


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+") if key != "+" else ["+"]
    if not set(modifiers) <= _MODIFIERS:
        return False
    return len(last) == 1 or last in _names() or key_to_character(last) is not None


def _names() -> set[str]:
    """Names of keys that are no characters."""
    return {key.value for key in Keys if not {"<", "+"} & set(key.value)}
