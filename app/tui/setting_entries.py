"""Everything that can be set, as the settings screen lists it, and how each is written down."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from textual.binding import Binding

from hearth.app.nearest import did_you_mean
from hearth.app.settings import Settings
from hearth.app.settings_file import change, forget_setting, write_setting
from hearth.app.settings_keys import ALL, GENERAL, LOADING, SAMPLING, Key, Value, default_of
from hearth.app.tui.looks import check_keys

_GROUPS: Final = (("General", GENERAL), ("Loading models", LOADING), ("Sampling", SAMPLING))
_LISTS: Final = ("texts", "paths")


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting, or one binding of the terminal app.

    Attributes:
        name: as in the file.
        text: its value as it is written when it is edited.
        origin: where that comes from.
        default: its value when it is not set.
        help: what it does.
        expects: which values it takes, in words.
        choices: those, where they are few.
        is_key: it is a binding, of the table `[keys]`.
    """

    group: str
    name: str
    text: str
    origin: str
    default: str
    help: str
    expects: str
    choices: tuple[str, ...] = ()
    is_key: bool = False

    @property
    def ident(self) -> str:
        """What tells it from all others."""
        return f"{'key' if self.is_key else 'set'}:{self.name}"

    def matches(self, words: Sequence[str]) -> bool:
        """All of `words`, in lower case, are in its description."""
        said = f"{self.group} {self.name} {self.text} {self.help}".lower()
        return all(word in said for word in words)

    def check(self, text: str) -> Value:
        """The value that `text` means. Raises ValueError or `SettingsError` if it means none."""
        if self.is_key:
            return check_keys(self.name, text)
        value = _parsed(ALL[self.name], text)
        if self.name == "theme" and str(value) not in self.choices:
            raise ValueError(f"there is no theme {text!r}.{did_you_mean(text, self.choices)}")
        return value

    def write(self, file: Path, text: str) -> None:
        """Write `text` into the settings file. Raises what `check` and the file raise."""
        value = self.check(text)
        if self.is_key:
            change(file, ("keys",), self.name, value)
        else:
            write_setting(file, ALL[self.name], value)

    def reset(self, file: Path) -> None:
        """Let the default hold again. Raises `SettingsError`."""
        if self.is_key:
            change(file, ("keys",), self.name, None)
        else:
            forget_setting(file, ALL[self.name])


def entries(
    settings: Settings, themes: Sequence[str], bindings: Mapping[str, Binding]
) -> Iterator[Entry]:
    """Every setting by group, then every binding."""
    found = settings.all()
    for group, declared in _GROUPS:
        for key in declared:
            setting = found[key.name]
            yield Entry(
                group,
                key.name,
                written(key, setting.value),
                _short(setting.origin, settings.file),
                written(key, default_of(key)),
                key.help,
                "one of the themes" if key.name == "theme" else key.expects(),
                tuple(themes) if key.name == "theme" else _choices(key),
            )
    for ident, binding in bindings.items():
        own = settings.keymap.get(ident)
        yield Entry(
            "Keys of the terminal app",
            ident,
            own or binding.key,
            "default" if own is None else f"{settings.file.name}, [keys]",
            binding.key,
            binding.tooltip or binding.description,
            'keys with commas between, such as "f1,ctrl+h"',
            is_key=True,
        )


def _short(origin: str, file: Path) -> str:
    """`origin`, with the settings file by its name alone."""
    return origin.replace(str(file), file.name)


def written(key: Key, value: Value) -> str:
    """`value` as people write it: what `check` of its entry reads."""
    shown = key.shown(value)
    if isinstance(shown, bool):
        return "true" if shown else "false"
    if isinstance(shown, dict):
        return ", ".join(f"{token}={bias:g}" for token, bias in shown.items())
    if isinstance(shown, tuple):
        return "[" + ", ".join(_quoted(text) for text in shown) + "]" if shown else ""
    return "" if shown is None else str(shown)


def _parsed(key: Key, text: str) -> Value:
    if key.kind in _LISTS and text.lstrip().startswith("["):
        try:
            found = tomllib.loads(f"list = {text}")
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f'expected a list such as ["a", "b"]: {error}') from error
        return key.check(found["list"])
    return key.parse(text)


def _choices(key: Key) -> tuple[str, ...]:
    few = ("true", "false") if key.kind == "bool" else key.choices
    return (*few, "auto") if few and key.auto else few


def _quoted(text: str) -> str:
    """`text` as TOML has it: a JSON string is one, but for DEL, which no file has unescaped."""
    import json

    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
